"""The signatures of pyACL's functions, and the parsing of arguments by them.

Owns `data/signatures.json`: for all functions of the extension module their argument formats
(PyArg_ParseTuple letters), what they return, whether they release the GIL, and which of them the
manuals list as unsupported on 310P.

Source: hicann/runtime python/pyACL (every wrapper), docs/zh/api_ref (support on 310P).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

# Formats without a range check wrap; the others raise beyond their range.
_WRAPPING_BITS = {"k": 64, "K": 64, "I": 32, "H": 16, "B": 8}
_CHECKED_RANGES = {
    "i": (-(1 << 31), (1 << 31) - 1),
    "l": (-(1 << 63), (1 << 63) - 1),
    "L": (-(1 << 63), (1 << 63) - 1),
    "h": (-(1 << 15), (1 << 15) - 1),
    "b": (0, 255),
}
_FAILED_VALUES: dict[str, object] = {"s": "", "O": {}, "f": 0.0}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument; `format` is a letter of PyArg_ParseTuple."""

    name: str
    format: str
    is_optional: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """One function of the module, named without the leading `acl.`.

    Attributes:
        returns: (name, format) of each returned value; a status stands last, named `ret`.
        releases_gil: Whether other Python threads run while it blocks.
        is_unsupported: Whether 310P does not offer it.
    """

    name: str
    parameters: tuple[Parameter, ...]
    returns: tuple[tuple[str, str], ...]
    releases_gil: bool
    is_unsupported: bool

    @property
    def num_required(self) -> int:
        """Arguments that must be given."""
        return sum(not p.is_optional for p in self.parameters)

    @property
    def has_status(self) -> bool:
        """Whether the last returned value is a status."""
        return bool(self.returns) and self.returns[-1][0] == "ret"

    def parse(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """The arguments as the wrapper would hand them to C.

        Raises:
            TypeError: Keywords, a wrong number, or a value that the format refuses. NumPy
                integers are refused for every format; CPython itself takes them for some.
        """
        if kwargs or not self.num_required <= len(args) <= len(self.parameters):
            raise self._parse_failed()
        return [self._value(p.format, arg) for p, arg in zip(self.parameters, args, strict=False)]

    def pack(self, values: tuple[object, ...]) -> object:
        """What Python gets for a call that succeeded: a tuple, or a bare value when alone."""
        full = (*values, 0) if self.has_status else values
        assert len(full) == len(self.returns), f"{self.name} returned {full}"
        return full if len(full) > 1 else (full[0] if full else None)

    def pack_failure(self, code: int) -> object:
        """The same for a call that failed: zeros, empty values, and the code."""
        values = tuple(_FAILED_VALUES.get(letter, 0) for _, letter in self.returns)
        if self.has_status:
            values = (*values[:-1], code)
        return values if len(values) > 1 else (values[0] if values else None)

    def _value(self, letter: str, value: object) -> object:
        if letter == "O":
            return value
        if letter == "s":
            if isinstance(value, str) and "\0" not in value:
                return value
        elif letter == "f":
            if isinstance(value, int | float):
                return float(value)
        elif isinstance(value, int):
            return self._integer(letter, value)
        raise self._parse_failed()

    def _integer(self, letter: str, value: int) -> int:
        if letter in _WRAPPING_BITS:
            return value & ((1 << _WRAPPING_BITS[letter]) - 1)
        least, most = _CHECKED_RANGES[letter]
        if not least <= value <= most:
            raise self._parse_failed()
        return value

    def _parse_failed(self) -> TypeError:
        return TypeError(f"acl.{self.name} args parse failed")


@functools.cache
def load_signatures() -> Mapping[str, Signature]:
    """All functions by name, such as `rt.malloc`."""
    text = (files(__package__) / "data" / "signatures.json").read_text(encoding="utf-8")
    return {name: _signature(name, entry) for name, entry in json.loads(text).items()}


def _signature(name: str, entry: Mapping[str, str | bool]) -> Signature:
    parameters = []
    for item in str(entry["args"]).split():
        argument, _, letter = item.partition(":")
        parameters.append(Parameter(argument, letter.rstrip("?"), letter.endswith("?")))
    returns = [item.partition(":") for item in str(entry["returns"]).split()]
    return Signature(
        name,
        tuple(parameters),
        tuple((value, letter) for value, _, letter in returns),
        bool(entry.get("releases_gil")),
        bool(entry.get("is_unsupported_on_310p")),
    )
