"""BenchResult: everything that a report can show of one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from server.terminal.bench.client_health import ClientHealth
from server.terminal.bench.metrics import DEFINITIONS, Figures
from server.terminal.bench.records import Record


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One run.

    Attributes:
        shown: What was loaded and how: words and what they are.
        goodput_targets: As on the command line; empty without any.
        notes: What a reader must know to read the figures.
    """

    shown: dict[str, str]
    goodput_targets: str
    figures: Figures
    health: ClientHealth
    records: Sequence[Record]
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """Why the client was the limit; empty when it was not."""
        figures = self.figures
        return self.health.warnings(figures.ttft_ms.p50 / 1e3, figures.itl_ms.p50 / 1e3)


def to_plain(result: BenchResult) -> dict[str, object]:
    """What --json prints: figures, the client's own, definitions, and every request."""
    figures = result.figures
    return {
        "run": result.shown,
        "figures": {
            **dataclasses.asdict(figures),
            "requests_a_second": figures.requests_a_second,
            "output_tokens_a_second": figures.output_tokens_a_second,
            "prompt_tokens_a_second": figures.prompt_tokens_a_second,
            "goodput_targets": result.goodput_targets,
        },
        "client": {**dataclasses.asdict(result.health), "warnings": result.warnings},
        "notes": list(result.notes),
        "definitions": DEFINITIONS,
        "requests": [_request(record) for record in result.records],
    }


def _request(record: Record) -> dict[str, object]:
    plain: dict[str, object] = dataclasses.asdict(record)
    del plain["counts"]
    counts: dict[str, object] = dataclasses.asdict(record.counts)
    return plain | counts | {"outcome": record.outcome.value}
