"""The npu operators' limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atc_pipeline.lint.gears import Gears
from omruntime.buckets import Bucket, Phase
from tests.atc_pipeline.lint.graphs import (
    FLOAT16,
    INT32,
    constant,
    floats,
    found,
    lint,
    model,
    node,
    value,
)


@pytest.mark.parametrize(("last", "refused"), [(8, True), (15, True), (16, False), (64, False)])
def test_rows_of_a_norm(tmp_path: Path, last: int, refused: bool) -> None:
    planted = node("NPURmsNorm", ["x", "g"], ["y", "r"], domain="npu")
    graph = model(
        [planted], [value("x", FLOAT16, "batch", last)], weights=[constant("g", floats(last))]
    )
    assert found(lint(tmp_path, graph)) == ({("npu-norm-row", "n_y")} if refused else set())


def rotary(*shape: int | str) -> tuple[str, list]:
    planted = node("NPURotaryMul", ["x", "c", "s"], ["y"], domain="npu")
    angles = [value(name, FLOAT16, 1, 1, 1, 64) for name in ("c", "s")]
    return "n_y", [planted, value("x", FLOAT16, *shape), *angles]


@pytest.mark.parametrize(
    ("shape", "refused"),
    [
        ((1, 4, 8, 64), False),
        ((1, 4, 8, 128), False),
        (("batch", 4, "tokens", 64), False),
        ((1, 4, 8, 96), True),
        ((4, 8, 64), True),
        ((1000, 4, 8, 64), True),
        ((999, 4, 8, 64), False),
        ((1, 1000, 2000, 64), True),
        ((1, 2000, 8, 64), False),
    ],
)
def test_shapes_of_a_rotation(tmp_path: Path, shape: tuple[int | str, ...], refused: bool) -> None:
    where, (planted, *inputs) = rotary(*shape)
    report = lint(tmp_path, model([planted], inputs))
    assert found(report) == ({("npu-rotary-shape", where)} if refused else set())


def test_a_symbol_has_its_largest_gear(tmp_path: Path) -> None:
    where, (planted, *inputs) = rotary("batch", 4, "tokens", 64)
    graph = model([planted], inputs)
    for batch, wanted in ((999, set()), (1000, {("npu-rotary-shape", where)})):
        buckets = (Bucket(Phase.DECODE, 1, 1, 1), Bucket(Phase.DECODE, batch, 1, 1))
        gears = Gears.per_phase(buckets, None, 128)
        assert found(lint(tmp_path, graph, gears=gears)) == wanted


def test_operand_types(tmp_path: Path) -> None:
    planted = node("NPURmsNorm", ["x", "gamma"], ["y", "r"], domain="npu")
    report = lint(tmp_path, model([planted], [value("x", INT32, "batch", 64)]))
    assert found(report) == {("npu-operand-type", "n_y")}


def test_types_are_known_behind_an_npu_operator(tmp_path: Path) -> None:
    """A norm's output is as its input, so what follows is judged too."""
    small = constant("small", floats(64, 8))
    nodes = [
        node("MatMul", ["normed", "small"], ["narrow"]),
        node("NPURmsNorm", ["narrow", "g"], ["y", "r"], domain="npu"),
    ]
    graph = model(nodes, weights=[small, constant("g", floats(8))])
    assert found(lint(tmp_path, graph)) == {("npu-norm-row", "n_y")}


@pytest.mark.parametrize(
    ("query", "key", "masked", "refused"),
    [
        ((1, 64, 256), (1, 64, 256), True, False),
        ((1, 60, 256), (1, 60, 256), True, True),
        ((1, 64, 256), (1, 128, 256), True, True),
        ((1, 64, 256), (1, 128, 256), False, False),
        ((129, 64, 256), (129, 64, 256), False, True),
        ((1, 65537, 16), (1, 65537, 16), False, True),
    ],
)
def test_prompt_attention(
    tmp_path: Path,
    query: tuple[int, ...],
    key: tuple[int, ...],
    masked: bool,
    refused: bool,
) -> None:
    operands = ["q", "k", "k", *(["", "m"] if masked else [])]
    planted = node(
        "NPUPromptFlashAttention", operands, ["y"], domain="npu", num_heads=4, input_layout="BSH"
    )
    inputs = [value("q", FLOAT16, *query), value("k", FLOAT16, *key)]
    mask = constant("m", np.ones((1, 1), bool))
    report = lint(tmp_path, model([planted], inputs, weights=[mask]))
    assert found(report) == ({("npu-prompt-attention", "n_y")} if refused else set())


def test_incremental_attention_is_unusable(tmp_path: Path) -> None:
    planted = node(
        "NPUIncreFlashAttention",
        ["rows"] * 6,
        ["y"],
        domain="npu",
        num_heads=4,
        input_layout="BSH",
    )
    assert found(lint(tmp_path, model([planted]))) == {("npu-incre-attention", "n_y")}
