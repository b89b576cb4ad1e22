from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_pipeline.checkpoint_size import count_parameters


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}} | {k: {"shape": v} for k, v in shapes.items()}
    )
    return struct.pack("<Q", len(header)) + header.encode()


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf() -> bytes:
    keys = [
        string("s") + struct.pack("<I", 8) + string("llama"),
        string("u32") + struct.pack("<II", 4, 7),
        string("f64") + struct.pack("<Id", 12, 1.0),
        string("flags") + struct.pack("<IIQ", 9, 7, 3) + b"\0\1\0",
        string("words") + struct.pack("<IIQ", 9, 8, 2) + string("a") + string("bc"),
    ]
    tensors = [
        string("embed") + struct.pack("<IQQIQ", 2, 10, 20, 2, 0),
        string("norm") + struct.pack("<IQIQ", 1, 5, 0, 64),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    return head + b"".join(keys + tensors) + bytes(100)


def test_safetensors(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": [2, 3], "b": [4], "c": []}))
    assert count_parameters(tmp_path) == 11


def test_an_index_decides_which_files_count(tmp_path: Path) -> None:
    """BL-05: a foreign weight file beside an indexed checkpoint is not part of it."""
    for name in ("m-1", "m-2", "adapter_model"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors({"a": [10]}))
    weight_map = {"x": "m-1.safetensors", "y": "m-2.safetensors", "z": "m-1.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert count_parameters(tmp_path) == 20


def test_gguf(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf())
    assert count_parameters(tmp_path / "m.gguf") == 205


@pytest.mark.parametrize("data", [b"", b"GGUF", b"plain text", gguf()[:60], gguf()[:-130]])
def test_a_damaged_file_is_unknown(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    assert count_parameters(tmp_path / "m.gguf") is None


@pytest.mark.parametrize("data", [b"", b"x" * 20, struct.pack("<Q", 1 << 60), safetensors({})[:-1]])
def test_a_damaged_shard_is_unknown(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    assert count_parameters(tmp_path) is None


def test_a_shard_outside_of_the_folder_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "outside.safetensors").write_bytes(safetensors({"a": [3]}))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    assert count_parameters(folder) is None


def test_no_such_path_is_unknown() -> None:
    assert count_parameters(Path("org/model-on-the-hub")) is None


@given(at=st.integers(4, 200), piece=st.binary(min_size=1, max_size=8))
def test_a_hostile_header_never_crashes(
    at: int, piece: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = gguf()
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    path.write_bytes(data[:at] + piece + data[at + len(piece) :])
    count_parameters(path)


def test_nesting_without_end_is_unknown(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<I", 9)
    (tmp_path / "m.gguf").write_bytes(head + struct.pack("<IQ", 9, 1) * 5000)
    assert count_parameters(tmp_path / "m.gguf") is None
