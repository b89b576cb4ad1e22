"""The Drain RPC: unhealthy, refusing, empty, in that order; the process stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from grpc_health.v1 import health_pb2

from omruntime.errors import CallError
from server.client import Client
from server.control.draining import refuse_new
from server.pb import control_pb2 as pb
from server.text import TextDelta
from tests.server.wire_fakes import FakeGenerator, FakeServer, settings_of

HEALTHY = health_pb2.HealthCheckResponse.SERVING


def is_healthy(client: Client) -> bool:
    reply = client._stubs.health.Check(health_pb2.HealthCheckRequest())
    return bool(reply.status == HEALTHY)


def hold(server: FakeServer, client: Client) -> Iterator[TextDelta]:
    """A request that runs until it is aborted."""
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    stream = client.stream("x")
    assert next(stream).text == "a"
    return stream


def test_an_idle_server_is_drained_at_once_and_stays(server: FakeServer, client: Client) -> None:
    *_, last = client.control.drain()
    assert last.is_drained
    assert last.is_refusing
    assert server.engine.is_draining
    assert not is_healthy(client)
    with pytest.raises(CallError) as caught:
        client.generate("x")
    assert caught.value.code == "UNAVAILABLE"
    assert client.server_info().state == pb.SERVER_STATE_DRAINING
    # Again, as by a script that was cut off.
    assert [event.is_drained for event in client.control.drain()][-1]


def test_health_turns_before_requests_are_refused() -> None:
    with FakeServer(settings_of(drain_delay_s=30.0)) as server, Client(server.target) as client:
        events = client.control.drain()
        first = next(events)
        assert (first.is_refusing, first.is_drained) == (False, False)
        assert not is_healthy(client)
        assert client.generate("x").answers[0].text == "Hi!"
        events.close()


def test_what_runs_is_waited_for_and_aborted_after_the_grace(
    server: FakeServer, client: Client
) -> None:
    stream = hold(server, client)
    events = client.control.drain(grace_s=30)
    seen = next(events)
    while not seen.is_refusing:
        seen = next(events)
    assert (seen.num_requests, seen.num_aborted) == (1, 0)
    # A second drain with less grace ends it for both.
    *_, last = client.control.drain(grace_s=0)
    assert (last.is_drained, last.num_aborted, last.num_requests) == (True, 1, 0)
    (ended,) = stream
    assert ended.finish_reason is not None
    assert ended.finish_reason.value == "abort"
    *_, other = events
    assert (other.is_drained, other.num_aborted) == (True, 0)


def test_leaving_the_call_does_not_undo_it(server: FakeServer, client: Client) -> None:
    stream = hold(server, client)
    events = client.control.drain(grace_s=0.3)
    next(events)
    events.close()
    (ended,) = stream
    assert ended.finish_reason is not None
    assert not is_healthy(client)


def test_a_loading_server_drains_and_never_serves() -> None:
    with FakeServer(loaded=False) as server, Client(server.target) as client:
        *_, last = client.control.drain()
        assert last.is_drained
        server.call(lambda: server.lifecycle.begin_serving(server.generator))
        assert not is_healthy(client)


@pytest.mark.parametrize("grace_s", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_grace_out_of_range_is_refused(
    server: FakeServer, client: Client, grace_s: float
) -> None:
    with pytest.raises(CallError, match="grace_s is") as caught:
        list(client.control.drain(grace_s))
    assert caught.value.code == "INVALID_ARGUMENT"
    assert is_healthy(client)


def test_a_signal_after_a_drain_does_not_wait_again(server: FakeServer, client: Client) -> None:
    """Kubernetes: preStop drains, then SIGTERM comes."""
    list(client.control.drain())
    server.run(refuse_new(server.lifecycle, server.engine, delay_s=1e6))
