"""Options: flags and environment variables that derive from the fields of a dataclass.

A field `max_num_seqs` is the flag `--max-num-seqs` and the variable `OMSERVE_MAX_NUM_SEQS`. Flags
and variables hold text, converted by the field's type here, in one place for both.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omruntime.errors import ConfigError

ENV_PREFIX = "OMSERVE_"

OptionValue = str | int | float | bool | Path | None

_WANTED = {
    int: "a whole number",
    float: "a number",
    bool: "one of 1, true, yes, on, 0, false, no, off",
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting, however it is given.

    Attributes:
        name: The field's name.
        kind: str, int, float, bool or Path.
        default: The field's default; `dataclasses.MISSING` when it must be given.
        help: One line with unit and reason.
    """

    name: str
    kind: type
    default: object
    help: str

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is dataclasses.MISSING

    @property
    def flag(self) -> str:
        """As on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """The default as a human would type it; empty when unset."""
        if self.default is None or self.is_required:
            return ""
        return str(self.default).lower() if self.kind is bool else str(self.default)

    def convert(self, text: str, source: str) -> OptionValue:
        """Turn text into the field's type.

        Args:
            text: As given.
            source: The flag or variable it came from, for the message.

        Raises:
            ConfigError: It is not of that type.
        """
        try:
            if self.kind is bool:
                return _parse_bool(text)
            if self.kind is str and not text:
                raise ValueError("empty")
            value = self.kind(text)
        except ValueError as error:
            wanted = _WANTED.get(self.kind, "text")
            hint = "" if text else "; leave it out for the default"
            if text.startswith(("tcp://", "udp://")):
                hint = (
                    "; Kubernetes sets this for a Service of that name: rename the Service, or "
                    "set enableServiceLinks: false in the pod"
                )
            raise ConfigError(f"{source} is {text!r}, wanted {wanted}{hint}") from error
        assert isinstance(value, str | int | float | Path)
        return value


def _parse_bool(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def options_of(cls: type, help_by_name: Mapping[str, str]) -> tuple[Option, ...]:
    """One option for each scalar field of a dataclass, in order.

    Args:
        cls: The dataclass.
        help_by_name: Help for the fields whose metadata has none.
    """
    hints = typing.get_type_hints(cls)
    options = []
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            continue
        help_text = field.metadata.get("help") or help_by_name[field.name]
        options.append(Option(field.name, _scalar_of(hints[field.name]), field.default, help_text))
    return tuple(options)


def _scalar_of(hint: object) -> type:
    """The type behind `X` or `X | None`."""
    if isinstance(hint, types.UnionType):
        hint = next(a for a in typing.get_args(hint) if a is not types.NoneType)
    assert isinstance(hint, type), f"no flag for a field of type {hint}"
    return hint
