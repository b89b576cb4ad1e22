"""The options, exclusions and error codes of the `atc` command.

Owns the reading of `data/atc_options.json`, which the builder of command lines and `simatc`
share. What follows from a refusal is theirs.

Source: hicann/ge api/atc/{atc_flags,cmd_flag_info}.cc and docs/zh/user_guides/atc_tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypedDict, cast

_CODE = re.compile(r"\b[EWI][0-9A-Z][0-9]{4}\b")


class _OptionEntry(TypedDict, total=False):
    type: str
    meaning: str
    default: str
    allowed: list[str]
    bad_value: str
    since: str


class _ExclusiveEntry(TypedDict):
    names: list[str]
    code: str


class _NeedEntry(TypedDict, total=False):
    name: str
    needs: str
    value: str
    code: str


class _Document(TypedDict):
    options: dict[str, _OptionEntry]
    exclusive: list[_ExclusiveEntry]
    needs: list[_NeedEntry]
    max_gears: int
    soc_versions: list[str]
    error_codes: dict[str, str]
    modules: dict[str, str]


@dataclass(frozen=True, slots=True)
class AtcOption:
    """One flag, its name without the dashes.

    Attributes:
        kind: `string`, `int` or `bool`.
        default: What an absent flag means; empty when its manual page names none.
        allowed: The values that are accepted; None where any text may be.
        bad_value_code: The error of a value outside of `allowed`.
        since: The release that brought it; empty for those of v8.5.0.
    """

    name: str
    kind: str
    default: str
    allowed: tuple[str, ...] | None
    bad_value_code: str
    since: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why `atc` refuses a command line, with the code it would print."""

    code: str
    reason: str


class AtcTable:
    """All of the table; immutable and safe to share between threads."""

    def __init__(self, document: _Document) -> None:
        self.options: Mapping[str, AtcOption] = {
            name: _option(name, entry) for name, entry in document["options"].items()
        }
        self.soc_versions = tuple(document["soc_versions"])
        self.max_gears = document["max_gears"]
        self._exclusive = document["exclusive"]
        self._needs = document["needs"]
        self._error_codes = document["error_codes"]
        self._modules = document["modules"]

    def find_value_refusal(self, name: str, value: str) -> Refusal | None:
        """What is wrong with one flag by itself; None when nothing is.

        Args:
            name: Without dashes. An unknown one gives the code `""`: `atc` prints a line on
                stderr then, and no code.
        """
        option = self.options.get(name)
        if option is None:
            return Refusal("", f"--{name} is not a flag of atc")
        if option.kind == "int" and not re.fullmatch(r"[+-]?[0-9]+", value):
            return Refusal("E10003", f"--{name} is {value!r}, wanted an integer")
        if option.allowed is not None and value not in option.allowed:
            wanted = ", ".join(option.allowed)
            return Refusal(option.bad_value_code, f"--{name} is {value!r}, wanted one of {wanted}")
        return None

    def find_refusals(self, flags: Mapping[str, str]) -> list[Refusal]:
        """All that is wrong with a set of flags: names, values, exclusions, missing partners.

        Source: hicann/ge docs/zh/user_guides/atc_tools/CLI_options, the page of each flag.
        """
        found = [self.find_value_refusal(name, value) for name, value in flags.items()]
        refusals = [refusal for refusal in found if refusal is not None]
        for exclusive in self._exclusive:
            given = [name for name in exclusive["names"] if flags.get(name)]
            if len(given) > 1:
                names = " and ".join(f"--{name}" for name in given)
                refusals.append(Refusal(exclusive["code"], f"{names} exclude each other"))
        for need in self._needs:
            if flags.get(need["name"]) and not _is_met(need, flags):
                wanted = f"--{need['needs']}" + (f"={need['value']}" if "value" in need else "")
                refusals.append(Refusal(need["code"], f"--{need['name']} needs {wanted}"))
        return refusals

    def meaning_of(self, code: str) -> str:
        """What an error code says, in words; empty for one that no table has.

        A code is a level (E, W, I), a module and four digits, 9000 and above of them internal.
        Source: the CANN maintenance reference, error code format.
        """
        known = self._error_codes.get(code)
        if known is not None:
            return known
        module = self._modules.get(code[1:2])
        if module is None:
            return ""
        return f"internal error of {module}" if code[2:3] == "9" else f"an error of {module}"


def find_error_codes(text: str) -> tuple[str, ...]:
    """The error codes in a text of `atc`, each once, in order of appearance."""
    return tuple(dict.fromkeys(code for code in _CODE.findall(text) if code.startswith("E")))


@cache
def load_atc_table() -> AtcTable:
    """The table of this package; read once."""
    text = files("atc_pipeline").joinpath("data", "atc_options.json").read_text(encoding="utf-8")
    return AtcTable(cast(_Document, json.loads(text)))


def _option(name: str, entry: _OptionEntry) -> AtcOption:
    allowed = entry.get("allowed")
    return AtcOption(
        name=name,
        kind=entry["type"],
        default=entry.get("default", ""),
        allowed=None if allowed is None else tuple(allowed),
        bad_value_code=entry.get("bad_value", "E10001"),
        since=entry.get("since", ""),
        meaning=entry["meaning"],
    )


def _is_met(need: _NeedEntry, flags: Mapping[str, str]) -> bool:
    given = flags.get(need["needs"])
    return given == need["value"] if "value" in need else bool(given)
