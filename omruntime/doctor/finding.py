"""Findings: what one check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How bad a finding is; only PROBLEM makes the machine unfit."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found, and what to do about it.

    Attributes:
        found: One sentence of facts: what was got, and what was wanted where they differ.
        remedy: What to do; empty when there is nothing to do.
    """

    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of a named check.

    Attributes:
        check_id: Stable, for scripts.
        source: The vendor's document behind the check; empty for our own rules.
    """

    check_id: str
    title: str
    verdict: Verdict
    source: str


def ok(found: str) -> Verdict:
    """All is well."""
    return Verdict(Status.OK, found)


def warning(found: str, remedy: str) -> Verdict:
    """It may work, or it is not known whether it does."""
    return Verdict(Status.WARNING, found, remedy)


def problem(found: str, remedy: str) -> Verdict:
    """It will not work."""
    return Verdict(Status.PROBLEM, found, remedy)


def not_applicable(found: str) -> Verdict:
    """There is nothing to check here."""
    return Verdict(Status.NOT_APPLICABLE, found)
