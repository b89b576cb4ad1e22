"""CommandParser: how a program with subcommands reads its command line, and words what is wrong."""

from __future__ import annotations

import argparse
import difflib
import itertools
from collections.abc import Sequence
from typing import NoReturn, TypeAlias

# Below it a flag of four letters is "near" to every other one: --soc to --atc at 0.6.
_LIKENESS = 0.7


class CommandParser(argparse.ArgumentParser):
    """Ends the process with 2, and one line, on wrong usage."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        program = self.prog.partition(" ")[0]
        self.exit(2, f"{program}: {message}; {self.prog} --help lists all flags\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does, but flags that nobody knows come before those that are missing."""
        flags = itertools.takewhile(lambda text: text != "--", args)
        unknown = [text for text in flags if self._is_unknown_flag(text)]
        if unknown and self._subparsers is None:
            self.refuse_unknown(unknown)
        return super().parse_known_args(args, namespace)

    def _is_unknown_flag(self, text: str) -> bool:
        """By argparse's own rules: a text with a space in it is a value."""
        name = text.partition("=")[0]
        is_flag = text.startswith("--") and " " not in text
        return is_flag and name not in self._option_string_actions

    def refuse_unknown(self, rest: Sequence[str]) -> NoReturn:
        """End with 2, naming what nobody reads and the nearest flag."""
        name = rest[0].partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=_LIKENESS)
        hint = f"; did you mean {near[0]}?" if near else ""
        self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")


Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"
"""What sub-commands are added to."""
