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
from omruntime.manifest import SamplingDefaults
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import FinishReason
from server.client import AsyncClient, Client
from server.client.arguments import CallOptions
from server.client.security import ClientSecurity
from server.generate import TextGenerator
from server.pb import inference_pb2 as pb
from server.security.api_keys import ApiKeys
from server.text import TextDelta, TextRequest
from tests.server.key_files import add_key
from tests.server.scripted_engine import ScriptedEngine, model_facts, one_by_one
from tests.server.tiny_tokenizers import byte_level_backend, tokenizer_of
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
        server.await_that(lambda: "red/mine" in server.generator.live)
        with pytest.raises(CallError, match="no live request has the id 'mine'"):
            bob.abort("mine")
        alice.abort("mine")
        server.run(reader)
    assert done[-1].finish_reason.value == "abort"


def test_tenants_have_request_ids_of_their_own(server: FakeServer) -> None:
    """A refusal would tell one that another's request lives."""
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    options = CallOptions(request_id="same")
    with client_of(server, ALICE) as alice, client_of(server, BOB) as bob:
        streams = [client.stream("x", options=options) for client in (alice, bob)]
        assert [next(stream).text for stream in streams] == ["a", "a"]
        with pytest.raises(CallError) as caught:
            next(bob.stream("x", options=options))
        assert caught.value.code == "ALREADY_EXISTS"
        bob.abort("same")
        assert [delta.finish_reason for delta in streams[1]] == [FinishReason.ABORT]
        assert list(server.generator.live) == ["red/same"]
        streams[0].close()


def test_the_engine_tells_tenants_ids_apart() -> None:
    engine = ScriptedEngine(lambda _request: one_by_one([5, 2], FinishReason.STOP))
    model = model_facts(131, SamplingDefaults(temperature=0.0))
    generator = TextGenerator(engine, tokenizer_of(byte_level_backend()), model, 64)
    params = SamplingParams(temperature=0.0)

    async def work() -> None:
        requests = [TextRequest("same", params, token_ids=(7,), owner=o) for o in ("a", "b")]
        await asyncio.gather(*map(generator.complete, requests))

    asyncio.run(work())
    assert [request.request_id for request in engine.submitted] == ["a/same", "b/same"]


def test_tokenizing_counts_as_a_request_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add_key(path, ALICE, "alice", requests_per_minute=4)
    with (
        FakeServer(settings_of(http_port=0, api_keys=path)) as server,
        client_of(server, ALICE) as client,
    ):
        client.tokenize("x")
        client.detokenize((97,))
        for route, body in (("tokenize", {"prompt": "x"}), ("detokenize", {"tokens": [97]})):
            url = f"{server.url}/{route}"
            reply = httpx.post(url, json=body, headers=bearer(ALICE), trust_env=False)
            assert reply.status_code == 200
        for call in (lambda: client.tokenize("x"), lambda: client.detokenize((97,))):
            with pytest.raises(CallError, match="has used its 4 requests a minute"):
                call()
        for route, body in (("tokenize", {"prompt": "x"}), ("detokenize", {"tokens": [97]})):
            url = f"{server.url}/{route}"
            reply = httpx.post(url, json=body, headers=bearer(ALICE), trust_env=False)
            assert reply.status_code == 429


@pytest.mark.parametrize("limit", ["max_concurrent_requests", "requests_per_minute"])
def test_prompts_that_never_fit_a_limit_are_not_told_to_wait(tmp_path: Path, limit: str) -> None:
    path = tmp_path / "keys.json"
    add_key(path, ALICE, "alice", **{limit: 2})
    with FakeServer(settings_of(http_port=0, api_keys=path)) as server:
        refused = post(server, bearer(ALICE), prompt=["x", "y", "z"])
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == "prompt"
        assert f"3 requests, but {limit} of the API key 'alice' is 2" in error["message"]
        assert post(server, bearer(ALICE), prompt=["x", "y"]).status_code == 200


def test_the_way_to_the_page_is_open_and_generating_there_is_not(server: FakeServer) -> None:
    found = httpx.get(f"{server.url}/", trust_env=False, follow_redirects=True)
    assert (found.status_code, str(found.url)) == (200, f"{server.url}/ui")
    refused = httpx.post(f"{server.url}/", json={"inputs": "x"}, trust_env=False)
    assert refused.status_code == 401


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
