"""Peer: whatever answers the workloads, in this process or behind a port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bench.workloads import SizedWorkload


@dataclass(frozen=True, slots=True)
class Run:
    """One workload answered.

    Attributes:
        ttft_s: From each request to its first token, where that was seen.
    """

    seconds: float
    ttft_s: tuple[float, ...] = ()


class Peer(Protocol):
    """Answers greedily, each prompt to its full length."""

    name: str

    def run(self, work: SizedWorkload) -> Run:
        """Answer all prompts of a workload, as many at a time as it says."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...
