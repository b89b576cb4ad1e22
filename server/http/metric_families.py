"""One snapshot -> Prometheus' metric families, in base units, under `omserve_`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from omruntime.blocks.prefix_cache import PrefixCacheCounters
from omruntime.costs.bucket_use import BucketReport
from omruntime.engine_state import EngineState
from omruntime.outputs import EngineCounters, EngineLoad
from server.control.load_watch import LoadSnapshot
from server.control.request_counts import Histogram, RequestCounts
from server.lifecycle import ServerState

# By field: name and help.
_LOAD_GAUGES = {
    "num_running": ("requests_running", "Sequences that hold KV blocks."),
    "num_waiting": ("requests_waiting", "Sequences that wait for admission."),
    "num_waiting_tokens": ("tokens_waiting", "Known tokens of waiting sequences."),
    "num_referenced_blocks": ("kv_blocks_referenced", "Blocks that live sequences hold."),
    "num_cached_blocks": ("kv_blocks_cached", "Blocks that the prefix cache can give out."),
    "num_total_blocks": ("kv_blocks_total", "Blocks that can be handed out."),
}
_LOAD_COUNTERS = {
    "num_preemptions": ("preemptions", "Sequences that lost their blocks and start again."),
    "num_prefix_hit_tokens": ("prefix_cache_hit_tokens", "Prompt tokens that were not computed."),
}
_STEP_COUNTERS = {
    "num_steps": ("steps", "Rounds of the engine."),
    "num_computed_tokens": ("computed_tokens", "Tokens computed for requests."),
    "num_prefill_tokens": ("prefill_tokens", "Tokens of prompts computed, as they come."),
    "num_generated_tokens": ("generated_tokens", "Tokens of answers, as they come."),
    "num_bucket_switches": ("bucket_switches", "Steps of another bucket than the one before."),
    "num_quarantined": ("quarantined", "Sequences ended since their state was inconsistent."),
}
_CACHE_COUNTERS = {
    "num_hits": ("prefix_cache_hits", "Admissions that found some of their prompt."),
    "num_misses": ("prefix_cache_misses", "Admissions that found none of it."),
    "num_asked_tokens": ("prefix_cache_asked_tokens", "Prompt tokens of all admissions."),
    "num_evictions": ("prefix_cache_evicted_blocks", "Blocks handed out with cached content."),
    "num_flushed": ("prefix_cache_flushed_blocks", "Blocks that flushes forgot."),
}
_HISTOGRAMS = {
    "time_to_first_token": ("time_to_first_token_seconds", "Request to first token, at the front."),
    "inter_token": ("inter_token_seconds", "Between two deltas of an answer."),
    "queue": ("queue_seconds", "Submit to first step."),
    "prefill": ("prefill_seconds", "First step to first token."),
    "decode": ("decode_seconds", "First to last token."),
    "request": ("request_seconds", "Submit to last token."),
}
_BUCKET_LABELS = ("phase", "batch", "tokens", "past_blocks")
_BUCKET_COUNTERS: tuple[tuple[str, str, Callable[[BucketReport], float]], ...] = (
    ("bucket_steps", "Steps that ran a bucket.", lambda r: r.num_steps),
    ("bucket_computed_rows", "Rows computed for requests.", lambda r: r.num_rows),
    ("bucket_padded_rows", "Rows that ran for nobody.", lambda r: r.num_padded_rows),
    ("bucket_computed_tokens", "Tokens computed for requests.", lambda r: r.num_tokens),
    ("bucket_padded_tokens", "Tokens computed for nobody.", lambda r: r.num_padded_tokens),
)


def metrics_of(snapshot: LoadSnapshot) -> Iterator[Metric]:
    """Everything that Prometheus scrapes; what only the engine knows is absent until it answers."""
    yield _gauge("serving", "Whether requests are taken.", snapshot.state is ServerState.SERVING)
    yield _gauge("simulated", "Whether a SIMULATION gives the times here.", snapshot.is_simulated)
    yield _gauge("uptime_seconds", "Since the server began.", snapshot.uptime_s)
    yield _gauge("requests_open", "Requests at the front.", snapshot.num_requests)
    yield from _of_load(snapshot.load)
    yield from _of_counters(snapshot.counters)
    yield from _of_counts(snapshot.counts)
    if snapshot.look is not None:
        yield from _of_state(snapshot.look.state)


def _of_load(load: EngineLoad) -> Iterator[Metric]:
    for field, (name, text) in _LOAD_GAUGES.items():
        yield _gauge(name, text, getattr(load, field))
    for field, (name, text) in _LOAD_COUNTERS.items():
        yield _counter(name, text, getattr(load, field))
    held, cached = load.num_referenced_blocks, load.num_free_cached_blocks
    states = {"held": held, "cached": cached, "empty": load.num_total_blocks - held - cached}
    family = GaugeMetricFamily("omserve_kv_blocks", "Blocks by state.", labels=("state",))
    for state, num_blocks in states.items():
        family.add_metric((state,), num_blocks)
    yield family


def _of_counters(counters: EngineCounters) -> Iterator[Metric]:
    for field, (name, text) in _STEP_COUNTERS.items():
        yield _counter(name, text, getattr(counters, field))
    padded = counters.num_step_places - counters.num_computed_tokens
    yield _counter("padded_tokens", "Tokens computed for nobody.", padded)
    cache: PrefixCacheCounters = counters.prefix_cache
    for field, (name, text) in _CACHE_COUNTERS.items():
        yield _counter(name, text, getattr(cache, field))


def _of_counts(counts: RequestCounts) -> Iterator[Metric]:
    finished = _labelled("requests_finished", "Answers by why they ended.", ("reason",))
    for reason, number in counts.num_finished.items():
        finished.add_metric((reason,), number)
    yield finished
    refused = _labelled("requests_refused", "Requests not accepted, by error.", ("error",))
    for error, number in counts.num_refused.items():
        refused.add_metric((error,), number)
    yield refused
    yield _counter("prompt_tokens", "Prompt tokens of ended requests.", counts.num_prompt_tokens)
    yield _counter("output_tokens", "Generated tokens of ended requests.", counts.num_output_tokens)
    for field, (name, text) in _HISTOGRAMS.items():
        yield _histogram(name, text, getattr(counts, field))


def _of_state(state: EngineState) -> Iterator[Metric]:
    yield _gauge("warm_up_seconds", "Of the whole warm-up.", state.warm_up_s)
    for name, text, value_of in _BUCKET_COUNTERS:
        family = _labelled(name, text, _BUCKET_LABELS)
        for report in state.buckets:
            family.add_metric(_labels_of(report), value_of(report))
        yield family
    predicted = GaugeMetricFamily(
        "omserve_bucket_predicted_seconds", "Of one run of a bucket.", labels=_BUCKET_LABELS
    )
    for report in state.buckets:
        predicted.add_metric(_labels_of(report), report.predicted_s)
    yield predicted


def _labels_of(report: BucketReport) -> tuple[str, ...]:
    bucket = report.bucket
    return bucket.phase.value, str(bucket.batch), str(bucket.tokens), str(bucket.past_blocks)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"omserve_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"omserve_{name}", text, value)


def _labelled(name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(f"omserve_{name}", text, labels=labels)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    cumulative, total = [], 0
    for bound, count in zip((*histogram.bounds_s, "+Inf"), histogram.counts, strict=True):
        total += count
        cumulative.append((str(bound), total))
    return HistogramMetricFamily(f"omserve_{name}", text, cumulative, histogram.sum_s)
