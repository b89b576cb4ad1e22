"""Gears and sizes that the compiler does not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from atc_pipeline.lint.gears import Gears
from omruntime.buckets import Bucket, Phase
from tests.atc_pipeline.lint.graphs import FLOAT16, INT32, found, lint, model, node, value


def decode(count: int) -> tuple[Bucket, ...]:
    return tuple(Bucket(Phase.DECODE, batch, 1, 1) for batch in range(1, count + 1))


@pytest.mark.parametrize(("count", "refused"), [(1, False), (2, False), (100, False), (101, True)])
def test_number_of_gears(tmp_path: Path, count: int, refused: bool) -> None:
    report = lint(tmp_path, model([]), gears=Gears.per_phase(decode(count), None, 128))
    assert found(report) == ({("gear-count", "decode")} if refused else set())


def test_equal_gears(tmp_path: Path) -> None:
    gears = Gears((("programs/step.om", (*decode(2), *decode(1))),), None, 128)
    assert found(lint(tmp_path, model([]), gears=gears)) == {("equal-gears", "programs/step.om")}


def test_a_gear_without_past_blocks(tmp_path: Path) -> None:
    tables = [value("block_tables", INT32, "batch", "past_blocks")]
    gears = Gears.per_phase((Bucket(Phase.PREFILL, 1, 16, 0),), None, 128)
    assert found(lint(tmp_path, model([], tables), gears=gears)) == {
        ("gear-without-past", "prefill")
    }
    assert not lint(tmp_path, model([]), gears=gears).findings


@pytest.mark.parametrize(("num_blocks", "refused"), [(4095, False), (4096, True)])
def test_a_pool_of_more_elements_than_32_bits_count(
    tmp_path: Path, num_blocks: int, refused: bool
) -> None:
    pool = value("kv_pool", FLOAT16, "num_slots", 64, 64)
    graph = model([node("Shape", ["kv_pool"], ["y"])], [pool])
    report = lint(tmp_path, graph, gears=Gears.per_phase(decode(1), num_blocks, 128))
    assert found(report) == ({("too-many-elements", "kv_pool")} if refused else set())
