"""One chart as inline SVG: axes with round numbers, and a line for each series."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from server.terminal.bench.curves import Point

WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 42
_NUM_TICKS = 5
_STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


def chart(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[Point]]) -> str:
    """A figure with caption; classes `line0`, `line1`, … have the colours, from the page.

    Args:
        series: Points by name, in the order of their x; both axes begin at 0.
    """
    shown = {name: points for name, points in series.items() if points}
    parts = [f"<figure><figcaption>{escape(title)}</figcaption>"]
    if not shown:
        return f"{parts[0]}<p>nothing was measured</p></figure>"
    most_x, most_y = (
        _round_up(max(point[axis] for points in shown.values() for point in points))
        for axis in (0, 1)
    )
    parts.append(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
    )
    parts += _grid(most_x, most_y)
    parts += _labels(x_label, y_label)
    for number, points in enumerate(shown.values()):
        path = " ".join(f"{_x(x, most_x):.1f},{_y(y, most_y):.1f}" for x, y in points)
        parts.append(f'<polyline class="line{number}" points="{path}"/>')
    parts.append("</svg>")
    if len(shown) > 1:
        keys = (f'<span class="key{n}">{escape(name)}</span>' for n, name in enumerate(shown))
        parts.append(f"<p>{' '.join(keys)}</p>")
    parts.append("</figure>")
    return "".join(parts)


def _grid(most_x: float, most_y: float) -> Iterator[str]:
    for i in range(_NUM_TICKS + 1):
        x, y = most_x * i / _NUM_TICKS, most_y * i / _NUM_TICKS
        left, down = _x(x, most_x), _y(y, most_y)
        yield f'<path class="grid" d="M{left:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>'
        yield f'<path class="grid" d="M{_LEFT} {down:.1f}H{WIDTH - _RIGHT}"/>'
        yield f'<text x="{left:.1f}" y="{HEIGHT - _BOTTOM + 15}" class="middle">{x:g}</text>'
        yield f'<text x="{_LEFT - 6}" y="{down + 4:.1f}" class="end">{y:g}</text>'


def _labels(x_label: str, y_label: str) -> Iterator[str]:
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 6}" class="middle">{escape(x_label)}</text>'
    up = (_TOP + HEIGHT - _BOTTOM) / 2
    yield (
        f'<text transform="translate(12 {up}) rotate(-90)" class="middle">{escape(y_label)}</text>'
    )


def _x(value: float, most: float) -> float:
    return _LEFT + value / most * (WIDTH - _LEFT - _RIGHT)


def _y(value: float, most: float) -> float:
    return HEIGHT - _BOTTOM - value / most * (HEIGHT - _TOP - _BOTTOM)


def _round_up(value: float) -> float:
    """The next number of which all ticks are short ones."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value * (1 - 1e-9))
