"""Figures of a run, each with its definition."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omruntime.traffic.quantiles import quantile
from server.terminal.bench.goodput import Goodput
from server.terminal.bench.records import Outcome, Record

DEFINITIONS = {
    "due": "when a request should be sent: its scheduled arrival (open loop), the end of the "
    "answer before it plus the time to think (later turns), or when its user became free (closed "
    "loop). What it waits in this client from then on counts: no coordinated omission",
    "TTFT": "from due to the first event that brings a token",
    "TPOT": "from the first token to the last, divided by the tokens after the first; one value "
    "for each answer of two tokens or more that came in two events or more",
    "ITL": "inter-token latency: from one event that brings tokens to the next; one value for "
    "each pair of them in all answers. An event may bring several tokens",
    "E2EL": "from due to the end of the answer",
    "duration": "from the start of the load, which is the first user's or the arrival clock's "
    "second 0, to the end of the last answer",
    "goodput": "requests a second that were answered in full and met every target",
    "rejected": "refused for a full queue or a reached limit: RESOURCE_EXHAUSTED, or HTTP 429",
    "failed": "all else that is no whole answer",
    "p50 p90 p99": "the measured value behind that share of all, none interpolated",
}
"""What each word of the report means. Latencies are of answers that are whole."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One quantity, in the unit of its values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def summary_of(values: Iterable[float]) -> Summary:
    """Sum values up; of none everything is 0."""
    ascending = sorted(values)
    mean = statistics.fmean(ascending) if ascending else 0.0
    shares = (quantile(ascending, share) for share in (0.5, 0.9, 0.99, 1.0))
    return Summary(len(ascending), mean, *shares)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gives; latencies in milliseconds, of whole answers.

    Attributes:
        duration_s: See `DEFINITIONS`, as for the others.
        errors: How many requests ended so, by code, of rejected and failed ones.
        examples: One message for each code.
        num_planned: Requests that there were to send.
        num_unsent: Turns behind one that was rejected or failed.
        num_short: Whole answers with fewer tokens than they could have had.
        num_uncounted: Whole answers of which the server gave no token counts.
        num_prompt_tokens: As servers counted; 0 when none did.
        num_cached_tokens: None when the server does not say.
        tokens_an_event: Mean number of tokens that an event brought.
        goodput: None without targets.
    """

    duration_s: float
    num_planned: int
    num_ok: int
    num_rejected: int
    num_failed: int
    num_unsent: int
    num_short: int
    num_uncounted: int
    errors: dict[str, int]
    examples: dict[str, str]
    num_prompt_tokens: int
    num_cached_tokens: int | None
    num_output_tokens: int
    tokens_an_event: float
    ttft_ms: Summary
    tpot_ms: Summary
    itl_ms: Summary
    e2el_ms: Summary
    goodput: float | None

    @property
    def num_sent(self) -> int:
        """All requests that were sent."""
        return self.num_ok + self.num_rejected + self.num_failed

    @property
    def requests_a_second(self) -> float:
        """Whole answers in the duration."""
        return self.num_ok / self.duration_s if self.duration_s else 0.0

    @property
    def output_tokens_a_second(self) -> float:
        """Tokens of whole answers in the duration."""
        return self.num_output_tokens / self.duration_s if self.duration_s else 0.0

    @property
    def prompt_tokens_a_second(self) -> float:
        """Prompt tokens, cached ones too, of whole answers in the duration."""
        return self.num_prompt_tokens / self.duration_s if self.duration_s else 0.0


def figures_of(records: Sequence[Record], num_planned: int, goodput: Goodput) -> Figures:
    """Sum a run up.

    Args:
        records: Of every request that was sent.
        num_planned: Requests that there were to send.
    """
    whole = [record for record in records if record.outcome is Outcome.OK]
    bad = [record for record in records if record.outcome is not Outcome.OK]
    duration_s = max((record.end_s for record in records), default=0.0)
    cached = [record.counts.num_cached_tokens for record in whole]
    known = [count for count in cached if count is not None]
    num_events = sum(len(record.events) for record in whole)
    num_output_tokens = sum(record.num_tokens for record in whole)
    num_good = sum(goodput.is_met(record) for record in whole)
    return Figures(
        duration_s=duration_s,
        num_planned=num_planned,
        num_ok=len(whole),
        num_rejected=sum(record.outcome is Outcome.REJECTED for record in bad),
        num_failed=sum(record.outcome is Outcome.FAILED for record in bad),
        num_unsent=num_planned - len(records),
        num_short=sum(record.num_tokens < record.num_asked_tokens for record in whole),
        num_uncounted=sum(record.counts.num_output_tokens is None for record in whole),
        errors=dict(Counter(_code(record) for record in bad)),
        examples={_code(record): record.error for record in reversed(bad)},
        num_prompt_tokens=sum(record.counts.num_prompt_tokens or 0 for record in whole),
        num_cached_tokens=sum(known) if known else None,
        num_output_tokens=num_output_tokens,
        tokens_an_event=num_output_tokens / num_events if num_events else 0.0,
        ttft_ms=_ms(r.ttft_s for r in whole),
        tpot_ms=_ms(r.tpot_s for r in whole),
        itl_ms=_ms(gap for r in whole for gap in r.gaps_s),
        e2el_ms=_ms(r.e2el_s for r in whole),
        goodput=num_good / duration_s if goodput.is_set and duration_s else None,
    )


def _code(record: Record) -> str:
    return record.error.partition(":")[0]


def _ms(seconds: Iterable[float | None]) -> Summary:
    return summary_of(s * 1e3 for s in seconds if s is not None)
