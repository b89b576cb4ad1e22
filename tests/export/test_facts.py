"""End tokens, sampling defaults, widths: one rule for each, whatever the files leave out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from export.checkpoint import load_tokenizer, open_checkpoint
from export.checkpoint_files import find_checkpoint
from export.facts import EndTokens, end_tokens, sampling_defaults
from export.spec import ExportSpec
from omruntime.errors import ConfigError
from omruntime.manifest import SamplingDefaults
from tests.export.tiny import (
    edit_json,
    export_tiny,
    save_checkpoint,
    save_tokenizer,
    tiny_model,
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")


def _ends(checkpoint: Path) -> EndTokens:
    spec = ExportSpec(str(checkpoint))
    with open_checkpoint(find_checkpoint(spec.checkpoint), spec) as opened:
        return end_tokens(opened, load_tokenizer(opened))


def test_end_tokens_come_as_a_list(checkpoint: Path) -> None:
    """BL-06: generation_config.json wins and may list several."""
    edit_json(checkpoint / "generation_config.json", eos_token_id=[0, 2])
    assert _ends(checkpoint) == EndTokens((0, 2), "generation_config.json")


def test_end_tokens_come_from_the_config(checkpoint: Path) -> None:
    assert _ends(checkpoint) == EndTokens((2,), "config.json")


def test_end_tokens_come_from_the_tokenizer(checkpoint: Path) -> None:
    """BL-06: null in both configs; transformers' class default of 2 must not slip in."""
    edit_json(checkpoint / "generation_config.json", eos_token_id=None)
    edit_json(checkpoint / "config.json", eos_token_id=None)
    save_tokenizer(checkpoint, eos_token="<pad>")
    assert _ends(checkpoint) == EndTokens((0,), "the tokenizer")


def test_no_end_token_at_all_builds_with_a_warning(checkpoint: Path, tmp_path: Path) -> None:
    """BL-06: requests then end at max_tokens only."""
    edit_json(checkpoint / "config.json", eos_token_id=None)
    save_tokenizer(checkpoint, eos_token=None)
    result = export_tiny(checkpoint, tmp_path / "out")
    assert result.model.eos_token_ids == ()
    assert any("no end token" in warning for warning in result.warnings)


def test_a_length_beyond_the_models_own_builds_with_a_warning(
    checkpoint: Path, tmp_path: Path
) -> None:
    edit_json(checkpoint / "config.json", max_position_embeddings=32)
    result = export_tiny(checkpoint, tmp_path / "out")
    assert any("made for 32 positions" in warning for warning in result.warnings)


def test_an_end_token_that_is_no_id_is_refused(checkpoint: Path) -> None:
    edit_json(checkpoint / "generation_config.json", eos_token_id="</s>")
    with pytest.raises(ConfigError, match=r"eos_token_id in generation_config\.json is '</s>'"):
        _ends(checkpoint)


def test_an_end_token_beyond_the_vocabulary_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    edit_json(checkpoint / "generation_config.json", eos_token_id=[2, 300])
    with pytest.raises(ConfigError, match=r"generation_config\.json holds 300, outside"):
        export_tiny(checkpoint, tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, SamplingDefaults()),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05},
            SamplingDefaults(temperature=0.6, top_k=20, repetition_penalty=1.05),
        ),
        (
            {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1},
            SamplingDefaults(temperature=0.0, repetition_penalty=1.1),
        ),
        ({"temperature": 0.7, "top_p": None}, SamplingDefaults(temperature=0.7)),
    ],
)
def test_sampling_defaults_follow_one_rule(
    given: dict[str, object], wanted: SamplingDefaults
) -> None:
    """BL-31: documented in export/facts.py."""
    assert sampling_defaults(given) == wanted


def test_a_sampling_default_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="top_k is 'many'"):
        sampling_defaults({"top_k": "many"})
    with pytest.raises(ConfigError, match="do_sample is 'false', wanted true or false"):
        sampling_defaults({"do_sample": "false"})


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("temperature", -0.1, "at least 0"),
        ("top_p", 0.0, "above 0 and up to 1"),
        ("top_p", 1.5, "above 0 and up to 1"),
        ("top_k", -5, "at least -1"),
        ("min_p", 7, "0 to 1"),
        ("repetition_penalty", 0, "above 0"),
        ("top_k", 20.5, "a whole number"),
        ("top_k", float("inf"), "a finite number"),
        ("temperature", float("nan"), "a finite number"),
        pytest.param("temperature", 10**400, "a finite number", id="beyond-float"),
    ],
)
def test_a_sampling_default_out_of_range_is_refused(key: str, value: float, wanted: str) -> None:
    """A bundle with it would refuse every request that leaves the field unset."""
    with pytest.raises(ConfigError, match=rf"generation_config\.json: {key} is .*{wanted}"):
        sampling_defaults({"do_sample": True, key: value})


def test_temperature_zero_is_greedy_even_with_do_sample() -> None:
    given: dict[str, object] = {"do_sample": True, "temperature": 0.0}
    assert sampling_defaults(given) == SamplingDefaults(temperature=0.0)


def test_the_vocabulary_is_as_wide_as_the_logits(checkpoint: Path, tmp_path: Path) -> None:
    """BL-07: 300 logits, 259 tokens."""
    result = export_tiny(checkpoint, tmp_path / "out")
    assert result.model.vocab_size == 300
    assert result.program.outputs[0].shape == ("batch", 300)


def test_the_same_checkpoint_gives_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    """Also: nothing written names a path of this machine."""
    one, two = (export_tiny(checkpoint, tmp_path / name) for name in ("one", "two"))
    assert one == two
    assert set(one.files) == {
        path.relative_to(tmp_path / "one").as_posix()
        for path in (tmp_path / "one").rglob("*")
        if path.is_file()
    }
    for name in one.files:
        content = (tmp_path / "one" / name).read_bytes()
        assert content == (tmp_path / "two" / name).read_bytes(), name
        assert str(tmp_path).encode() not in content, name


def test_the_kv_identity_follows_the_smallest_weight(checkpoint: Path, tmp_path: Path) -> None:
    """Constants below 1 KiB lie in the program file, not in the weights file."""
    before = export_tiny(checkpoint, tmp_path / "before").kv_identity_inputs
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.0.input_layernorm.weight"][3] = 1.5
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    assert export_tiny(checkpoint, tmp_path / "after").kv_identity_inputs != before


def test_the_kv_identity_follows_the_rope(checkpoint: Path, tmp_path: Path) -> None:
    before = export_tiny(checkpoint, tmp_path / "before").kv_identity_inputs
    plain = json.loads((checkpoint / "config.json").read_text())
    plain["rope_parameters"]["rope_theta"] = 5000.0
    (checkpoint / "config.json").write_text(json.dumps(plain))
    after = export_tiny(checkpoint, tmp_path / "after").kv_identity_inputs
    assert before["rope"] != after["rope"]
