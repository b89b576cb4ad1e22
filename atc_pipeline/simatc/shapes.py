"""`--input_shape` and `--dynamic_dims`: text to numbers, and the rules between them.

Owns the codes of malformed shapes and gears. Whether they fit the model is `model_checks.py`.

Source: hicann/ge base/common/option_utils.cc (CheckDynamicDimsInputShapeValid and others),
compiler/graph/preprocess/multi_batch_options.cc (gears), each rule by its code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from atc_pipeline.atc_table import load_atc_table
from atc_pipeline.simatc.refusal import AtcRefusalError, NotSimulatedError

Shapes = Mapping[str, tuple[int, ...]]
_OPEN = -1
_DIM = re.compile(r"-1|[0-9]{1,18}")
_MIN_GEARS = 2


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """What the OM is compiled for.

    Attributes:
        input_shapes: By input, in the order of --input_shape; -1 where gears decide.
        gears: A value for each -1; empty for a static OM.
    """

    input_shapes: Shapes
    gears: tuple[tuple[int, ...], ...]

    def gear_shapes(self, gear: tuple[int, ...]) -> Shapes:
        """The inputs' shapes in one gear."""
        values = iter(gear)
        return {
            name: tuple([next(values) if dim == _OPEN else dim for dim in dims])
            for name, dims in self.input_shapes.items()
        }

    @property
    def all_shapes(self) -> list[Shapes]:
        """The inputs' shapes in each gear; one for a static OM."""
        return [self.gear_shapes(gear) for gear in self.gears or ((),)]


def parse_shapes(input_shape: str, dynamic_dims: str) -> ShapeRequest:
    """Read both flags.

    Raises:
        AtcRefusalError: Malformed, or they do not fit each other.
        NotSimulatedError: Shapes that stay open until run time.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for part in input_shape.split(";") if input_shape else []:
        name, dims = _parse_input(part, bool(dynamic_dims))
        if name in shapes:
            raise AtcRefusalError("E10002", f"--input_shape names {name!r} twice")
        shapes[name] = dims
    num_open = sum(dims.count(_OPEN) for dims in shapes.values())
    if not dynamic_dims:
        if num_open:
            raise NotSimulatedError("-1 in --input_shape without gears is not simulated")
        return ShapeRequest(shapes, ())
    if not num_open:
        raise AtcRefusalError("E10040", "--dynamic_dims is given, but --input_shape has no -1")
    return ShapeRequest(shapes, _parse_gears(dynamic_dims, num_open))


def _parse_input(part: str, has_gears: bool) -> tuple[str, tuple[int, ...]]:
    name, colon, text = part.rpartition(":")
    if not name or not colon:
        raise AtcRefusalError("E10002", f"--input_shape has {part!r}, wanted name:d1,d2")
    if "~" in text:
        if has_gears:
            raise AtcRefusalError("E10040", f"--input_shape has the range {part!r} beside gears")
        raise NotSimulatedError(f"the range {part!r} in --input_shape is not simulated")
    words = text.split(",") if text else []
    for word in words:
        if not _DIM.fullmatch(word):
            raise AtcRefusalError("E10002", f"--input_shape has {part!r}, wanted name:d1,d2")
        if int(word) == 0:
            raise AtcRefusalError(
                "E10011", f"--input_shape has {part!r}, wanted dimensions above 0"
            )
    return name, tuple(int(word) for word in words)


def _parse_gears(text: str, num_open: int) -> tuple[tuple[int, ...], ...]:
    gears = [_parse_gear(part) for part in text.split(";")]
    most = load_atc_table().max_gears
    if len(gears) < _MIN_GEARS:
        raise AtcRefusalError("E10035", f"--dynamic_dims has {len(gears)} gear, wanted 2 or more")
    if len(gears) > most:
        raise AtcRefusalError(
            "E10036", f"--dynamic_dims has {len(gears)} gears, wanted {most} at most"
        )
    if len({len(gear) for gear in gears}) > 1:
        raise AtcRefusalError("E10037", f"--dynamic_dims {text!r} has gears of different lengths")
    if len(set(gears)) < len(gears):
        raise AtcRefusalError("E10039", f"--dynamic_dims {text!r} has a gear twice")
    if len(gears[0]) != num_open:
        code = "E10045" if num_open > len(gears[0]) else "E10046"
        raise AtcRefusalError(
            code, f"--dynamic_dims has {len(gears[0])} values a gear, --input_shape {num_open} -1"
        )
    return tuple(gears)


def _parse_gear(part: str) -> tuple[int, ...]:
    words = part.split(",")
    if not all(re.fullmatch(r"[0-9]{1,18}", word) and int(word) for word in words):
        raise AtcRefusalError(
            "E10038", f"--dynamic_dims has the gear {part!r}, wanted values above 0"
        )
    return tuple(int(word) for word in words)
