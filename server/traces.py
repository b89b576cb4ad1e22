"""Traces: a span for each request, sent to an OpenTelemetry collector.

Owns what is in a span: ids, counts and times, no prompt and no text. Installed with the extra
`otel`. Spans are made when requests end, so a token costs nothing, and sent by a thread of the
library's, which drops them when its queue of 2048 is full.
"""

from __future__ import annotations

import logging
import time

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from omruntime.errors import OmError
from omruntime.sequence import FinishReason
from server.logs import request_id_var
from server.origin import Origin, origin_var
from server.request_tally import Arrival, RequestTally
from server.security.callers import caller_var
from server.security.redaction import public_text
from server.text import TextDelta
from server.version import omserve_version

logger = logging.getLogger(__name__)

# Of one export; a collector stands nearby.
EXPORT_TIMEOUT_S = 5
_NS = 1_000_000_000
_UNKNOWN = Origin("omserve request", {})


class Traces:
    """Fits `RequestObserver`; for the event loop."""

    def __init__(self, processor: SpanProcessor, model: str) -> None:
        """Hand spans to `processor`; `model` is the served name."""
        resource = Resource.create(
            {"service.name": "omserve", "service.version": omserve_version()}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("omserve", omserve_version())
        self._propagator = TraceContextTextMapPropagator()
        self._model = model

    @staticmethod
    def open(endpoint: str, model: str) -> Traces:
        """Send spans to a collector; nothing is sent yet, and it need not run.

        Args:
            endpoint: Of OTLP over gRPC; with https:// by TLS.
        """
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        logger.info("traces endpoint=%s", endpoint)
        return Traces(BatchSpanProcessor(exporter), model)

    def arrived(self, arrival: Arrival) -> None:
        """Tokens are told of when their request is over."""

    def finished(self, tally: RequestTally) -> None:
        """End the span of a request that was accepted."""
        now_ns = time.time_ns()
        start_ns = now_ns - int((time.monotonic() - tally.began_at) * _NS)
        span = self._start(start_ns)
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": tally.num_prompt_tokens,
                "gen_ai.usage.output_tokens": tally.num_output_tokens,
                "gen_ai.response.finish_reasons": [reason.value for reason in tally.reasons],
                "omserve.cached_tokens": tally.num_cached_tokens,
            }
        )
        for index, end in sorted(tally.ends.items()):
            _add_parts(span, index, end, start_ns)
            if end.finish_reason is FinishReason.ERROR:
                span.set_status(Status(StatusCode.ERROR, end.error))
        span.end(now_ns)

    def refused(self, error: OmError) -> None:
        """A span without length for a request that was not accepted."""
        now_ns = time.time_ns()
        span = self._start(now_ns)
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, public_text(error)))
        span.end(now_ns)

    def close(self) -> None:
        """Send what waits; takes up to some seconds when the collector does not answer."""
        self._provider.shutdown()

    def _start(self, start_ns: int) -> Span:
        origin, caller = origin_var.get() or _UNKNOWN, caller_var.get()
        span = self._tracer.start_span(
            origin.name,
            context=self._propagator.extract(origin.headers),
            kind=SpanKind.SERVER,
            start_time=start_ns,
        )
        span.set_attribute("gen_ai.request.model", self._model)
        span.set_attribute("omserve.request_id", request_id_var.get())
        if caller is not None:
            span.set_attribute("omserve.tenant", caller.tenant)
        return span


def _add_parts(span: Span, index: int, end: TextDelta, start_ns: int) -> None:
    """An event where each part of an answer began, with the seconds that it took."""
    if end.timings is None:
        return
    timings = end.timings
    at_s = 0.0
    for name, seconds in (
        ("queue", timings.queue_s),
        ("prefill", timings.prefill_s),
        ("decode", timings.decode_s),
    ):
        attributes = {"omserve.index": index, "omserve.seconds": seconds}
        span.add_event(name, attributes, start_ns + int(at_s * _NS))
        at_s += seconds
