"""ControlService over a real socket."""

from __future__ import annotations

import dataclasses

import grpc
import pytest

from omruntime.errors import CallError
from server.client import Client
from server.pb import control_pb2 as pb
from server.pb import control_pb2_grpc
from server.text import TextDelta
from tests.server.wire_fakes import LIMITS, MANIFEST, FakeGenerator, FakeServer


def test_server_info_while_loading_serving_and_draining() -> None:
    with FakeServer(loaded=False) as server, Client(server.target) as client:
        assert client.server_info().state == pb.SERVER_STATE_LOADING
        server.call(lambda: server.lifecycle.begin_serving(server.generator))
        info = client.server_info()
        assert info.state == pb.SERVER_STATE_SERVING
        assert (info.device, info.max_message_bytes) == ("cpu", 16 << 20)
        assert not info.is_simulated
        assert info.uptime_s >= 0
        assert info.version
        server.call(server.lifecycle.begin_draining)
        assert client.server_info().state == pb.SERVER_STATE_DRAINING


def test_model_info_tells_defaults_and_the_limits_in_force(client: Client) -> None:
    """BL-31: effective values are readable."""
    info = client.model_info()
    assert info.name == "org/toy"
    assert (info.max_model_len, info.max_num_seqs) == (LIMITS.max_model_len, LIMITS.max_num_seqs)
    assert list(info.eos_token_ids) == [0, 2]
    assert not info.HasField("bos_token_id")
    assert (info.sampling_defaults.temperature, info.sampling_defaults.top_k) == (0.6, 20)
    assert info.kv_identity == MANIFEST.kv_identity


def test_model_info_tells_a_pool_that_is_shorter_than_the_model(
    server: FakeServer, client: Client
) -> None:
    """Three usable blocks of 16, and the last token needs no place."""
    server.engine.limits = dataclasses.replace(LIMITS, num_blocks=4)
    assert client.model_info().max_model_len == 49


def test_model_info_of_another_model_is_not_found(channel: grpc.Channel) -> None:
    stub = control_pb2_grpc.ControlServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModelInfo(pb.GetModelInfoRequest(model="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_load(server: FakeServer, client: Client) -> None:
    assert client.load() == server.engine.load()


def test_load_and_abort_while_loading_are_unavailable() -> None:
    with FakeServer(loaded=False) as server, Client(server.target) as client:
        for call in (client.load, lambda: client.abort("x")):
            with pytest.raises(CallError, match="still loading") as caught:
                call()
            assert caught.value.code == "UNAVAILABLE"


def test_abort_ends_a_stream_also_while_draining(server: FakeServer, client: Client) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    stream = client.stream("x")
    assert next(stream).text == "a"
    server.call(server.lifecycle.begin_draining)
    (request_id,) = server.generator.live
    client.abort(request_id)
    (last,) = stream
    assert last.finish_reason is not None
    assert last.finish_reason.value == "abort"


@pytest.mark.parametrize(("request_id", "code"), [("gone", "NOT_FOUND"), ("", "INVALID_ARGUMENT")])
def test_abort_of_nothing(client: Client, request_id: str, code: str) -> None:
    with pytest.raises(CallError) as caught:
        client.abort(request_id)
    assert caught.value.code == code
