"""The socket: health, reflection, options, ports."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from omruntime.errors import ConfigError
from server.client import Client
from server.grpc_server import (
    SERVICE_NAMES,
    SPARE_STREAMS,
    channel_options,
    start_grpc_server,
)
from server.lifecycle import Lifecycle
from server.pb import inference_pb2 as pb
from server.pb import inference_pb2_grpc
from tests.server.wire_fakes import FakeEngine, FakeGenerator, FakeServer, settings_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
HELLO = pb.Prompt(text="Hello")


def healths(channel: grpc.Channel) -> set[int]:
    stub = health_pb2_grpc.HealthStub(channel)
    names = ("", *SERVICE_NAMES)
    return {stub.Check(health_pb2.HealthCheckRequest(service=name)).status for name in names}


def test_health_is_serving_only_between_warm_up_and_draining() -> None:
    with FakeServer(loaded=False) as server, grpc.insecure_channel(server.target) as channel:
        assert healths(channel) == {NOT_SERVING}
        server.call(lambda: server.lifecycle.begin_serving(server.generator))
        assert healths(channel) == {SERVING}
        server.call(server.lifecycle.begin_draining)
        assert healths(channel) == {NOT_SERVING}


def test_health_turns_not_serving_on_a_device_error() -> None:
    with FakeServer() as server, grpc.insecure_channel(server.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == SERVING
        server.call(lambda: server.lifecycle.fail("acl.rt.memcpy returned 507899"))
        assert next(watch).status == NOT_SERVING
        assert healths(channel) == {NOT_SERVING}
        with Client(server.target) as client:
            assert "507899" in client.server_info().detail
        watch.cancel()


def test_reflection_lists_and_describes_our_services(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(SERVICE_NAMES) | {"grpc.health.v1.Health"} <= set(database.get_services())
    pool = DescriptorPool(database)
    service = pool.FindServiceByName("omserve.v1.InferenceService")
    assert "GenerateStream" in service.methods_by_name
    fields = pool.FindMessageTypeByName("omserve.v1.SamplingParams").fields_by_name
    assert "temperature" in fields


def test_every_option_is_one_that_grpc_knows() -> None:
    """BL-42: a misspelt option does nothing in Python, and says nothing."""
    library = Path(cygrpc.__file__).read_bytes()
    for name, _ in channel_options(16, 1):
        assert name.encode() in library, name


def test_streams_of_a_connection_are_bounded_beyond_a_full_queue(server: FakeServer) -> None:
    """The fakes run 4 and queue 8; a call beyond the bound waits in the client's library."""
    server.generator.script = [FakeGenerator.HOLD]
    bound = 4 + 8 + SPARE_STREAMS
    with grpc.insecure_channel(server.target) as channel, Client(server.target) as other:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        calls = {
            name: stub.GenerateStream(pb.GenerateStreamRequest(request_id=name, prompt=HELLO))
            for name in map(str, range(bound + 1))
        }
        server.await_that(lambda: len(server.generator.live) == bound)
        assert other.server_info().device == "cpu", "another connection has streams of its own"
        assert len(server.generator.requests) == bound
        done = next(iter(server.generator.live))
        server.call(lambda: server.generator.abort(done))
        assert [event.finish_reason for event in calls[done]] == [pb.FINISH_REASON_ABORT]
        server.await_that(lambda: len(server.generator.requests) == bound + 1)
        for call in calls.values():
            call.cancel()
        server.await_that(lambda: not server.generator.live)


def test_frequent_pings_are_tolerated(server: FakeServer) -> None:
    """BL-42: a client that pings during a long silence keeps its connection.

    A stream and a unary call; `bench.wire_soak` has one of two minutes.
    """
    server.generator.script = [FakeGenerator.HOLD]
    options = (
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_time_between_pings_ms", 100),
    )
    with grpc.insecure_channel(server.target, options=options) as channel:
        states: list[grpc.ChannelConnectivity] = []
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == SERVING
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        unary = stub.Generate.future(pb.GenerateRequest(request_id="unary", prompt=HELLO))
        channel.subscribe(states.append)
        # Silence for more pings (a client sends one a second at most) than gRPC's defaults
        # tolerate, then the same stream goes on.
        server.run(asyncio.sleep(4.5))
        server.call(lambda: server.generator.abort("unary"))
        (choice,) = unary.result(20).choices
        assert choice.finish_reason == pb.FINISH_REASON_ABORT
        server.call(server.lifecycle.begin_draining)
        assert next(watch).status == NOT_SERVING
        assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in states
        watch.cancel()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_host_forms(host: str) -> None:
    """BL-47."""
    with FakeServer(settings_of(host=host)) as server:
        target_host = "[::1]" if ":" in host else host
        with Client(f"{target_host}:{server.port}") as client:
            client.wait_ready(10)


def test_a_taken_port_is_a_config_error(server: FakeServer) -> None:
    async def run() -> None:
        settings = settings_of(grpc_port=server.port)
        await start_grpc_server(settings, Lifecycle(), FakeEngine())

    with pytest.raises(ConfigError) as caught:
        asyncio.run(run())
    assert str(caught.value).startswith(f"cannot listen on 127.0.0.1:{server.port}: the port may")
    assert "GRPC_VERBOSITY" not in str(caught.value)
    assert "choose another --host or --grpc-port" in str(caught.value)
