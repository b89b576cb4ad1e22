"""Goodput: which requests met the latencies that were promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omruntime.errors import RequestError
from server.terminal.bench.records import Record

NAMES = ("ttft", "tpot", "e2el")
_WANTED = f"NAME:MILLISECONDS with a name of {', '.join(NAMES)}, such as ttft:200 tpot:50"


@dataclass(frozen=True, slots=True)
class Goodput:
    """Targets in milliseconds; None: any time will do."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is any target."""
        return self != Goodput()

    def is_met(self, record: Record) -> bool:
        """Whether a request was answered in full and in time; no TPOT is in time."""
        if record.ttft_s is None:
            return False
        seen = ((self.ttft, record.ttft_s), (self.tpot, record.tpot_s), (self.e2el, record.e2el_s))
        return all(most is None or s is None or s * 1e3 <= most for most, s in seen)

    def __str__(self) -> str:
        given = ((name, getattr(self, name)) for name in NAMES)
        return " ".join(f"{name}:{most:g}" for name, most in given if most is not None)


def parse_goodput(texts: Sequence[str]) -> Goodput:
    """Targets as vLLM's `--goodput` has them.

    Raises:
        RequestError: One has another form, or comes twice.
    """
    targets: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition(":")
        try:
            most = float(number)
        except ValueError:
            most = 0.0
        if name not in NAMES or name in targets or not 0.0 < most < float("inf"):
            raise RequestError(f"--goodput has {text!r}, wanted each time once: {_WANTED}")
        targets[name] = most
    return Goodput(**targets)
