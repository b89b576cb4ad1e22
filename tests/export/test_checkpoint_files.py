"""BL-05: an interrupted download is refused before anything is loaded, stray files are ignored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from export.checkpoint_files import find_checkpoint
from omruntime.errors import ConfigError
from tests.export.tiny import export_tiny, save_checkpoint, tiny_model, write_tiny_gguf


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    model = tiny_model("llama")
    folder = save_checkpoint(model, tmp_path / "checkpoint", max_shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) >= 6
    return folder


def test_every_missing_and_damaged_shard_is_named(sharded: Path) -> None:
    first, second, third, *_ = sorted(sharded.glob("*.safetensors"))
    first.unlink()
    second.write_bytes(second.read_bytes()[: second.stat().st_size // 2])
    third.write_bytes(b"")
    with pytest.raises(ConfigError) as caught:
        find_checkpoint(str(sharded))
    assert f"{first.name} is missing" in str(caught.value)
    assert f"{second.name} is damaged" in str(caught.value)
    assert f"{third.name} is damaged" in str(caught.value)


def test_a_tensor_that_the_index_promises_is_looked_for(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    plain = json.loads(index.read_text())
    plain["weight_map"]["model.promised"] = sorted(plain["weight_map"].values())[0]
    index.write_text(json.dumps(plain))
    with pytest.raises(ConfigError, match=r"lacks model\.promised"):
        find_checkpoint(str(sharded))


@pytest.mark.parametrize("shard", ["../outside.safetensors", "a/../../b", "/etc/passwd"])
def test_a_shard_outside_of_the_folder_is_refused(shard: str, sharded: Path) -> None:
    """Even when a sound file lies there."""
    sound = sorted(sharded.glob("*.safetensors"))[0]
    (sharded.parent / "outside.safetensors").write_bytes(sound.read_bytes())
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ConfigError, match=rf"a lies in '{shard}', outside"):
        find_checkpoint(str(sharded))


def test_stray_weights_beside_an_index_are_ignored_and_listed(
    sharded: Path, tmp_path: Path
) -> None:
    """transformers would read the foreign model.safetensors instead of the shards."""
    foreign = tiny_model("llama", vocab_size=77)
    save_file(
        {n: p.detach().clone() for n, p in foreign.named_parameters()},
        sharded / "model.safetensors",
        metadata={"format": "pt"},
    )
    (sharded / "adapter_model.safetensors").write_bytes(b"another thing")
    result = export_tiny(sharded, tmp_path / "out")
    assert result.model.vocab_size == 300
    assert any("adapter_model.safetensors, model.safetensors" in w for w in result.warnings)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", None, "no model.safetensors"),
        ("pytorch_model.bin", b"pickle", "pytorch_model.bin, which must be converted"),
        ("model.safetensors.index.json", b"{}", "is no weight index"),
        ("model.safetensors.index.json", b"[" * 100_000, "is no weight index"),
        ("model.safetensors", b"\xff" * 16, "is damaged"),
    ],
)
def test_other_folders_are_refused(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        find_checkpoint(str(tmp_path))


def test_a_wrong_path_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wanted a folder with safetensors, a GGUF file or a"):
        find_checkpoint(str(tmp_path / "nothing here"))


def test_a_single_file_must_be_a_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match=r"begins with b'PK\\x03\\x04', wanted b'GGUF'"):
        find_checkpoint(str(path))


def test_a_gguf_is_found_by_itself_and_in_its_folder(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    by_folder, by_file = find_checkpoint(str(tmp_path)), find_checkpoint(str(path))
    assert by_folder == by_file
    assert by_folder.gguf


def test_the_hash_follows_every_file_that_is_read(sharded: Path) -> None:
    before = find_checkpoint(str(sharded)).sha256()
    assert before == find_checkpoint(str(sharded)).sha256()
    (sharded / "tokenizer_config.json").write_text("{}")
    assert find_checkpoint(str(sharded)).sha256() != before
