"""API keys on both ports: who is let in, as whom, and within which limits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from omruntime.errors import CallError, UnauthenticatedError
from omruntime.scheduling import Scheduling
from server.api_keys import ApiKeys
from server.client import AsyncClient, Client
from server.client_messages import CallOptions
from server.client_security import ClientSecurity
from server.pb import inference_pb2 as pb
from tests.server.key_files import add_key
from tests.server.wire_fakes import FakeGenerator, FakeServer, settings_of

ALICE, BOB = "key-of-alice", "key-of-bob"
GENERATE = "/omserve.v1.InferenceService/Generate"
STREAM = "/omserve.v1.InferenceService/GenerateStream"
REQUEST = pb.GenerateRequest(prompt=pb.Prompt(text="x")).SerializeToString()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "keys.json"
    add_key(found, ALICE, "alice", tenant="red", tenant_weight=3)
    add_key(found, BOB, "bob", tenant="blue")
    return found


@pytest.fixture
def server(path: Path) -> Iterator[FakeServer]:
    with FakeServer(settings_of(http_port=0, api_keys=path)) as running:
        yield running


def client_of(server: FakeServer, key: str | None) -> Client:
    return Client(server.target, ClientSecurity(api_key=key))


def post(server: FakeServer, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    body = {"prompt": "x", **body}
    url = f"{server.url}/v1/completions"
    return httpx.post(url, json=body, headers=headers, timeout=20, trust_env=False)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_known_key_is_let_in(server: FakeServer) -> None:
    with client_of(server, ALICE) as client:
        assert client.generate("x").answers[0].text == "Hi!"
        assert client.server_info().device == "cpu"
        assert "".join(delta.text for delta in client.stream("x")) == "Hi!"
    assert post(server, bearer(BOB)).status_code == 200


def test_third_party_clients_send_the_key_as_they_do(server: FakeServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=BOB) as client:
        assert client.completions.create(model="org/toy", prompt="x").choices[0].text == "Hi!"
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_the_async_client_sends_its_key(server: FakeServer) -> None:
    async def run() -> str:
        async with AsyncClient(server.target, ClientSecurity(api_key=ALICE)) as client:
            await client.wait_ready(10)
            return "".join([delta.text async for delta in client.stream("x")])

    assert asyncio.run(run()) == "Hi!"


@pytest.mark.parametrize("key", [None, "wrong", ALICE[:-1], ALICE + "x", ALICE.upper()])
def test_no_key_and_wrong_keys_are_refused(server: FakeServer, key: str | None) -> None:
    with client_of(server, key) as client:
        for call in (lambda: client.generate("x"), client.server_info, client.load):
            with pytest.raises(CallError) as caught:
                call()
            assert caught.value.code == "UNAUTHENTICATED"
        with pytest.raises(CallError) as caught:
            list(client.stream("x"))
        assert caught.value.code == "UNAUTHENTICATED"
    reply = post(server, None if key is None else bearer(key))
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert key is None or key not in reply.text
    assert server.generator.requests == []


@pytest.mark.parametrize("value", [f"Bearer {BOB}", f"bearer {BOB}", f"BEARER   {BOB}"])
def test_the_schemes_case_does_not_count(server: FakeServer, value: str) -> None:
    """BL-44."""
    with grpc.insecure_channel(server.target) as channel:
        assert channel.unary_unary(GENERATE)(REQUEST, metadata=(("authorization", value),))
    assert post(server, {"Authorization": value}).status_code == 200


@pytest.mark.parametrize("value", ["", BOB, f"Basic {BOB}", "Bearer", f"Bearer{BOB}"])
def test_other_forms_of_the_header_are_refused(server: FakeServer, value: str) -> None:
    with grpc.insecure_channel(server.target) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(GENERATE)(REQUEST, metadata=(("authorization", value),))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    reply = post(server, {"Authorization": value})
    assert reply.status_code == 401
    assert "Bearer KEY" in reply.json()["error"]["message"]


def test_two_headers_are_refused_whatever_they_hold(server: FakeServer) -> None:
    """Proxies and servers differ in which of two counts."""
    two = [("authorization", f"Bearer {BOB}")] * 2
    with grpc.insecure_channel(server.target) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(GENERATE)(REQUEST, metadata=two)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert httpx.get(f"{server.url}/v1/models", headers=two, trust_env=False).status_code == 401


def test_a_stranger_is_refused_before_the_message_is_read(server: FakeServer) -> None:
    """Otherwise each stranger's call could hold the largest message in memory."""

    over = threading.Event()

    def never_sent() -> Iterator[bytes]:
        over.wait()
        yield REQUEST

    with grpc.insecure_channel(server.target) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.stream_unary(STREAM)(never_sent(), timeout=10)
    over.set()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_probes_need_no_key_and_all_else_does(server: FakeServer) -> None:
    with grpc.insecure_channel(server.target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        assert health.Check(health_pb2.HealthCheckRequest()).status == serving
        with pytest.raises(grpc.RpcError):
            ProtoReflectionDescriptorDatabase(channel).get_services()
    for route, status in {
        "/health": 200,
        "/ready": 200,
        "/metrics": 401,
        "/version": 401,
        "/openapi.json": 401,
        "/v1/models": 401,
        "/absent": 401,
        "/health/../v1/models": 401,
    }.items():
        with httpx.Client(trust_env=False) as client:
            url = httpx.URL(server.url).copy_with(raw_path=route.encode())
            assert client.get(url).status_code == status, route


def test_a_changed_file_counts_for_the_next_request(server: FakeServer, path: Path) -> None:
    with client_of(server, "key-of-carol") as client:
        with pytest.raises(CallError, match="not one of this server's"):
            client.generate("x")
        add_key(path, "key-of-carol", "carol")
        assert client.generate("x").answers[0].text == "Hi!"
        path.write_text('{"keys": []}')
        with pytest.raises(CallError, match="not one of this server's"):
            client.generate("x")
    assert post(server, bearer(BOB)).status_code == 401


def test_a_damaged_file_keeps_the_old_keys(
    server: FakeServer, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text('{"keys": [')
    assert post(server, bearer(BOB)).status_code == 200
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "the old ones stay" in record.getMessage()


def test_a_request_is_its_keys_tenants(server: FakeServer) -> None:
    with client_of(server, ALICE) as client:
        client.generate("x", options=CallOptions(cache_salt="s"))
        client.generate("x", options=CallOptions(scheduling=Scheduling(tenant="red")))
    post(server, bearer(BOB), cache_salt="s")
    assert [
        (r.scheduling.tenant, r.scheduling.tenant_weight, r.cache_salt)
        for r in server.generator.requests
    ] == [("red", 3.0, "red:s"), ("red", 3.0, "red:"), ("blue", 1.0, "blue:s")]


def test_another_tenant_cannot_be_picked(server: FakeServer) -> None:
    options = CallOptions(scheduling=Scheduling(tenant="blue"))
    with client_of(server, ALICE) as client:
        with pytest.raises(CallError, match="tenant is 'blue', but the API key 'alice'") as caught:
            client.generate("x", options=options)
        assert caught.value.code == "PERMISSION_DENIED"
        with pytest.raises(CallError) as caught:
            client.score("x", ["y"], options=options)
        assert caught.value.code == "PERMISSION_DENIED"
    assert server.generator.requests == []


def test_requests_of_another_tenant_cannot_be_aborted(server: FakeServer) -> None:
    server.generator.script = [FakeGenerator.HOLD]
    with client_of(server, ALICE) as alice, client_of(server, BOB) as bob:
        stream = alice.stream("x", options=CallOptions(request_id="mine"))
        done: list[Any] = []
        reader = server.run(_in_thread(done, stream))
        server.await_that(lambda: "mine" in server.generator.live)
        with pytest.raises(CallError, match="no live request has the id 'mine'"):
            bob.abort("mine")
        alice.abort("mine")
        server.run(reader)
    assert done[-1].finish_reason.value == "abort"


async def _in_thread(done: list[Any], stream: Any) -> Any:
    """Begin to read a stream beside the test; returns what waits for its end."""
    task = asyncio.create_task(asyncio.to_thread(lambda: done.extend(stream)))

    async def ended() -> None:
        await task

    return ended()


def test_no_message_of_a_refusal_holds_the_key(path: Path) -> None:
    keys = ApiKeys(path)
    for values in (["Basic secret"], ["Bearer secret"], ["Bearer secret", "x"]):
        with pytest.raises(UnauthenticatedError) as caught:
            keys.authenticate(values)
        assert "secret" not in str(caught.value)
