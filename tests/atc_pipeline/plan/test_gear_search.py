"""The search of gears against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_pipeline.plan.gear_search import (
    Floats,
    Gear,
    row_table_cost,
    row_tables,
    search_gears,
    table_cost,
)


@st.composite
def planes(draw: st.DrawFn, rows: int, columns: int) -> tuple[Floats, Floats]:
    """Weights, many of them zero, and costs that grow in both directions."""
    shape = (draw(st.integers(1, rows)), draw(st.integers(1, columns)))
    size = shape[0] * shape[1]
    weights = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    steps = draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    growth = np.array(steps, float).reshape(shape)
    return np.array(weights, float).reshape(shape), growth.cumsum(axis=0).cumsum(axis=1)


def is_in_rows(gears: tuple[Gear, ...]) -> bool:
    """Whether no row reaches less far than a lower one."""
    reach: dict[int, int] = {}
    for row, column in gears:
        reach[row] = max(column, reach.get(row, -1))
    reaches = [reach[row] for row in sorted(reach)]
    return reaches == sorted(reaches)


def all_tables(shape: tuple[int, int], count: int) -> list[tuple[Gear, ...]]:
    """Every set of so many gears with the largest point among them."""
    points = list(itertools.product(*(range(n) for n in shape)))
    return [(*rest, points[-1]) for rest in itertools.combinations(points[:-1], count - 1)]


@settings(max_examples=60)
@given(planes(3, 4), st.integers(1, 4))
def test_the_programme_finds_the_best_table_in_rows(
    plane: tuple[Floats, Floats], max_gears: int
) -> None:
    weights, costs = plane
    found = row_tables(weights, costs, max_gears)
    assert len(found) == min(max_gears, weights.size)
    for count, gears in enumerate(found, start=1):
        tables = [t for t in all_tables(weights.shape, count) if is_in_rows(t)]
        least = min(row_table_cost(weights, costs, table) for table in tables)
        assert len(set(gears)) == count
        assert is_in_rows(gears)
        assert row_table_cost(weights, costs, gears) == pytest.approx(least)


@settings(max_examples=60)
@given(planes(1, 7), st.integers(1, 5))
def test_in_one_row_the_result_is_the_best_of_all(
    plane: tuple[Floats, Floats], max_gears: int
) -> None:
    weights, costs = plane
    for count, found in enumerate(search_gears(weights, costs, max_gears), start=1):
        tables = all_tables(weights.shape, count)
        least = min(table_cost(weights, costs, table) for table in tables)
        assert found.cost == pytest.approx(least)


@settings(max_examples=60)
@given(planes(4, 5), st.integers(1, 6))
def test_results_cover_everything_and_improve_with_each_gear(
    plane: tuple[Floats, Floats], max_gears: int
) -> None:
    weights, costs = plane
    sets = search_gears(weights, costs, max_gears)
    programme = row_tables(weights, costs, max_gears)
    for index, found in enumerate(sets):
        assert found.gears[-1] == (weights.shape[0] - 1, weights.shape[1] - 1)
        assert len(found.gears) <= index + 1
        assert found.cost == pytest.approx(table_cost(weights, costs, found.gears))
        assert found.cost <= table_cost(weights, costs, programme[index]) + 1e-9
        assert index == 0 or found.cost <= sets[index - 1].cost


def test_exchange_leaves_rows_where_that_is_better() -> None:
    """A middle row may reach less far than the row below it."""
    weights = np.zeros((3, 3))
    weights[0, 2] = weights[1, 0] = 100.0
    weights[2, 2] = 1.0
    costs = np.add.outer(np.array([1.0, 2.0, 50.0]), np.array([0.0, 10.0, 20.0]))
    best = search_gears(weights, costs, 3)[-1]
    assert best.gears == ((0, 2), (1, 0), (2, 2))
    assert not is_in_rows(best.gears)
    assert best.cost == 100 * 21 + 100 * 2 + 70
