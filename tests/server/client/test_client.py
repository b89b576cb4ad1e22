"""Both clients against a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from omruntime.errors import CallError, RequestError
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import AsyncClient, Client
from server.client.arguments import CallOptions
from server.client.messages import require_target
from server.text import ChatMessage, OutputOptions, TextDelta
from tests.forked_child import said_by_forked_child
from tests.server.wire_fakes import TIMINGS, USAGE, FakeGenerator, FakeServer, end

CHAT = [ChatMessage("user", "hi")]


@pytest.fixture
def free_target() -> str:
    """A target that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_generate_and_stream(server: FakeServer, client: Client) -> None:
    whole = client.generate("x", SamplingParams(seed=1), CallOptions("r1", cache_salt="s"))
    (answer,) = whole.answers
    assert (whole.request_id, whole.model) == ("r1", "org/toy")
    assert (answer.text, answer.token_ids) == ("Hi!", (7, 8))
    assert (answer.usage, answer.timings) == (USAGE, TIMINGS)
    assert answer.finish_reason is FinishReason.STOP
    request = server.generator.requests[0]
    assert (request.request_id, request.params.seed, request.cache_salt) == ("r1", 1, "s")
    deltas = list(client.stream(CHAT))
    assert "".join(d.text for d in deltas) == "Hi!"
    assert deltas[-1].timings == TIMINGS
    assert server.generator.requests[1].messages == tuple(CHAT)


def test_tokenize_and_detokenize(client: Client) -> None:
    assert client.tokenize("a") == (1, 97)
    assert client.tokenize("a", add_special_tokens=False) == (97,)
    assert client.tokenize(CHAT) == tuple(ord(c) for c in "<user>hi")
    assert client.detokenize((2, 97)) == "a"
    assert client.detokenize((2, 97), skip_special_tokens=False) == "\x02a"


def test_leaving_a_stream_early_cancels_the_request(server: FakeServer, client: Client) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    stream = client.stream("x")
    assert next(stream).text == "a"
    stream.close()
    server.await_that(lambda: server.generator.num_closed == 1)


def test_a_failed_call_carries_code_and_message(server: FakeServer, client: Client) -> None:
    server.generator.script = [RequestError("top_p is 7, wanted 0 to 1")]
    for call in (lambda: client.generate("x"), lambda: list(client.stream("x"))):
        with pytest.raises(CallError, match="top_p is 7, wanted 0 to 1") as caught:
            call()
        assert caught.value.code == "INVALID_ARGUMENT"


def test_a_deadline(server: FakeServer, client: Client) -> None:
    server.generator.script = [FakeGenerator.HOLD]
    with pytest.raises(CallError, match="deadline") as caught:
        client.generate("x", options=CallOptions(timeout_s=0.2))
    assert caught.value.code == "DEADLINE_EXCEEDED"
    server.await_that(lambda: server.generator.num_closed == 1)


def test_an_unreachable_target_is_said(free_target: str) -> None:
    with Client(free_target) as client:
        with pytest.raises(CallError, match=f"no server answers at {free_target}") as caught:
            client.generate("x")
        assert caught.value.code == "UNAVAILABLE"
        with pytest.raises(CallError, match=r"not ready within 0\.3 s"):
            client.wait_ready(0.3)


def test_wait_ready_waits_for_loading_and_says_why_it_gave_up() -> None:
    with FakeServer(loaded=False) as server, Client(server.target) as client:
        with pytest.raises(CallError, match="health is NOT_SERVING"):
            client.wait_ready(0.3)
        server.call(lambda: server.lifecycle.begin_serving(server.generator))
        client.wait_ready(20)


def test_the_asyncio_client(server: FakeServer) -> None:
    async def run() -> None:
        async with AsyncClient(server.target) as client:
            await client.wait_ready(20)
            whole = await client.generate("x")
            assert whole.answers[0].text == "Hi!"
            assert "".join([d.text async for d in client.stream(CHAT)]) == "Hi!"
            assert await client.tokenize("a") == (1, 97)
            assert await client.detokenize((97,)) == "a"
            assert (await client.server_info()).device == "cpu"
            assert (await client.model_info()).name == "org/toy"
            assert await client.load() == server.engine.load()
            with pytest.raises(CallError) as caught:
                await client.abort("gone")
            assert caught.value.code == "NOT_FOUND"

    asyncio.run(run())


def test_the_asyncio_client_cancels_and_aborts(server: FakeServer) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]

    async def run() -> None:
        async with AsyncClient(server.target) as client:
            async with aclosing(client.stream("x")) as stream:
                await anext(stream)
            options = CallOptions("r2")
            async with aclosing(client.stream("x", SamplingParams(), options)) as stream:
                await anext(stream)
                await client.abort("r2")
                assert (await anext(stream)).finish_reason is FinishReason.ABORT
            unary = asyncio.ensure_future(client.generate("x"))
            while len(server.generator.requests) < 3:
                await asyncio.sleep(0.005)
            unary.cancel()
            with pytest.raises(asyncio.CancelledError):
                await unary

    asyncio.run(run())
    server.await_that(lambda: server.generator.num_closed == 3)


def test_the_asyncio_client_says_why_it_is_not_ready(free_target: str) -> None:
    async def run() -> None:
        async with AsyncClient(free_target) as client:
            with pytest.raises(CallError, match=r"not ready within 0\.3 s"):
                await client.wait_ready(0.3)
        with FakeServer(loaded=False) as server:
            async with AsyncClient(server.target) as client:
                with pytest.raises(CallError, match="health is NOT_SERVING"):
                    await client.wait_ready(0.5)

    asyncio.run(run())


@pytest.mark.parametrize(
    "target",
    [
        "localhost:50051",
        "127.0.0.1:1",
        "[::1]:50051",
        "ipv6:[::1]:50051",
        "ipv4:127.0.0.1:50051",
        "dns:example.org:50051",
        "dns:///example.org:50051",
        "unix:run/x y.sock",
        "unix:///run/x.sock",
    ],
)
def test_targets_that_are_taken(target: str) -> None:
    """BL-47."""
    assert require_target(target) == target


@pytest.mark.parametrize(
    "target", ["", "localhost", "::1:50051", "http://localhost:50051", "a b:1", "localhost:", ":1"]
)
def test_targets_that_are_refused_with_the_accepted_forms(target: str) -> None:
    """BL-47: gRPC itself would wait on port 443, or split at the wrong colon."""
    with pytest.raises(RequestError, match=r"wanted host:port, \[ipv6\]:port"):
        require_target(target)


@pytest.mark.parametrize("form", ["localhost:{}", "ipv4:127.0.0.1:{}", "dns:///localhost:{}"])
def test_target_forms_reach_the_server(server: FakeServer, form: str) -> None:
    with Client(form.format(server.port)) as client:
        client.wait_ready(20)


def test_n_answers_in_one_stream(server: FakeServer, client: Client) -> None:
    server.generator.script = [TextDelta(1, "b", (1,)), end(1), TextDelta(0, "a", (2,)), end(0)]
    deltas = list(client.stream("x", SamplingParams(n=2)))
    assert [(d.index, d.text) for d in deltas if d.text] == [(1, "b"), (0, "a")]


TURN = {"role": "user", "content": "hi"}


def test_messages_may_be_mappings(server: FakeServer, client: Client) -> None:
    client.generate([TURN])
    client.generate([TURN, CHAT[0]])
    assert client.tokenize([TURN]) == client.tokenize(CHAT)
    assert [r.messages for r in server.generator.requests] == [tuple(CHAT), (CHAT[0], CHAT[0])]


def test_token_ids_of_other_libraries_are_integers(server: FakeServer, client: Client) -> None:
    client.generate(np.array([3, 4]))  # type: ignore[arg-type]
    assert server.generator.requests[0].token_ids == (3, 4)


WRONG_PROMPTS = [
    (5, r"prompt is 5 \(int\), wanted text, a list of token ids"),
    (None, r"prompt is None"),
    (b"abc", r"\(bytes\)"),
    (TURN, "one message.*put it into a list"),
    (CHAT[0], "one message.*put it into a list"),
    (["a", "b"], "list of texts.*send a request for each"),
    ([1, "x"], "list of int and str"),
    ([True], "list of bool"),
    ([0.5], "list of float"),
    ([TURN, 5], r"mixes types \(dict and int\)"),
    ([{"role": "user"}], "wanted role and content as text"),
    ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], "content as text"),
    ([{**TURN, "name": "n"}], "nothing else"),
    ([ChatMessage("user", "x", {"tool_call_id": "1"})], "extras.*over HTTP"),
]


@pytest.mark.parametrize(("prompt", "words"), WRONG_PROMPTS)
def test_a_wrong_prompt_is_refused_before_anything_is_sent(prompt: Any, words: str) -> None:
    """By both clients and both sessions, with what was got and what was wanted."""

    async def run() -> None:
        async with AsyncClient("localhost:1") as client:
            with pytest.raises(RequestError, match=words):
                await client.generate(prompt)
            async with client.session() as session:
                with pytest.raises(RequestError, match=words):
                    await anext(session.stream(prompt))

    with Client("localhost:1") as client:
        calls = (client.generate, client.stream, client.tokenize)
        for call in (*calls, lambda p: client.score(p, ["x"])):
            with pytest.raises(RequestError, match=words):
                list(call(prompt))  # type: ignore[operator]
        with client.session() as session, pytest.raises(RequestError, match=words):
            next(session.stream(prompt))
    asyncio.run(run())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.generate("x", CallOptions("r")), r"\(CallOptions\), wanted.*options="),
        (lambda c: c.generate("x", {"n": 2}), r"\(dict\), wanted SamplingParams$"),
        (lambda c: c.generate("x", options=SamplingParams()), r"wanted CallOptions.*params="),
        (lambda c: c.tokenize([1, 2]), "list of token ids, wanted text or messages"),
        (lambda c: c.tokenize("x", model=5), "cannot be sent"),
        (lambda c: c.detokenize("abc"), "wanted token ids"),
        (lambda c: c.detokenize(5), "wanted token ids"),
        (lambda c: c.score("x", "y"), "put it into a list"),
        (lambda c: c.score("x", 5), "cannot be sent"),
        (
            lambda c: c.score("x", ["y"], options=CallOptions(output=OutputOptions(echo=True))),
            "output is not for score",
        ),
        (
            lambda c: c.generate("x", options=CallOptions(template_arguments={"a": 1})),
            "template_arguments is for the chat template",
        ),
        (lambda c: c.generate("x", SamplingParams(), CallOptions(timeout_s=0)), "timeout_s is 0"),
        (lambda c: CallOptions(timeout_s="3"), r"timeout_s is '3', wanted seconds above 0"),
        (lambda c: CallOptions(timeout_s=1e10), "timeout_s is 1.* at most 31536000"),
        (
            lambda c: Client("localhost:1", {"api_key": "k"}),
            "security is a dict, wanted Cli",
        ),
        (lambda c: Client(5), "target is 5, wanted host:port"),
    ],
)
def test_wrong_arguments_are_refused(call: Callable[[Client], object], words: str) -> None:
    with Client("localhost:1") as client, pytest.raises(RequestError, match=words):
        call(client)


def test_a_closed_client_says_so(server: FakeServer) -> None:
    with Client(server.target) as client:
        control, session = client.control, client.session()
    for call in (
        lambda: client.generate("x"),
        lambda: next(client.stream("x")),
        client.load,
        control.buckets,
        lambda: next(control.watch_load()),
        client.session,
        lambda: client.wait_ready(1),
    ):
        with pytest.raises(RequestError, match="this Client is closed; open another one"):
            call()  # type: ignore[operator]
    with pytest.raises(CallError, match="session was closed; open another one"):
        next(session.stream("x"))


def test_closing_a_client_ends_its_calls_by_name(server: FakeServer) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    client = Client(server.target)
    stream = client.stream("x")
    next(stream)
    client.close()
    with pytest.raises(CallError, match="client was closed while the call ran"):
        next(stream)

    async def run() -> None:
        client = AsyncClient(server.target)
        stream = client.stream("x")
        await anext(stream)
        await client.close()
        with pytest.raises(CallError, match="client was closed while the call ran"):
            await anext(stream)
        with pytest.raises(RequestError, match="this AsyncClient is closed; open another one"):
            await client.generate("x")

    asyncio.run(run())


def test_a_forked_child_is_refused_and_the_parent_goes_on(client: Client) -> None:
    said = said_by_forked_child(lambda: client.generate("x"))
    assert said.startswith("RequestError: this Client was opened by process")
    assert said_by_forked_child(client.close) == "None"
    assert client.generate("x").answers[0].text == "Hi!"
