"""BL-03: every tensor of the checkpoint is used, and every parameter comes from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.checkpoint import load_model, open_checkpoint
from export.checkpoint_files import find_checkpoint
from export.spec import ExportSpec
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
    with pytest.raises(
        ExportError, match=r"8 of the checkpoint's tensors .*k_proj\.bias.* give --allow-unused"
    ):
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


def test_tensors_of_another_shape_are_named_with_both_shapes(tmp_path: Path) -> None:
    folder = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    edit_json(folder / "config.json", vocab_size=301)
    message = r"embed_tokens\.weight is \[300, 64\] and the config wants \[301, 64\]"
    with pytest.raises(ExportError, match=message):
        export_tiny(folder, tmp_path / "out")


def test_weights_that_hold_nan_are_named(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.get_parameter("model.layers.1.mlp.up_proj.weight").data[3, 5] = float("nan")
    folder = save_checkpoint(model, tmp_path / "checkpoint")
    with pytest.raises(ExportError, match=r"itself gives NaN: its model\.layers\.1\.mlp\.up_p"):
        export_tiny(folder, tmp_path / "out")


def test_logits_that_are_nan_are_the_checkpoints_fault(tmp_path: Path) -> None:
    """Every weight is a number, but their products pass the largest float."""
    model = tiny_model("llama")
    model.get_parameter("model.norm.weight").data.fill_(3e38)
    folder = save_checkpoint(model, tmp_path / "checkpoint")
    with pytest.raises(ExportError, match="the checkpoint itself gives NaN or infinity"):
        export_tiny(folder, tmp_path / "out")


def test_a_checkpoint_without_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ExportError, match=r"no tokenizer file, wanted tokenizer\.json"):
        export_tiny(folder, tmp_path / "out")


def test_a_tokenizer_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    """In our own words, without transformers' advice to run it."""
    folder = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    (folder / "tokenizer.json").rename(folder / "vocab.json")
    code = {"AutoTokenizer": ["evil.Slow", "evil.Fast"]}
    edit_json(folder / "tokenizer_config.json", tokenizer_class="EvilTokenizer", auto_map=code)
    edit_json(folder / "config.json", tokenizer_class="EvilTokenizer")
    with pytest.raises(ExportError, match=r"code of its own \(auto_map\)") as caught:
        export_tiny(folder, tmp_path / "out")
    assert "trust_remote_code" not in str(caught.value)


def test_what_a_config_wants_returned_does_not_matter(tmp_path: Path) -> None:
    """Tuples have no names, and losses of routers are traced with operators of their own."""
    model = tiny_model("mixtral", num_local_experts=4, sliding_window=None)
    folder = save_checkpoint(model, tmp_path / "checkpoint")
    edit_json(folder / "config.json", return_dict=False, output_router_logits=True)
    spec = ExportSpec(str(folder))
    with open_checkpoint(find_checkpoint(spec.checkpoint), spec) as checkpoint:
        output = load_model(checkpoint, spec)(input_ids=torch.tensor([[5, 6]]))
    assert output.logits.shape == (1, 2, 300)
    assert output.router_logits is None
