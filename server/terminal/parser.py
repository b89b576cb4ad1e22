"""ClientParser: how `om-client` reads its command line and words what is wrong with it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn, TypeAlias


class ClientParser(argparse.ArgumentParser):
    """Ends the process with 2, and one line, on wrong usage."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        self.exit(2, f"om-client: {message}; {self.prog} --help lists all flags\n")

    def refuse_unknown(self, rest: Sequence[str]) -> NoReturn:
        """End with 2, naming what nobody reads and the nearest flag."""
        near = difflib.get_close_matches(rest[0], self._option_string_actions, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")


Commands: TypeAlias = "argparse._SubParsersAction[ClientParser]"
"""What sub-commands are added to."""
