"""WatchLoad: snapshots at an interval, bounded in number, rate and content."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

from omruntime.engine_state import EngineState
from omruntime.errors import CallError, NotReadyError
from server.client import Client
from server.client.security import ClientSecurity
from server.control.inspector import MIN_INTERVAL_S, Inspector
from server.control.load_watch import MAX_WATCHERS
from server.pb import control_pb2 as pb
from server.pb import control_pb2_grpc
from tests.server.key_files import add_key
from tests.server.wire_fakes import (
    ENGINE_STATE,
    FakeEngine,
    FakeServer,
    sequence_state,
    settings_of,
)


def test_each_event_has_totals_histograms_and_what_was_asked_for(client: Client) -> None:
    client.generate("x")
    events = client.control.watch_load(interval_s=MIN_INTERVAL_S, details=True)
    first, second = next(events), next(events)
    events.close()
    assert first.state == pb.SERVER_STATE_SERVING
    assert second.uptime_s > first.uptime_s
    assert (first.load.num_running, first.load.num_waiting) == (1, 2)
    assert (first.num_generated_tokens, first.num_prefill_tokens) == (20, 40)
    assert (first.num_computed_tokens, first.num_padded_tokens) == (60, 20)
    assert (sum(first.time_to_first_token.counts), sum(first.inter_token.counts)) == (1, 1)
    assert len(first.request.counts) == len(first.request.bounds_s) + 1
    assert [answer.request_id for answer in first.details.answers] == ["r1", "r2"]
    assert len(first.details.buckets) == 2
    assert first.details.block_states == ENGINE_STATE.block_states


def test_details_come_when_asked_for_alone(client: Client) -> None:
    assert not next(client.control.watch_load()).HasField("details")


def test_it_answers_while_loading() -> None:
    with FakeServer(loaded=False) as server, Client(server.target) as client:
        event = next(client.control.watch_load(details=True))
        assert event.state == pb.SERVER_STATE_LOADING
        assert not event.HasField("details")


@pytest.mark.parametrize("interval_s", [0.0, 0.1, float("nan"), 1e9])
def test_an_interval_out_of_range_is_refused(client: Client, interval_s: float) -> None:
    with pytest.raises(CallError, match=r"wanted 0\.25 to 3600") as caught:
        next(client.control.watch_load(interval_s))
    assert caught.value.code == "INVALID_ARGUMENT"


def test_so_many_may_watch_and_who_leaves_makes_room(
    server: FakeServer, channel: grpc.Channel
) -> None:
    stub = control_pb2_grpc.ControlServiceStub(channel)
    calls = [stub.WatchLoad(pb.WatchLoadRequest(interval_s=3600)) for _ in range(MAX_WATCHERS)]
    for call in calls:
        next(call)
    with pytest.raises(grpc.RpcError) as caught:
        next(stub.WatchLoad(pb.WatchLoadRequest()))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    calls[0].cancel()

    def is_let_in() -> bool:
        try:
            next(stub.WatchLoad(pb.WatchLoadRequest()))
        except grpc.RpcError:
            return False
        return True

    assert any(is_let_in() for _ in range(1000))
    for call in calls:
        call.cancel()


def test_a_reader_that_takes_nothing_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    """Each event is as large as they get, so the windows of HTTP/2 are soon full."""
    many = tuple(sequence_state(f"{i:0>200}") for i in range(5000))
    with (
        caplog.at_level(logging.INFO),
        FakeServer(settings_of(slow_reader_timeout_s=0.3)) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        server.engine.state = replace(ENGINE_STATE, sequences=many)
        stub = control_pb2_grpc.ControlServiceStub(channel)
        call = stub.WatchLoad(pb.WatchLoadRequest(interval_s=MIN_INTERVAL_S, details=True))
        # What lies ready is not read before the server has given up.
        refusal = "WatchLoad code=RESOURCE_EXHAUSTED"
        server.await_that(lambda: refusal in caplog.text)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "took nothing for 0.3 s" in caught.value.details()


def test_a_tenant_sees_its_own_answers_and_an_operator_all(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    add_key(keys, "k-red", "red")
    add_key(keys, "k-other", "other")
    add_key(keys, "k-op", "op", operator=True)
    with FakeServer(settings_of(api_keys=keys)) as server:
        # As the engine has them: ids are the tenants' own.
        ids = sequence_state("red/r1", "red"), sequence_state("blue/r2", "blue")
        server.engine.state = replace(ENGINE_STATE, sequences=ids)
        seen = {}
        for key in ("k-red", "k-other", "k-op"):
            with Client(server.target, ClientSecurity(api_key=key)) as client:
                event = next(client.control.watch_load(details=True))
                seen[key] = [answer.request_id for answer in event.details.answers]
                assert len(event.details.buckets) == 2
    assert seen == {"k-red": ["r1"], "k-other": [], "k-op": ["r1", "r2"]}


@dataclass
class SlowEngine(FakeEngine):
    """Answers when it is let."""

    num_asked: int = 0
    let: asyncio.Event = field(default_factory=asyncio.Event)

    async def inspect(self) -> EngineState:
        self.num_asked += 1
        await self.let.wait()
        return ENGINE_STATE


def test_many_who_look_ask_the_engine_once_and_nobody_waits_for_long() -> None:
    async def main() -> None:
        engine = SlowEngine()
        inspector = Inspector(engine)
        assert await asyncio.gather(*(inspector.look(0.01) for _ in range(10))) == [None] * 10
        engine.let.set()
        looks = await asyncio.gather(*(inspector.look(20) for _ in range(10)))
        assert all(look is not None and look.state is ENGINE_STATE for look in looks)
        assert engine.num_asked == 1
        # Old enough to be asked for again, each time.
        eager = Inspector(engine, min_interval_s=0.0)
        assert [await eager.look(20) is not None for _ in range(3)] == [True] * 3
        assert engine.num_asked == 4

    asyncio.run(main())


def test_an_engine_that_is_gone_leaves_the_last_look() -> None:
    class Gone(FakeEngine):
        async def inspect(self) -> EngineState:
            raise NotReadyError("being started again")

    async def main() -> None:
        assert await Inspector(Gone()).look(1.0) is None

    asyncio.run(main())
