"""The best gears of one phase for each number of gears: dynamic programming, then exchange.

Owns the search over a plane of candidate gears. A state (a step that occurs) is a point of the
same plane, and a gear serves every state that is no larger in both directions.

The programme is exact for tables in rows: a state is served by the lowest row that reaches it,
in the row by the smallest gear that covers it, and no row reaches less far than a lower one. Its
state is (last row, how far it reaches, gears used): below and to the left of that corner all is
served, and what is above a low row's reach falls to the next row. The engine is not bound to rows
but takes the cheapest gear that covers; under that rule single gears are then moved for as long
as it helps, so the result is never worse than the programme's.

The largest point is always a gear, whatever the weights, so that every state is covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Gear = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GearSet:
    """Gears as (row, column) of the plane, ascending, and the expected cost they lead to."""

    gears: tuple[Gear, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class _Corner:
    """A partial table: all up to `row` and `reach` is served; -1 and -1 is the empty one."""

    cost: float
    gears: tuple[Gear, ...]


def search_gears(weights: Floats, costs: Floats, max_gears: int) -> tuple[GearSet, ...]:
    """The best sets of 1, 2, ... `max_gears` gears; each costs no more than the one before.

    Args:
        weights: How often each state occurs, [rows, columns], at least 0.
        costs: Of a gear at each point, same shape; grows in both directions.
        max_gears: At least 1.
    """
    # A gear gains nothing by being larger than the largest state it serves.
    rows, columns = (_occupied(weights, axis) for axis in (1, 0))
    kept = np.ix_(rows, columns)
    exchange = _Exchange(weights[kept], costs[kept])
    best: list[GearSet] = []
    for gears in row_tables(weights[kept], costs[kept], max_gears):
        found = exchange.improve(gears)
        placed = tuple((int(rows[row]), int(columns[column])) for row, column in found.gears)
        if best and best[-1].cost <= found.cost:
            best.append(best[-1])
        else:
            best.append(GearSet(placed, found.cost))
    return tuple(best)


def row_tables(weights: Floats, costs: Floats, max_gears: int) -> list[tuple[Gear, ...]]:
    """The best table in rows of exactly 1, 2, ... gears, as far as there are so many points."""
    num_rows, num_columns = weights.shape
    most = min(max_gears, num_rows * num_columns)
    best: dict[tuple[int, int, int], _Corner] = {(-1, -1, 0): _Corner(0.0, ())}
    for row in range(-1, num_rows - 1):
        for reach in range(-1, num_columns):
            starts = {n: best[row, reach, n] for n in range(most) if (row, reach, n) in best}
            if not starts:
                continue
            for upper in range(row + 1, num_rows):
                demand = _demand(weights, row, reach, upper)
                table = _RowTable(demand, costs[upper], most)
                for end in range(max(reach, 0), num_columns):
                    _extend(best, starts, (upper, end, most), table)
    last = (num_rows - 1, num_columns - 1)
    found = (best.get((*last, count)) for count in range(1, most + 1))
    return [corner.gears for corner in found if corner is not None]


def row_table_cost(weights: Floats, costs: Floats, gears: Sequence[Gear]) -> float:
    """What a table in rows costs under the programme's own rule; infinite without cover."""
    total = 0.0
    for row, column in zip(*np.nonzero(weights), strict=True):
        covering = [gear for gear in sorted(gears) if gear[0] >= row and gear[1] >= column]
        if not covering:
            return float("inf")
        total += float(weights[row, column] * costs[covering[0]])
    return total


def table_cost(weights: Floats, costs: Floats, gears: Sequence[Gear]) -> float:
    """What gears cost when each state takes the cheapest that covers it."""
    return _Exchange(weights, costs).cost(gears)


def _occupied(weights: Floats, axis: int) -> NDArray[np.intp]:
    """The rows (axis 1) or columns (axis 0) in which states occur, and the last one."""
    occupied = np.atleast_1d(weights.any(axis=axis))
    occupied[-1] = True
    return np.flatnonzero(occupied)


def _demand(weights: Floats, row: int, reach: int, upper: int) -> Floats:
    """By column, what falls to row `upper` when the row below it is `row`."""
    demand: Floats = weights[row + 1 : upper + 1].sum(axis=0)
    left_over: Floats = weights[: row + 1].sum(axis=0)
    left_over[: reach + 1] = 0.0
    return demand + left_over


class _RowTable:
    """The best gears of one row that end at each column, for each number of gears."""

    def __init__(self, demand: Floats, costs: Floats, most: int) -> None:
        num_columns = len(costs)
        before = np.concatenate(([0.0], np.cumsum(demand)))
        # [start, end]: one gear at `end` for the columns from `start` on.
        spans = (before[None, 1:] - before[:-1, None]) * costs[None, :]
        spans[np.tril_indices(num_columns, -1)] = np.inf
        self.costs = [spans[0]]
        self._starts: list[NDArray[np.intp]] = []
        for _ in range(1, min(most, num_columns)):
            previous = np.concatenate(([np.inf], self.costs[-1][:-1]))
            options = previous[:, None] + spans
            self._starts.append(options.argmin(axis=0))
            self.costs.append(options.min(axis=0))

    def columns(self, count: int, end: int) -> tuple[int, ...]:
        """Where the gears stand."""
        found = [end]
        for starts in reversed(self._starts[: count - 1]):
            found.append(int(starts[found[-1]]) - 1)
        return tuple(reversed(found))


def _extend(
    best: dict[tuple[int, int, int], _Corner],
    starts: dict[int, _Corner],
    corner: tuple[int, int, int],
    table: _RowTable,
) -> None:
    """Add a row that ends at `corner` (row, column, most gears) to every start."""
    upper, end, most = corner
    for used, start in starts.items():
        for count in range(1, min(most - used, len(table.costs)) + 1):
            cost = start.cost + float(table.costs[count - 1][end])
            key = (upper, end, used + count)
            if cost < best[key].cost if key in best else cost < float("inf"):
                row = tuple((upper, column) for column in table.columns(count, end))
                best[key] = _Corner(cost, start.gears + row)


class _Exchange:
    """Local search: one gear moved to another point, the largest stays."""

    def __init__(self, weights: Floats, costs: Floats) -> None:
        rows, columns = np.nonzero(weights)
        self._weights = weights[rows, columns]
        self._points = [(r, c) for r in range(costs.shape[0]) for c in range(costs.shape[1])]
        gear_rows, gear_columns = (np.array(axis) for axis in zip(*self._points, strict=True))
        covers = (gear_rows[:, None] >= rows) & (gear_columns[:, None] >= columns)
        # [point, state]: the cost of the state in a gear at the point.
        self._costs = np.where(covers, costs.reshape(-1, 1), np.inf)
        self._num_columns = int(costs.shape[1])

    def cost(self, gears: Sequence[Gear]) -> float:
        """The expected cost when each state takes the cheapest gear that covers it."""
        return self._total(self._costs[[self._index(g) for g in gears]].min(axis=0))

    def improve(self, gears: Sequence[Gear]) -> GearSet:
        """Move gears for as long as the cost falls; the number of gears stays."""
        chosen = [self._index(gear) for gear in sorted(gears)]
        cost, moved = self._total(self._costs[chosen].min(axis=0)), True
        while moved:
            moved = False
            for place in range(len(chosen) - 1):
                others = self._costs[chosen[:place] + chosen[place + 1 :]].min(axis=0)
                totals = np.minimum(others, self._costs) @ self._weights
                target = int(totals.argmin())
                if totals[target] < cost * (1 - 1e-9):
                    chosen[place], cost, moved = target, float(totals[target]), True
        return GearSet(tuple(sorted({self._points[index] for index in chosen})), cost)

    def _index(self, gear: Gear) -> int:
        return gear[0] * self._num_columns + gear[1]

    def _total(self, state_costs: Floats) -> float:
        return float(state_costs @ self._weights)
