"""GET /metrics: what Prometheus scrapes, in base units, under `omserve_`.

Requests are counted where every front end passes; the engine's state is read at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from omruntime.errors import OmError
from omruntime.outputs import EngineLoad
from server.lifecycle import Lifecycle
from server.request_tally import RequestTally

# Seconds; a token of a small model on a CPU takes 20 ms, a long answer minutes.
_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

_GAUGES = {
    "num_running": ("requests_running", "Sequences that hold KV blocks."),
    "num_waiting": ("requests_waiting", "Sequences that wait for admission."),
    "num_waiting_tokens": ("tokens_waiting", "Known tokens of waiting sequences."),
    "num_referenced_blocks": ("kv_blocks_referenced", "Blocks that live sequences hold."),
    "num_cached_blocks": ("kv_blocks_cached", "Blocks that the prefix cache can give out."),
    "num_total_blocks": ("kv_blocks_total", "Blocks that can be handed out."),
}
_COUNTERS = {
    "num_preemptions": ("preemptions", "Sequences that lost their blocks and start again."),
    "num_prefix_hit_tokens": ("prefix_cache_hit_tokens", "Prompt tokens that were not computed."),
}


class RequestMetrics:
    """Counts requests as they end; fits `RequestObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"omserve_{name}", text, buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"omserve_{name}", text, labels, registry=registry)

        self._finished = counter("requests_finished", "Answers by why they ended.", "reason")
        self._refused = counter("requests_refused", "Requests not accepted, by error.", "error")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended requests.")
        self._output_tokens = counter("output_tokens", "Generated tokens of ended requests.")
        self._first = histogram(
            "time_to_first_token_seconds", "Submit to first token.", _REQUEST_SECONDS
        )
        self._gap = histogram(
            "inter_token_seconds", "Between two deltas of an answer.", _TOKEN_SECONDS
        )
        self._parts = {
            "queue_s": histogram("queue_seconds", "Submit to first step.", _REQUEST_SECONDS),
            "prefill_s": histogram(
                "prefill_seconds", "First step to first token.", _REQUEST_SECONDS
            ),
            "decode_s": histogram("decode_seconds", "First to last token.", _REQUEST_SECONDS),
        }
        self._whole = histogram("request_seconds", "Submit to last token.", _REQUEST_SECONDS)

    def finished(self, tally: RequestTally) -> None:
        """Count an ended request."""
        for reason in tally.reasons:
            self._finished.labels(reason.value).inc()
        self._prompt_tokens.inc(tally.num_prompt_tokens)
        self._output_tokens.inc(tally.num_output_tokens)
        for gap_s in tally.gaps_s:
            self._gap.observe(gap_s)
        for end in tally.ends.values():
            timings = end.timings
            if timings is None:
                continue
            for name, histogram in self._parts.items():
                histogram.observe(getattr(timings, name))
            self._first.observe(timings.queue_s + timings.prefill_s)
            self._whole.observe(timings.queue_s + timings.prefill_s + timings.decode_s)

    def refused(self, error: OmError) -> None:
        """Count a request that was not accepted."""
        self._refused.labels(type(error).__name__.removesuffix("Error")).inc()


class EngineMetrics(Collector):
    """Reads the engine's state at each scrape."""

    def __init__(self, load: Callable[[], EngineLoad]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        """What the engine held after its last step."""
        load = self._load()
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"omserve_{name}", text, getattr(load, field))
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"omserve_{name}", text, getattr(load, field))


def metric_routes(lifecycle: Lifecycle, load: Callable[[], EngineLoad]) -> APIRouter:
    """The route that Prometheus scrapes; counts from now on."""
    registry = CollectorRegistry()
    lifecycle.observers.append(RequestMetrics(registry))
    registry.register(EngineMetrics(load))
    router = APIRouter(tags=["operations"])

    @router.get("/metrics")
    def metrics() -> Response:
        """All metrics in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
