from __future__ import annotations

import dataclasses

import pytest

from atc_pipeline.atc.jobs import CompileJob, Layout
from atc_pipeline.om_check import find_om_problems
from atc_pipeline.om_facts import ProgramFacts
from atc_pipeline.om_inspect.facts import GearFacts, TensorFacts
from tests.atc_pipeline.fake_ascend import fake_jobs
from tests.atc_pipeline.program_facts import facts_of

PREFILL, DECODE = fake_jobs()
STATIC = fake_jobs(Layout.STATIC)[0]
FACTS = facts_of(DECODE)
GEARS = FACTS.gears
assert GEARS is not None


def change_tensor(
    tensors: tuple[TensorFacts, ...], index: int, **changes: object
) -> tuple[TensorFacts, ...]:
    changed = dataclasses.replace(tensors[index], **changes)  # type: ignore[arg-type]
    return (*tensors[:index], changed, *tensors[index + 1 :])


def change_flag(old: str, new: str) -> str:
    assert old in FACTS.atc_cmdline
    return FACTS.atc_cmdline.replace(old, new)


@pytest.mark.parametrize("job", [PREFILL, DECODE, STATIC], ids=lambda job: job.name)
def test_an_om_that_is_as_asked_has_no_problem(job: CompileJob) -> None:
    assert find_om_problems(job, facts_of(job)) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"soc_version": "Ascend310"}, "is for Ascend310, wanted Ascend310P3"),
        ({"soc_version": ""}, "is for no named chip"),
        ({"inputs": FACTS.inputs[:-1]}, "has the inputs .*, wanted .*ascend_mbatch_shape_data"),
        ({"inputs": FACTS.inputs[1::-1] + FACTS.inputs[2:]}, "has the inputs positions, input_ids"),
        (
            {"inputs": change_tensor(FACTS.inputs, 0, dtype="int64")},
            "input input_ids is int64, wanted int32",
        ),
        (
            {"inputs": change_tensor(FACTS.inputs, 5, dims=(160, 8, 16))},
            r"input kv_pool has the shape \[160, 8, 16\], wanted \[144, 8, 16\]",
        ),
        (
            {"inputs": change_tensor(FACTS.inputs, 2, size_bytes=31)},
            "input block_tables takes 31 bytes, its largest bucket needs 32",
        ),
        ({"gears": None}, "lacks the gears 1,1,1,1,1,4,1,1 2,1,2,1,2,4,2,2, has none"),
        (
            {"gears": dataclasses.replace(GEARS, values=(*GEARS.values, (9,) * 8))},
            "lacks the gears none, has 9,9,9,9,9,9,9,9 that nobody asked for",
        ),
        ({"gears": dataclasses.replace(GEARS, values=GEARS.values * 2)}, "has a gear twice"),
        ({"gears": GearFacts("batch", ((1,), (2,)), ())}, "has batch gears"),
        (
            {"gears": dataclasses.replace(GEARS, input_order=GEARS.input_order[::-1])},
            "orders its gears by kv_pool",
        ),
        ({"outputs": FACTS.outputs[:1]}, "has 1 outputs, wanted logits, new_kv"),
        (
            {"outputs": change_tensor(FACTS.outputs, 0, name="/node:0:scores")},
            "output logits is called /node:0:scores",
        ),
        (
            {"outputs": change_tensor(FACTS.outputs, 0, dtype="float16")},
            "output logits is float16, wanted float32",
        ),
        ({"atc_cmdline": ""}, "does not hold the command line"),
        (
            {"atc_cmdline": change_flag("=origin", "=fp16")},
            "was compiled with --precision_mode_v2 'fp16', wanted 'origin'",
        ),
        (
            {"atc_cmdline": FACTS.atc_cmdline + " --core_type=VectorCore"},
            "was compiled with --core_type 'VectorCore', wanted left out",
        ),
        (
            {"atc_cmdline": change_flag(" --log=error", "")},
            "was compiled with --log left out, wanted 'error'",
        ),
        (
            {"atc_cmdline": change_flag("step.onnx", "other.onnx")},
            "--model 'other.onnx', wanted 'step.onnx'",
        ),
    ],
)
def test_every_difference_is_named(changes: dict[str, object], problem: str) -> None:
    facts = dataclasses.replace(FACTS, **changes)  # type: ignore[arg-type]
    problems = find_om_problems(DECODE, facts)
    assert len(problems) == 1, problems
    with pytest.raises(ValueError, match=problem):
        raise ValueError(problems[0])


def test_gears_of_another_order_are_the_same_gears() -> None:
    """Only the set matters: the runtime names a gear by its values."""
    facts = dataclasses.replace(FACTS, gears=dataclasses.replace(GEARS, values=GEARS.values[::-1]))
    assert find_om_problems(DECODE, facts) == []


def test_a_static_program_must_have_no_gears() -> None:
    facts = dataclasses.replace(facts_of(STATIC), gears=GEARS)
    assert any("that nobody asked for" in line for line in find_om_problems(STATIC, facts))


def test_sizes_that_the_compiler_leaves_out_or_pads_are_fine() -> None:
    for size in (0, 10**9):
        inputs = change_tensor(FACTS.inputs, 0, size_bytes=size)
        facts = dataclasses.replace(FACTS, inputs=inputs)
        assert find_om_problems(DECODE, facts) == []


def test_outputs_without_the_tensors_name_are_known_by_their_place() -> None:
    outputs = tuple(dataclasses.replace(t, name=t.name.rpartition(":")[0]) for t in FACTS.outputs)
    assert find_om_problems(DECODE, dataclasses.replace(FACTS, outputs=outputs)) == []


def test_everything_that_is_wrong_is_listed() -> None:
    facts: ProgramFacts = dataclasses.replace(FACTS, soc_version="", atc_cmdline="", gears=None)
    assert len(find_om_problems(DECODE, facts)) == 3
