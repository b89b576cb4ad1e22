"""A span for each request: whose child it is, what is in it, and that it reaches a collector."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from omruntime.errors import ConfigError, OverloadedError
from omruntime.sequence import FinishReason
from server.client import Client
from server.pb import inference_pb2 as pb
from server.pb import inference_pb2_grpc
from server.text import TextDelta
from server.traces import Traces
from tests.server.test_app import Process
from tests.server.wire_fakes import TIMINGS, FakeServer, end, settings_of

TRACE_ID, SPAN_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
PARENT = (("traceparent", f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"),)
REQUEST = pb.GenerateRequest(request_id="r1", prompt=pb.Prompt(text="a secret prompt"))


class Traced(FakeServer):
    """Keeps its spans."""

    def __init__(self) -> None:
        super().__init__(settings_of(http_port=0, otlp_endpoint="http://127.0.0.1:1"))
        self._exporter = InMemorySpanExporter()

    def __enter__(self) -> Traced:
        super().__enter__()
        traces = Traces(SimpleSpanProcessor(self._exporter), "org/toy")
        self.call(lambda: self.lifecycle.observers.append(traces))
        return self

    def take_span(self) -> ReadableSpan:
        """The one span since the last call."""
        self.await_that(lambda: bool(self._exporter.get_finished_spans()))
        (span,) = self._exporter.get_finished_spans()
        self._exporter.clear()
        return span


@pytest.fixture(scope="module")
def server() -> Iterator[Traced]:
    with Traced() as running:
        yield running


def test_a_request_is_a_child_of_its_callers_span(server: Traced) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        stub.Generate(REQUEST, metadata=PARENT)
    span = server.take_span()
    assert span.name == "omserve.v1.InferenceService/Generate"
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (TRACE_ID, SPAN_ID)
    assert span.attributes is not None
    assert span.attributes["omserve.request_id"] == "r1"
    assert span.attributes["gen_ai.request.model"] == "org/toy"
    assert span.attributes["gen_ai.usage.output_tokens"] == 2
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert span.status.status_code is not StatusCode.ERROR
    text = span.to_json()
    assert "secret" not in text
    assert "Hi" not in text
    assert span.resource.attributes["service.name"] == "omserve"


def test_events_tell_when_each_part_began_and_how_long_it_took(server: Traced) -> None:
    with Client(server.target) as client:
        client.generate("x")
    span = server.take_span()
    assert span.parent is None
    assert span.start_time is not None
    queue_event, prefill, decode = span.events
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]
    seconds = [event.attributes["omserve.seconds"] for event in span.events if event.attributes]
    assert seconds == [TIMINGS.queue_s, TIMINGS.prefill_s, TIMINGS.decode_s]
    assert queue_event.timestamp == span.start_time
    assert prefill.timestamp - queue_event.timestamp == int(TIMINGS.queue_s * 1e9)
    assert decode.timestamp - prefill.timestamp == int(TIMINGS.prefill_s * 1e9)


def test_the_route_and_the_headers_of_http_count_as_well(server: Traced) -> None:
    url, body = f"{server.url}/v1/completions", {"prompt": "x"}
    with httpx.Client(trust_env=False) as client:
        assert client.post(url, json=body, headers=dict(PARENT)).status_code == 200
        span = server.take_span()
        assert span.name == "POST /v1/completions"
        assert span.parent is not None
        assert span.parent.trace_id == TRACE_ID
        # On the same connection, without a trace of its own.
        assert client.post(url, json=body).status_code == 200
        assert server.take_span().parent is None
        damaged = {"traceparent": "00-zz-1-01"}
        assert client.post(url, json=body, headers=damaged).status_code == 200
        assert server.take_span().parent is None


def test_refusals_and_failures_are_errors(server: Traced) -> None:
    usual = server.generator.script
    try:
        with Client(server.target) as client:
            server.generator.script = [OverloadedError("the queue is full", 1.0)]
            with pytest.raises(Exception, match="the queue is full"):
                client.generate("x")
            span = server.take_span()
            assert (span.status.status_code, span.status.description) == (
                StatusCode.ERROR,
                "the queue is full",
            )
            assert span.attributes is not None
            assert span.attributes["error.type"] == "OverloadedError"
            failed = end(reason=FinishReason.ERROR, error="code 507899")
            server.generator.script = [TextDelta(0, "a", (1,)), failed]
            list(client.stream("x"))
            span = server.take_span()
            assert (span.status.status_code, span.status.description) == (
                StatusCode.ERROR,
                "code 507899",
            )
    finally:
        server.generator.script = usual


class Collector(otlp_grpc.TraceServiceServicer):
    """Takes spans."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[otlp.ExportTraceServiceRequest] = queue.SimpleQueue()

    def Export(  # noqa: N802
        self, request: otlp.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> otlp.ExportTraceServiceResponse:
        self.requests.put(request)
        return otlp.ExportTraceServiceResponse()


@contextmanager
def collecting() -> Iterator[tuple[Collector, int]]:
    """A collector on a port of this machine."""
    collector = Collector()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        otlp_grpc.add_TraceServiceServicer_to_server(collector, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield collector, port
        finally:
            server.stop(None).wait()


@contextmanager
def serving(folder: Path, endpoint: str) -> Iterator[Process]:
    process = Process(folder, "ready", "--otlp-endpoint", endpoint)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()


def test_the_last_spans_reach_the_collector_before_the_process_ends(tmp_path: Path) -> None:
    with collecting() as (collector, port), serving(tmp_path, f"http://127.0.0.1:{port}") as server:
        with Client(server.target()) as client:
            client.wait_ready(20)
            client.generate("x")
        server.signal()
        assert server.exit_code() == 0
        export = collector.requests.get(timeout=20)
        (span,) = export.resource_spans[0].scope_spans[0].spans
        assert span.name.startswith("omserve.v1.InferenceService/")
        assert [event.name for event in span.events] == ["queue", "prefill", "decode"]


def test_a_collector_that_is_away_disturbs_nobody(tmp_path: Path) -> None:
    """Port 1 of this machine refuses."""
    with serving(tmp_path, "http://127.0.0.1:1") as server:
        with Client(server.target()) as client:
            client.wait_ready(20)
            assert client.generate("x").answers[0].text == "Hi!"
        server.signal()
        assert server.exit_code() == 0


@pytest.mark.parametrize(
    ("endpoint", "is_taken"),
    [
        ("http://localhost:4317", True),
        ("https://[::1]:4317/", True),
        ("localhost:4317", False),
        ("http://localhost", False),
        ("http://localhost:4317/v1/traces", False),
        ("ftp://localhost:4317", False),
    ],
)
def test_an_endpoint_is_a_url_with_a_port(endpoint: str, is_taken: bool) -> None:
    if is_taken:
        settings_of(otlp_endpoint=endpoint)
        return
    with pytest.raises(ConfigError, match="otlp_endpoint is"):
        settings_of(otlp_endpoint=endpoint)
