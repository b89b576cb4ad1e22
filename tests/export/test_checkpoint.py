"""BL-03: every tensor of the checkpoint is used, and every parameter comes from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from omruntime.errors import ConfigError, ExportError
from tests.export.tiny import edit_json, export_tiny, save_checkpoint, tiny_model


@pytest.fixture
def biased(tmp_path: Path) -> Path:
    """A llama with biases whose config says it has none."""
    model = tiny_model("llama", attention_bias=True, mlp_bias=True)
    folder = save_checkpoint(model, tmp_path / "checkpoint")
    edit_json(folder / "config.json", attention_bias=False)
    return folder


def test_unused_tensors_are_named_and_refused(biased: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"8 of the checkpoint's tensors .*k_proj\.bias"):
        export_tiny(biased, tmp_path / "out")


def test_unused_tensors_can_be_allowed(biased: Path, tmp_path: Path) -> None:
    result = export_tiny(biased, tmp_path / "out", allow_unused_tensors=True)
    assert result.parity.num_cases > 0


def test_missing_parameters_are_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ExportError, match=r"missing model\.layers\.1\.mlp\.up_proj\.weight"):
        export_tiny(folder, tmp_path / "out")


def test_a_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json of the checkpoint cannot be read"):
        export_tiny(folder, tmp_path / "out")
