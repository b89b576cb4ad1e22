"""What a full server says, on both ports: when to come back, and whether to send requests here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from omruntime.errors import CallError, OverloadedError
from omruntime.outputs import EngineLoad
from server.client import AsyncClient, Client
from server.client.security import ClientSecurity
from server.grpc_server import READY_SERVICE
from server.overload import OverloadGauge, watch_overload
from server.pb import inference_pb2 as pb
from server.retry_info import retry_after_of
from tests.server.key_files import add_key
from tests.server.wire_fakes import LIMITS, FakeServer, settings_of

GENERATE = "/omserve.v1.InferenceService/Generate"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(settings_of(http_port=0)) as running:
        yield running


def post(server: FakeServer, **body: object) -> httpx.Response:
    body = {"prompt": "x", **body}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=20, trust_env=False)


def test_a_full_queue_says_when_to_come_back(server: FakeServer) -> None:
    server.generator.script = [OverloadedError("the queue is full", 2.25)]
    request = pb.GenerateRequest(prompt=pb.Prompt(text="x"))
    with grpc.insecure_channel(server.target) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(GENERATE)(request.SerializeToString())
    # As gRPC's own library for it reads it.
    status = rpc_status.from_call(caught.value)
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    info = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert info.retry_delay.ToTimedelta().total_seconds() == 2.25
    for stream in (False, True):
        reply = post(server, stream=stream)
        assert reply.status_code == 429
        assert reply.headers["retry-after"] == "3"
        assert reply.headers["retry-after-ms"] == "2250"
        assert reply.json()["error"]["code"] == "rate_limit_exceeded"


def test_the_clients_know_when_to_come_back(server: FakeServer) -> None:
    server.generator.script = [OverloadedError("the queue is full", 2.25)]

    async def ask() -> None:
        async with AsyncClient(server.target) as client:
            await client.generate("x")

    with Client(server.target) as client, pytest.raises(CallError) as caught:
        list(client.stream("x"))
    assert caught.value.retry_after_s == 2.25
    with pytest.raises(CallError) as caught:
        asyncio.run(ask())
    assert (caught.value.code, caught.value.retry_after_s) == ("RESOURCE_EXHAUSTED", 2.25)


def test_nothing_is_promised_where_waiting_does_not_help(server: FakeServer) -> None:
    server.generator.script = [OverloadedError("the reply is too large")]
    with Client(server.target) as client, pytest.raises(CallError) as caught:
        client.generate("x")
    assert caught.value.retry_after_s is None


def test_details_of_other_servers_are_no_fault() -> None:
    assert retry_after_of((("grpc-status-details-bin", b"\xff"), ("x", "y"))) is None
    assert retry_after_of(None) is None


def test_a_keys_limits_hold_on_both_ports_together(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add_key(path, "k", "alice", requests_per_minute=2)
    add_key(path, "m", "metrics", max_concurrent_requests=0)
    settings = settings_of(http_port=0, api_keys=path)
    with (
        FakeServer(settings) as server,
        Client(server.target, ClientSecurity(api_key="k")) as client,
        httpx.Client(headers={"Authorization": "Bearer k"}, trust_env=False) as http,
    ):
        client.generate("x")
        assert http.post(f"{server.url}/v1/completions", json={"prompt": "x"}).status_code == 200
        reply = http.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        assert reply.status_code == 429
        assert 1 <= int(reply.headers["retry-after"]) <= 30
        with pytest.raises(CallError, match="has used its 2 requests a minute") as caught:
            client.generate("x")
        assert caught.value.code == "RESOURCE_EXHAUSTED"
        assert 0 < (caught.value.retry_after_s or 0) <= 30
        metrics = {"Authorization": "Bearer m"}
        text = http.get(f"{server.url}/metrics", headers=metrics).text
        assert 'omserve_requests_refused_total{error="RateLimited"} 2.0' in text
        reply = http.post(f"{server.url}/v1/completions", json={"prompt": "x"}, headers=metrics)
        assert reply.status_code == 403


def test_tokens_of_a_key_are_counted_by_what_was_served(tmp_path: Path) -> None:
    """An answer of the fakes has 2 tokens, and does not tell its prompt's."""
    path = tmp_path / "keys.json"
    add_key(path, "k", "alice", tokens_per_minute=2)
    with (
        FakeServer(settings_of(api_keys=path)) as server,
        Client(server.target, ClientSecurity(api_key="k")) as client,
    ):
        client.generate("x")
        with pytest.raises(CallError, match="has used its 2 tokens a minute"):
            client.generate("x")


def readiness(server: FakeServer) -> tuple[int, int, int]:
    """HTTP's /ready, gRPC's readiness, gRPC's health."""
    with grpc.insecure_channel(server.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        ready, health = (
            stub.Check(health_pb2.HealthCheckRequest(service=name)).status
            for name in (READY_SERVICE, "")
        )
    return httpx.get(f"{server.url}/ready", trust_env=False).status_code, ready, health


def test_an_overloaded_server_is_healthy_but_not_ready(server: FakeServer) -> None:
    """A liveness probe that fails under load would restart the server because it is busy."""
    assert readiness(server) == (200, SERVING, SERVING)
    server.call(lambda: server.lifecycle.set_overloaded(True))
    assert readiness(server) == (503, NOT_SERVING, SERVING)
    assert post(server).status_code == 200, "only the queue's limit refuses"
    server.call(lambda: server.lifecycle.set_overloaded(False))
    assert readiness(server) == (200, SERVING, SERVING)


def test_readiness_is_not_that_of_a_loading_or_draining_server() -> None:
    with FakeServer(settings_of(http_port=0), loaded=False) as server:
        assert readiness(server) == (503, NOT_SERVING, NOT_SERVING)
        server.call(lambda: server.lifecycle.begin_serving(server.generator))
        assert readiness(server) == (200, SERVING, SERVING)
        server.call(server.lifecycle.announce_draining)
        assert readiness(server) == (503, NOT_SERVING, NOT_SERVING)
        assert post(server).status_code == 200, "the first to see it are still served"
        server.call(server.lifecycle.begin_draining)
        reply = post(server)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")


def load_of(num_waiting: int, num_waiting_tokens: int = 0) -> EngineLoad:
    return EngineLoad(1, num_waiting, num_waiting_tokens, 0, 0, 16, 0, 0, {})


def test_overload_has_two_thresholds_of_either_limit() -> None:
    """The limits of the fakes are 8 requests and 1024 tokens."""
    gauge = OverloadGauge(LIMITS)
    found = [gauge.update(load_of(n)) for n in (0, 6, 7, 6, 5, 4, 3, 4, 6)]
    assert found == [False, False, True, True, True, True, False, False, False]
    found = [gauge.update(load_of(1, tokens)) for tokens in (800, 820, 600, 500)]
    assert found == [False, True, True, False]


def test_the_watch_tells_the_lifecycle(server: FakeServer) -> None:
    loads = {"now": load_of(8)}
    server.engine.load = lambda: loads["now"]  # type: ignore[method-assign]

    async def watch() -> None:
        task = asyncio.create_task(watch_overload(server.engine, server.lifecycle))
        await server.wait_until(lambda: not server.lifecycle.is_ready)
        loads["now"] = load_of(0)
        await server.wait_until(lambda: server.lifecycle.is_ready)
        task.cancel()

    server.run(watch())
