"""StageProgress: one line for each stage of a command, with the time it took."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TextIO


class StageProgress:
    """Writes `[2] tracing ... 12.3 s`; call it at the start of each stage, inside `with`."""

    def __init__(self, stream: TextIO, num_stages: int | None = None, label: str = "") -> None:
        """Count from 1.

        Args:
            label: In front of the number, where two parts of a command count for themselves.
        """
        self._stream = stream
        self._label = label
        self._of = "" if num_stages is None else f"/{num_stages}"
        self._count = 0
        self._started_s: float | None = None
        self._is_noted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the last stage; after an error without a time, as it did not get there."""
        if kind is None:
            self._finish()
        elif self._started_s is not None and not self._is_noted:
            self._write("\n")

    def __call__(self, stage: str) -> None:
        """End the running stage and begin the one that `stage` names."""
        self._finish()
        self._count += 1
        self._started_s = time.monotonic()
        self._write(f"[{self._label}{self._count}{self._of}] {stage} ... ")

    def note(self, line: str) -> None:
        """Say something within the running stage, on a line of its own."""
        self._write(f"    {line}\n" if self._is_noted else f"\n    {line}\n")
        self._is_noted = True

    def _finish(self) -> None:
        if self._started_s is not None:
            indent = "    " if self._is_noted else ""
            self._write(f"{indent}{time.monotonic() - self._started_s:.1f} s\n")
            self._started_s = None
            self._is_noted = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
