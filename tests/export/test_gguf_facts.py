"""GGUF files: exported equal, and refused where transformers would guess in silence (BL-12)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export.checkpoint import load_model, load_tokenizer, open_checkpoint
from export.checkpoint_files import find_checkpoint
from export.gguf_facts import read_gguf
from export.spec import ExportSpec
from omruntime.errors import ConfigError, ExportError
from tests.export.tiny import export_tiny, write_tiny_gguf


def test_a_gguf_file_exports_equal(tmp_path: Path) -> None:
    """Rows of q and k are permuted in the file; the end token and BOS stand in it."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tokenizer__ggml__add_bos_token=True)
    result = export_tiny(path, tmp_path / "out")
    assert result.parity.max_abs_logits_diff <= result.parity.tolerance
    assert result.model.eos_token_ids == (2,)
    assert result.model.name == "tiny"
    config = json.loads((tmp_path / "out/tokenizer/tokenizer_config.json").read_text())
    assert config["add_bos"] is True


def test_a_gguf_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, open_file = gguf.GGUFReader, gguf.GGUFReader.__init__
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    opened: list[str] = []

    def counted(self: gguf.GGUFReader, path: str, *args: Any) -> None:
        opened.append(path)
        open_file(self, path, *args)

    monkeypatch.setattr(reader, "__init__", counted)
    spec = ExportSpec(str(path))
    with open_checkpoint(find_checkpoint(spec.checkpoint), spec) as checkpoint:
        load_model(checkpoint, spec)
        load_tokenizer(checkpoint)
    assert len(opened) == 1
    assert gguf.GGUFReader is reader


def test_a_missing_rope_base_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, llama__rope__freq_base=None)
    with pytest.raises(ExportError, match=r"no llama\.rope\.freq_base"):
        read_gguf(path)


def test_rope_scaling_in_a_gguf_is_refused(tmp_path: Path) -> None:
    """transformers reads none of it."""
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, llama__rope__scaling__type="yarn")
    with pytest.raises(ExportError, match=r"scales its rope .*'yarn'"):
        read_gguf(path)


def test_a_gguf_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=rf"{size - 100} bytes, wanted \d+"):
        read_gguf(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_gives_an_error_and_no_crash(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "tiny.gguf"
    if not path.exists():
        write_tiny_gguf(path)
    content = bytearray(path.read_bytes()[:3000])
    where = data.draw(st.integers(0, len(content) - 1))
    content[where] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(bytes(content))
    with pytest.raises((ConfigError, ExportError)):
        read_gguf(damaged)


def test_a_tensor_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    """BL-03 for GGUF: transformers drops it without a word."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    content = path.read_bytes()
    assert content.count(b"blk.1.ffn_norm.weight") == 1
    path.write_bytes(content.replace(b"blk.1.ffn_norm.weight", b"blk.1.ffn_morn.weight"))
    with pytest.raises(ExportError, match=r"ffn_norm|post_attention_layernorm"):
        export_tiny(path, tmp_path / "out")
