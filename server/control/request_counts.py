"""RequestCounts: what has become of all requests since start, and how long they took.

One count for whoever shows it: Prometheus' route, `WatchLoad` and the live page. Fits
`RequestObserver`; for the event loop alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from omruntime.errors import OmError
from omruntime.sequence import FinishReason
from server.request_tally import Arrival, RequestTally

# Seconds; a token of a small model on a CPU takes 20 ms, a long answer minutes.
TOKEN_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
REQUEST_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Histogram:
    """Durations counted by bounds.

    Attributes:
        bounds_s: Upper bounds, inclusive, in order.
        counts: Durations up to each bound and above the one before; the last, one more than
            there are bounds, are those above all.
        sum_s: All together.
    """

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds


class RequestCounts:
    """Counts requests as they go on and end.

    Attributes:
        num_finished: Answers, by why they ended.
        num_refused: Requests that were not accepted, by the class of the error.
        num_prompt_tokens, num_output_tokens: Of requests that were accepted and are over.
        time_to_first_token, inter_token: As the front end saw it, at once.
        queue, prefill, decode, request: Parts of an ended answer, and all of it, as the engine
            saw them.
    """

    def __init__(self) -> None:
        self.num_finished = Counter({reason.value: 0 for reason in FinishReason})
        self.num_refused: Counter[str] = Counter()
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.time_to_first_token = Histogram(REQUEST_BOUNDS_S)
        self.inter_token = Histogram(TOKEN_BOUNDS_S)
        self.queue = Histogram(REQUEST_BOUNDS_S)
        self.prefill = Histogram(REQUEST_BOUNDS_S)
        self.decode = Histogram(REQUEST_BOUNDS_S)
        self.request = Histogram(REQUEST_BOUNDS_S)

    def arrived(self, arrival: Arrival) -> None:
        """Count what an answer's next tokens took."""
        histogram = self.time_to_first_token if arrival.is_first else self.inter_token
        histogram.observe(arrival.seconds)

    def finished(self, tally: RequestTally) -> None:
        """Count an ended request."""
        self.num_finished.update(reason.value for reason in tally.reasons)
        self.num_prompt_tokens += tally.num_prompt_tokens
        self.num_output_tokens += tally.num_output_tokens
        for end in tally.ends.values():
            timings = end.timings
            if timings is None:
                continue
            self.queue.observe(timings.queue_s)
            self.prefill.observe(timings.prefill_s)
            self.decode.observe(timings.decode_s)
            self.request.observe(timings.queue_s + timings.prefill_s + timings.decode_s)

    def refused(self, error: OmError) -> None:
        """Count a request that was not accepted."""
        self.num_refused[type(error).__name__.removesuffix("Error")] += 1
