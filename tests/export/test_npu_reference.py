"""The reference on a card; the CPU stands in for the card, and torch_npu is a fake of ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from export.checkpoint_files import find_checkpoint
from export.hf_reference import greedy
from export.npu_device import ReferenceDevice, open_npu
from export.npu_reference import BundleAndCheckpoint, compare_bundle, compare_cases
from export.reference import ReferenceCase, record_case, write_reference
from omruntime.errors import BundleError, ConfigError, ExportError
from tests.export.tiny import save_checkpoint, tiny_model

STAND_IN = ReferenceDevice("stand-in (cpu)", torch.device("cpu"))
PROMPTS = ((5, 6, 7, 8), (40, 2, 9))


@pytest.fixture(scope="module")
def cases() -> tuple[ReferenceCase, ...]:
    model = tiny_model("llama")
    return tuple(record_case(p, greedy(model, p, 6).logits) for p in PROMPTS)


def test_float16_is_compared_with_the_recorded_float32(cases: tuple[ReferenceCase, ...]) -> None:
    found = compare_cases(tiny_model("llama"), cases, STAND_IN)
    assert found.num_tokens == 12
    assert found.num_equal >= 11
    # Float16 rounds, and rounds no more than float16 does.
    assert 0 < found.max_abs_logits_diff < 0.02 * found.max_abs_logit
    assert "12 tokens" in found.as_text()
    assert "stand-in (cpu), float16" in found.as_text()


def test_other_weights_are_far_off(cases: tuple[ReferenceCase, ...]) -> None:
    model = tiny_model("llama")
    model.get_input_embeddings().weight.data.neg_()
    found = compare_cases(model, cases, STAND_IN)
    assert found.max_abs_logits_diff > 0.2 * found.max_abs_logit
    assert found.num_equal < 12


def test_overflow_is_named(cases: tuple[ReferenceCase, ...]) -> None:
    """BL-10: values beyond float16 end in NaN, which must never pass for an answer."""
    model = tiny_model("llama")
    model.model.layers[1].mlp.down_proj.weight.data.mul_(1e6)
    with pytest.raises(ExportError, match="NaN or infinity at generated token 0"):
        compare_cases(model, cases, STAND_IN)


def test_a_device_that_cannot_run_it_is_a_refusal(cases: tuple[ReferenceCase, ...]) -> None:
    model = tiny_model("llama")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("NPU out of memory")

    model.forward = refuse  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="NPU out of memory"):
        compare_cases(model, cases, STAND_IN)


def test_the_columns_of_the_record_are_compared(cases: tuple[ReferenceCase, ...]) -> None:
    case = cases[0]
    moved = ReferenceCase(case.prompt_ids, case.greedy_ids, case.columns, case.logits + 3)
    found = compare_cases(tiny_model("llama"), (moved,), STAND_IN)
    assert np.isclose(found.max_abs_logits_diff, 3, atol=0.2)


def test_a_bundle_is_compared_with_its_own_checkpoint_alone(
    cases: tuple[ReferenceCase, ...], tmp_path: Path
) -> None:
    checkpoint = save_checkpoint(tiny_model("llama"), tmp_path / "checkpoint")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    write_reference(bundle, cases)
    sha256 = find_checkpoint(str(checkpoint)).sha256()
    given = BundleAndCheckpoint(bundle, str(checkpoint), sha256)
    stages: list[str] = []
    found = compare_bundle(given, STAND_IN, stages.append)
    assert found == compare_cases(tiny_model("llama"), cases, STAND_IN)
    assert stages[-1] == "running the checkpoint in float16 on stand-in (cpu)"
    other = BundleAndCheckpoint(bundle, str(checkpoint), "0" * 64)
    with pytest.raises(BundleError, match="built from another checkpoint"):
        compare_bundle(other, STAND_IN, stages.append)


def library(*, available: bool) -> SimpleNamespace:
    npu = SimpleNamespace(
        is_available=lambda: available, get_device_name=lambda device: f"Ascend310P3 #{device}"
    )
    return SimpleNamespace(npu=npu)


def test_a_card_is_opened_by_name() -> None:
    asked: list[str] = []

    def make_device(name: str) -> torch.device:
        asked.append(name)
        return torch.device("cpu")

    found = open_npu(lambda name: library(available=True), make_device)
    assert (found.name, asked) == ("npu:0 (Ascend310P3 #0)", ["npu:0"])


def absent(name: str) -> object:
    raise ModuleNotFoundError(f"No module named {name!r}")


def unloadable(name: str) -> object:
    raise ImportError("libhccl.so: cannot open shared object file")


@pytest.mark.parametrize(
    ("import_module", "words"),
    [
        (absent, r"pip install '\.\[npu\]'"),
        (unloadable, "libhccl.so.*set_env.sh"),
        (lambda name: library(available=False), "sees no card"),
    ],
)
def test_without_library_or_card_it_says_so(import_module: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_npu(import_module)  # type: ignore[arg-type]
