"""Hostile and large requests on both ports: bounded work, no paths told, no prompts logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from omruntime.errors import BundleError, CallError, DeviceError
from omruntime.manifest import SamplingDefaults
from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from server.client import Client
from server.generate import TextGenerator
from server.grpc_server import MAX_HEADER_BYTES
from server.pb import inference_pb2 as pb
from server.security.redaction import without_paths
from server.text import ChatMessage, TextDelta
from tests.server.scripted_engine import ScriptedEngine, model_facts, one_by_one
from tests.server.tiny_tokenizers import CHAT_TEMPLATE, byte_level_backend, tokenizer_of
from tests.server.wire_fakes import FakeServer, end, settings_of

GENERATE = "/omserve.v1.InferenceService/Generate"
MAX_MODEL_LEN = 512
EMOJI = "\U0001f468"


def says_hello(_request: Request) -> list[TokenDelta]:
    return one_by_one([*TOKENIZER.encode_text("hello"), 2], FinishReason.STOP)


TOKENIZER = tokenizer_of(byte_level_backend(), CHAT_TEMPLATE)


@dataclass
class Serving:
    """A server of both ports with the real text layer."""

    server: FakeServer
    engine: ScriptedEngine

    def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        url = f"{self.server.url}/v1/{path}"
        return httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)

    def is_well(self) -> bool:
        health = httpx.get(f"{self.server.url}/health", trust_env=False)
        answer = self.post("completions", prompt="x")
        return health.status_code == 200 and answer.json()["choices"][0]["text"] == "hello"


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    engine = ScriptedEngine(says_hello)
    model = model_facts(TOKENIZER.vocab_size, SamplingDefaults(temperature=0.0))
    generator = TextGenerator(engine, TOKENIZER, model, MAX_MODEL_LEN)
    settings = settings_of(bundle=tmp_path, http_port=0, served_model_name="m")
    with FakeServer(settings, loaded=False) as server:
        server.call(lambda: server.lifecycle.begin_serving(generator))
        yield Serving(server, engine)


LARGE = {
    "5 MiB of words": [ChatMessage("user", "word " * (1 << 20))],
    "5 MiB without spaces": [ChatMessage("user", "x" * (5 << 20))],
    "1 MiB of one emoji": [ChatMessage("user", EMOJI * (1 << 18))],
    "100,000 messages": [ChatMessage("user", "word")] * 100_000,
}


@pytest.mark.parametrize("messages", LARGE.values(), ids=LARGE.keys())
def test_large_conversations_are_refused_before_they_cost_much(
    serving: Serving, messages: list[ChatMessage]
) -> None:
    """BL-41: by length, the engine never hears of them, and others are served."""
    plain = [{"role": m.role, "content": m.content} for m in messages]
    reply = serving.post("chat/completions", messages=plain)
    # So many messages are too many values, over HTTP, whatever their length.
    status, words = (400, "max_model_len") if len(messages) == 1 else (413, "values")
    assert reply.status_code == status
    assert words in reply.text
    assert len(reply.content) < 1000, "a refusal that sends the prompt back"
    with Client(serving.server.target) as client, pytest.raises(CallError) as caught:
        client.generate(messages)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert serving.engine.submitted == []
    assert serving.is_well()


def test_what_is_beyond_the_largest_message_is_not_read(serving: Serving) -> None:
    """BL-41, BL-42: the default is 16 MiB."""
    reply = serving.post("completions", prompt="x" * (17 << 20))
    assert reply.status_code == 413
    request = pb.GenerateRequest(prompt=pb.Prompt(text="x" * (17 << 20)))
    options = (("grpc.max_send_message_length", -1),)
    with (
        grpc.insecure_channel(serving.server.target, options=options) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(GENERATE)(request.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in caught.value.details()
    assert serving.is_well()


def call_with(serving: Serving, *metadata: tuple[str, str | bytes]) -> str:
    """The call's status by name."""
    request = pb.GenerateRequest(prompt=pb.Prompt(text="x")).SerializeToString()
    with grpc.insecure_channel(serving.server.target) as channel:
        try:
            channel.unary_unary(GENERATE)(request, metadata=metadata, timeout=20)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def test_metadata_is_bounded(serving: Serving) -> None:
    assert call_with(serving, ("x", "a" * (MAX_HEADER_BYTES - 2048))) == "OK"
    assert call_with(serving, ("x", "a" * MAX_HEADER_BYTES)) == "RESOURCE_EXHAUSTED"
    assert serving.is_well()


def test_odd_headers_change_nothing(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    """BL-44."""
    caplog.set_level(logging.DEBUG)
    for metadata in (
        ("x-request-id", "a b"),
        ("x-odd-bin", bytes(range(256))),
        ("traceparent", "00-zz-zz-zz"),
        ("authorization", "bearer x"),
    ):
        assert call_with(serving, metadata) == "OK", metadata
    with httpx.Client(trust_env=False) as client:
        for headers in (
            [("X-Request-Id", "träge-Ø".encode())],
            [("X-Request-Id", b"a" * 8192)],
            [("X-Request-Id", b"a"), ("X-Request-Id", b"b")],
            [("Authorization", b"bearer x")],
            [("Traceparent", b"00-zz")],
        ):
            url = f"{serving.server.url}/v1/completions"
            reply = client.post(url, json={"prompt": "x"}, headers=headers)  # type: ignore[arg-type]
            assert reply.status_code == 200, headers
    assert "träge" not in caplog.text
    assert "a" * 100 not in caplog.text


def failing_requests(serving: Serving) -> Iterator[str]:
    """What comes back of requests that fail, each in another way."""
    url = serving.server.url
    for path, body in (
        ("completions", {"prompt": []}),
        ("completions", {"prompt": "x", "model": "../../etc/passwd"}),
        ("completions", {"prompt": "x" * 9999}),
        ("completions", {"prompt": "x", "max_tokens": "many"}),
        ("completions", {"prompt": [999_999]}),
        ("completions", {"prompt": "x", "response_format": {"type": "json_schema"}}),
        ("chat/completions", {"messages": [{"role": "user"}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "file"}]}]}),
        ("absent", {}),
    ):
        yield serving.post(path, **body).text
    for content in (b"{", b"\xff", b"[" * 50_000):
        headers = {"Content-Type": "application/json"}
        reply = httpx.post(
            f"{url}/v1/completions", content=content, headers=headers, trust_env=False
        )
        assert reply.status_code == 400
        yield reply.text
    for route in (
        "/health",
        "/ready",
        "/version",
        "/v1/models",
        "/metrics",
        "/../x",
        "/openapi.json",
    ):
        yield httpx.get(f"{url}{route}", trust_env=False).text
    with Client(serving.server.target) as client:
        for prompt, options in (
            ("x" * 9999, {}),
            ((999_999,), {}),
            ([ChatMessage("u", "x")] * 999, {}),
        ):
            with pytest.raises(CallError) as caught:
                client.generate(prompt, **options)
            yield str(caught.value)
        yield str(client.server_info())
        yield str(client.model_info())


def test_no_reply_tells_a_path_of_this_machine(serving: Serving, tmp_path: Path) -> None:
    """BL-38."""
    here = (str(tmp_path), str(Path.cwd()), str(Path.home()) + "/", "site-packages")
    for text in failing_requests(serving):
        for path in here:
            assert path not in text, text


@pytest.mark.parametrize("cls", [DeviceError, BundleError])
def test_errors_of_libraries_leave_without_their_paths(cls: type[Exception]) -> None:
    """Before and after acceptance, and where the health tells why it turned."""
    text = "Load model from /srv/secret/model.onnx failed: '/srv/secret dir/x'"
    wanted = "Load model from [path] failed: '[path]'"
    with FakeServer(settings_of(http_port=0)) as server, Client(server.target) as client:
        server.generator.script = [cls(text)]
        with pytest.raises(CallError) as caught:
            client.generate("x")
        assert str(caught.value) == wanted
        reply = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}, trust_env=False)
        assert reply.json()["error"]["message"] == wanted
        first = TextDelta(0, "Hi", (7,))
        for last in (cls(text), end(reason=FinishReason.ERROR, error=text)):
            server.generator.script = [first, last]
            assert [delta.error for delta in client.stream("x")] == ["", wanted]
            body = {"prompt": "x", "stream": True}
            reply = httpx.post(f"{server.url}/v1/completions", json=body, trust_env=False)
            assert wanted in reply.text
            assert "secret" not in reply.text
        server.call(lambda: server.lifecycle.fail(text))
        assert client.server_info().detail == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("failed:/root/a/b.so: no", "failed:[path]: no"),
        ("see file:///srv/x/y", "see [path]"),
        ("~/.cache/omserve/x", "[path]"),
        ('in "/a b/c d", line 3', 'in "[path]", line 3'),
        ("https://host/a/b of 3/4 and a/b/c", "https://host/a/b of 3/4 and a/b/c"),
    ],
)
def test_what_is_a_path(text: str, wanted: str) -> None:
    assert without_paths(text) == wanted


def test_prompts_and_answers_are_never_logged(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    """At the loudest level, and also when the request is refused."""
    caplog.set_level(logging.DEBUG)
    secret = "Herzogin"
    with Client(serving.server.target) as client:
        client.generate(secret)
        list(client.stream([ChatMessage("user", secret)]))
        client.tokenize(secret)
        for prompt in (secret * 9999, [ChatMessage(secret, secret * 9999)]):
            with pytest.raises(CallError):
                client.generate(prompt)
    for stream in (False, True):
        assert serving.post("completions", prompt=secret, stream=stream).status_code == 200
        messages = [{"role": "user", "content": secret}]
        reply = serving.post("chat/completions", messages=messages, stream=stream)
        assert reply.status_code == 200
    for body in ({"prompt": secret * 999}, {"prompt": {secret: secret}}, {"prompt": [secret, 1]}):
        assert serving.post("completions", **body).status_code == 400
    assert caplog.text.count("request finished") >= 6
    assert secret not in caplog.text
    assert "hello" not in caplog.text
