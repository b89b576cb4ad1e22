"""What simatc refuses, and with which of atc's codes."""

from __future__ import annotations

from omruntime.errors import AtcError


class AtcRefusalError(AtcError):
    """atc would refuse this, too.

    Attributes:
        code: As atc prints it; empty for a flag that it does not know, which has none.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotSimulatedError(AtcError):
    """atc may take this, simatc does not simulate it."""
