"""Both clients' sessions against a real socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from omruntime.errors import CallError, OverloadedError, RequestError
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import AsyncClient, Client
from server.client.arguments import CallOptions
from server.client.retries import Retries
from server.client.session_frames import NUM_CREDITS
from server.text import TextDelta
from tests.forked_child import said_by_forked_child
from tests.server.wire_fakes import TIMINGS, USAGE, FakeGenerator, FakeServer, end

HOLD = FakeGenerator.HOLD
LONG = [TextDelta(0, chr(ord("a") + i % 26), (i,)) for i in range(10 * NUM_CREDITS)]
LONG_TEXT = "".join(delta.text for delta in LONG)


def text_of(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_streams_of_a_session(server: FakeServer, client: Client) -> None:
    server.generator.script = [*LONG, end()]
    with client.session() as session:
        deltas = list(session.stream("x", SamplingParams(seed=1), CallOptions("r1")))
        assert text_of(deltas) == LONG_TEXT
        assert (deltas[-1].usage, deltas[-1].timings) == (USAGE, TIMINGS)
        assert text_of(list(session.stream("y"))) == LONG_TEXT
    request = server.generator.requests[0]
    assert (request.request_id, request.params.seed) == ("r1", 1)


def test_a_reader_that_pauses_holds_up_no_other(server: FakeServer, client: Client) -> None:
    server.generator.script = [*LONG, end()]
    with client.session() as session:
        paused = session.stream("x")
        first = next(paused)
        results: list[str] = []
        threads = [
            threading.Thread(target=lambda: results.append(text_of(list(session.stream("y")))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert results == [LONG_TEXT] * 8
        assert len(server.generator.live) == 1, "the paused one waits at the server"
        assert first.text + text_of(list(paused)) == LONG_TEXT


def test_answers_of_n(server: FakeServer, client: Client) -> None:
    server.generator.script = [TextDelta(1, "b", (1,)), end(1), TextDelta(0, "a", (2,)), end(0)]
    with client.session() as session:
        deltas = list(session.stream("x", SamplingParams(n=2)))
    assert [(d.index, d.text) for d in deltas if d.text] == [(1, "b"), (0, "a")]


def test_leaving_a_stream_cancels_that_request_alone(server: FakeServer, client: Client) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
    with client.session() as session:
        stays, goes = session.stream("x"), session.stream("y", options=CallOptions("goes"))
        assert [next(stays).text, next(goes).text] == ["a", "a"]
        with pytest.raises(RequestError, match="'goes' is that of a live request"):
            next(session.stream("z", options=CallOptions("goes")))
        goes.close()
        server.await_that(lambda: server.generator.num_closed == 1)
        assert "goes" not in server.generator.live
        client.abort(next(iter(server.generator.live)))
        assert [delta.finish_reason for delta in stays] == [FinishReason.ABORT]


def test_closing_a_session_ends_its_streams(server: FakeServer, client: Client) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
    session = client.session()
    stream = session.stream("x")
    next(stream)
    session.close()
    session.close()
    with pytest.raises(CallError, match="the session was closed"):
        next(stream)
    with pytest.raises(CallError, match="the session was closed"):
        next(session.stream("x"))
    server.await_that(lambda: server.generator.num_closed == 1)
    assert said_by_forked_child(session.close) == "None"


def test_a_refusal_leaves_the_session_open(server: FakeServer, client: Client) -> None:
    with client.session() as session:
        with pytest.raises(CallError, match="'other' is not served") as caught:
            list(session.stream("x", options=CallOptions(model="other")))
        assert caught.value.code == "NOT_FOUND"
        server.generator.script = [OverloadedError("the queue is full", 2.5)]
        with pytest.raises(CallError, match="the queue is full") as caught:
            list(session.stream("x"))
        assert (caught.value.code, caught.value.retry_after_s) == ("RESOURCE_EXHAUSTED", 2.5)
        server.generator.script = [end()]
        assert len(list(session.stream("x"))) == 1


def test_a_session_without_a_server_says_so() -> None:
    with (
        Client("127.0.0.1:1") as client,
        client.session() as session,
        pytest.raises(CallError, match=r"no server answers at 127\.0\.0\.1:1"),
    ):
        list(session.stream("x"))


def test_the_asyncio_session(server: FakeServer) -> None:
    server.generator.script = [*LONG, end()]

    async def read(deltas: AsyncGenerator[TextDelta, None]) -> str:
        return text_of([delta async for delta in deltas])

    async def run() -> None:
        async with AsyncClient(server.target) as client, client.session() as session:
            async with aclosing(session.stream("paused")) as paused:
                await anext(paused)
                answers = await asyncio.gather(*(read(session.stream("x")) for _ in range(8)))
                assert answers == [LONG_TEXT] * 8
                assert len(server.generator.live) == 1
                assert await read(paused) == LONG_TEXT[1:]
            server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
            task = asyncio.create_task(read(session.stream("x")))
            while not server.generator.live:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while server.generator.live:
                await asyncio.sleep(0.005)
            with pytest.raises(CallError, match="is not served"):
                await read(session.stream("x", options=CallOptions(model="other")))
            last = session.stream("x")
            await anext(last)
            await session.close()
            with pytest.raises(CallError, match="the session was closed"):
                await anext(last)

    asyncio.run(run())
    server.await_that(lambda: not server.generator.live)


class Scripts:
    """Refuses some times, then answers; the script of one request after the other."""

    def __init__(self, server: FakeServer, *errors: Exception) -> None:
        self._server = server
        self._scripts: list[list[Any]] = [*([error] for error in errors), [end()]]
        server.lifecycle.observers.append(self)
        self._next()

    def refused(self, _error: Exception) -> None:
        self._next()

    def finished(self, _tally: object) -> None:
        pass

    def _next(self) -> None:
        self._server.generator.script = self._scripts.pop(0)


FULL = OverloadedError("the queue is full", 0.01)


@pytest.mark.parametrize("method", ["generate", "stream", "session"])
def test_refusals_that_name_a_time_are_tried_again(server: FakeServer, method: str) -> None:
    Scripts(server, FULL, FULL)
    with Client(server.target, retries=Retries(max_retries=2)) as client:
        if method == "generate":
            assert len(client.generate("x").answers) == 1
        elif method == "stream":
            assert len(list(client.stream("x"))) == 1
        else:
            with client.session() as session:
                assert len(list(session.stream("x"))) == 1
    assert len(server.generator.requests) == 3


@pytest.mark.parametrize("method", ["generate", "stream", "session"])
def test_the_asyncio_client_tries_again(server: FakeServer, method: str) -> None:
    Scripts(server, FULL, FULL)

    async def run() -> None:
        async with AsyncClient(server.target, retries=Retries(max_retries=2)) as client:
            if method == "generate":
                assert len((await client.generate("x")).answers) == 1
            elif method == "stream":
                assert len([delta async for delta in client.stream("x")]) == 1
            else:
                async with client.session() as session:
                    assert len([delta async for delta in session.stream("x")]) == 1

    asyncio.run(run())
    assert len(server.generator.requests) == 3


@pytest.mark.parametrize(
    ("errors", "num_requests"),
    [
        ((FULL, FULL, FULL), 3),
        ((OverloadedError("too large"),), 1),
        ((OverloadedError("later", 99.0),), 1),
        ((RequestError("wrong"),), 1),
    ],
    ids=["too often", "no time named", "too long a wait", "wrong for ever"],
)
def test_other_failures_are_not_tried_again(
    server: FakeServer, errors: tuple[Exception, ...], num_requests: int
) -> None:
    Scripts(server, *errors)
    retries = Retries(2, max_wait_s=5.0)
    with Client(server.target, retries=retries) as client, pytest.raises(CallError):
        client.generate("x")
    assert len(server.generator.requests) == num_requests


def test_a_wait_beyond_the_deadline_is_not_begun(server: FakeServer) -> None:
    Scripts(server, OverloadedError("later", 30.0))
    options = CallOptions(timeout_s=20.0)
    with (
        Client(server.target, retries=Retries(2)) as client,
        pytest.raises(CallError, match="later"),
    ):
        client.generate("x", options=options)
    assert len(server.generator.requests) == 1


def test_what_was_accepted_is_never_tried_again(server: FakeServer) -> None:
    """Also where its failure looks like a refusal."""
    server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
    with Client(server.target, retries=Retries(5)) as client:
        stream = client.stream("x")
        next(stream)
        server.run(server.close_port())
        with pytest.raises(CallError):
            next(stream)
    assert len(server.generator.requests) == 1


def test_a_server_that_comes_up_late_is_found(server: FakeServer) -> None:
    server.run(server.close_port())
    with Client(server.target, retries=Retries(50)) as client:
        opened = threading.Timer(0.3, lambda: server.run(server.open_port()))
        opened.start()
        assert client.generate("x").answers[0].text == "Hi!"
        opened.join()


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(RequestError, match="max_retries is -1"):
        Retries(-1)
