"""What a probe says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Result(Enum):
    """How a probe ended; REFUTED and NO_ANSWER make the run fail."""

    CONFIRMED = "confirmed"
    MEASURED = "measured"
    REFUTED = "refuted"
    NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a probe ended, and what it saw: the figures, codes or bytes."""

    result: Result
    seen: str


def judge(holds: bool, seen: str) -> Outcome:
    """Whether what was assumed holds."""
    return Outcome(Result.CONFIRMED if holds else Result.REFUTED, seen)


def measured(seen: str) -> Outcome:
    """A figure that nothing depends on being right or wrong."""
    return Outcome(Result.MEASURED, seen)


def no_answer(seen: str) -> Outcome:
    """The probe could not run or did not come to an end."""
    return Outcome(Result.NO_ANSWER, seen)
