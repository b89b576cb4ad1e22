"""Every proven architecture and setting goes through the whole export and the parity gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from export.architectures import PROVEN_MODEL_TYPES
from omruntime.errors import ConfigError, ExportError, UnprovenModelError
from omruntime.native import find_library
from tests.export.native_steps import native_difference
from tests.export.tiny import edit_json, export_tiny, save_checkpoint, tiny_model
from tests.export.zoo import CASES, DYNAMIC, LONGROPE_CONFIG, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_proven_architecture_equals_transformers(case: Case, tmp_path: Path) -> None:
    model = tiny_model(case.model_type, **case.config)
    result = export_tiny(save_checkpoint(model, tmp_path / "checkpoint"), tmp_path / "out")
    assert result.parity.max_abs_logits_diff <= result.parity.tolerance < 2e-4
    assert result.parity.num_greedy_tokens >= 3 * 20
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert result.model.head_dim == head_dim
    num_kv_heads = result.model.num_kv_heads
    assert result.kv.bytes_per_block == 2 * 2 * num_kv_heads * head_dim * 4 * 16
    if find_library() is not None:
        assert native_difference(tmp_path / "out", result) < 2e-5


def test_every_proven_architecture_has_a_case() -> None:
    assert {case.model_type for case in CASES} == PROVEN_MODEL_TYPES


OLD_STYLE_ROPE = {
    "linear": {"type": "linear", "factor": 2.0},
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-factor": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.0,
    },
}


@pytest.mark.parametrize("name", OLD_STYLE_ROPE)
def test_old_rope_keys_are_not_lost(name: str, tmp_path: Path) -> None:
    """BL-02: theta and scaling at the top level, `type` instead of `rope_type`."""
    checkpoint = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    _set_old_rope(checkpoint / "config.json", OLD_STYLE_ROPE[name])
    result = export_tiny(checkpoint, tmp_path / "out")
    rope = json.loads(result.kv_identity_inputs["rope"])
    assert rope["rope_theta"] == 500000.0
    assert rope["rope_type"] == OLD_STYLE_ROPE[name]["type"]


@pytest.mark.parametrize("rope_type", ["su", "mrope"])
def test_an_unknown_rope_type_is_refused_by_name(rope_type: str, tmp_path: Path) -> None:
    """BL-02: these end in a bare KeyError inside of transformers."""
    checkpoint = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    _set_old_rope(checkpoint / "config.json", {"type": rope_type, "mrope_section": [2, 3, 3]})
    with pytest.raises(UnprovenModelError, match=f"rope type '{rope_type}'"):
        export_tiny(checkpoint, tmp_path / "out")


@pytest.mark.parametrize("factor", [0, -1.0, float("nan"), float("inf"), "2", True])
def test_a_rope_factor_that_is_not_above_zero_is_refused(factor: object, tmp_path: Path) -> None:
    """transformers only warns, and some of them export equal nonsense."""
    checkpoint = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    _set_old_rope(checkpoint / "config.json", {"type": "yarn", "factor": factor})
    with pytest.raises(ConfigError, match=r"factor of the rope settings is .*wanted a number abo"):
        export_tiny(checkpoint, tmp_path / "out")


def test_no_positions_at_all_are_refused(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    edit_json(checkpoint / "config.json", max_position_embeddings=0)
    with pytest.raises(ConfigError, match="max_position_embeddings is 0, wanted at least 1"):
        export_tiny(checkpoint, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "../x"}, r"model_type '\.\./x' is unknown to transformers"),
        ({"model_type": None}, "model_type is None, wanted the name of an architecture"),
        (
            {"model_type": "evil", "auto_map": {"AutoConfig": "evil.X"}},
            "'evil' comes with code of its own .* never run",
        ),
    ],
)
def test_a_model_type_without_code_is_refused(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    """In our own words, without transformers' advice and the export's scratch folder."""
    checkpoint = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    edit_json(checkpoint / "config.json", **changes)
    with pytest.raises((ConfigError, UnprovenModelError), match=message) as caught:
        export_tiny(checkpoint, tmp_path / "out", allow_unproven=True)
    assert "trust_remote_code" not in str(caught.value)


def _set_old_rope(path: Path, scaling: dict[str, object]) -> None:
    plain = json.loads(path.read_text())
    del plain["rope_parameters"]
    path.write_text(json.dumps(plain | {"rope_theta": 500000.0, "rope_scaling": scaling}))


def test_a_null_head_dim_means_the_quotient(tmp_path: Path) -> None:
    """BL-01: the key is present and null."""
    checkpoint = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    edit_json(checkpoint / "config.json", head_dim=None)
    assert export_tiny(checkpoint, tmp_path / "out").model.head_dim == 16


@pytest.mark.parametrize(
    ("case", "limit"),
    [
        (Case("phi3", "", LONGROPE_CONFIG), 128),
        (Case("llama", "", {"rope_parameters": DYNAMIC}), 256),
        (Case("gpt2"), 256),
    ],
    ids=str,
)
def test_positions_beyond_a_switch_are_refused(case: Case, limit: int, tmp_path: Path) -> None:
    """Rope that follows the longest position of a batch, and learned positions."""
    model = tiny_model(case.model_type, **case.config)
    checkpoint = save_checkpoint(model, tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match=f"max_model_len is {limit + 1}.*{limit}"):
        export_tiny(checkpoint, tmp_path / "out", max_model_len=limit + 1)


def test_an_unproven_architecture_is_refused_unless_allowed(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tiny_model("cohere"), tmp_path / "checkpoint")
    with pytest.raises(UnprovenModelError, match="'cohere' is not among those proven"):
        export_tiny(checkpoint, tmp_path / "refused")
    result = export_tiny(checkpoint, tmp_path / "allowed", allow_unproven=True)
    assert result.parity.max_abs_logits_diff <= result.parity.tolerance


@pytest.mark.parametrize(
    ("case", "message"),
    [
        # Its attention does not pass keyword arguments on.
        (Case("stablelm"), "StableLmForCausalLM cannot be traced as a step graph: TypeError"),
        (
            Case("gpt_oss", "", {"head_dim": 16, "num_local_experts": 4}),
            "attention sinks are not built in",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_traced_is_an_export_error(case: Case, message: str, tmp_path: Path) -> None:
    model = tiny_model(case.model_type, **case.config)
    checkpoint = save_checkpoint(model, tmp_path / "checkpoint")
    with pytest.raises(ExportError, match=message):
        export_tiny(checkpoint, tmp_path / "out", allow_unproven=True)


def test_latent_attention_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    edit_json(checkpoint / "config.json", model_type="deepseek_v3", architectures=None)
    with pytest.raises(UnprovenModelError, match="latent attention"):
        export_tiny(checkpoint, tmp_path / "out", allow_unproven=True)


def test_the_tiny_logits_can_tell_wrong_from_right() -> None:
    """Guards the zoo itself: logits all alike would pass any gate."""
    with torch.no_grad():
        logits = tiny_model("llama")(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1]
    assert float(logits.std()) > 0.3
