"""Session over a real socket: many requests on one stream, their credits, cancels and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from omruntime import errors
from omruntime.sequence import FinishReason
from server.pb import inference_pb2 as pb
from server.security.key_file import write_key_file
from server.session import MAX_LIVE_REQUESTS
from server.text import TextDelta
from tests.server.key_files import add_key
from tests.server.wire_fakes import USAGE, FakeGenerator, FakeServer, end, settings_of
from tests.server.wire_session import WireSession

HOLD = FakeGenerator.HOLD
CODE = grpc.StatusCode
PIECES = [TextDelta(0, letter, (index,)) for index, letter in enumerate("abcd")]


@pytest.fixture
def session(server: FakeServer) -> Iterator[WireSession]:
    with WireSession(server.target) as opened:
        yield opened


def test_requests_share_a_stream_and_half_closing_lets_them_finish(
    server: FakeServer, session: WireSession
) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
    for request_id in ("one", "two"):
        session.start(request_id)
    for request_id in ("one", "two"):
        session.read_of(request_id)
    session.close_own_side()
    for request_id in ("one", "two"):
        assert server.call(lambda request_id=request_id: server.generator.abort(request_id))
    assert session.read_all() is CODE.OK
    for request_id in ("one", "two"):
        assert session.text_of(request_id) == "a"
        assert session.ends_of(request_id) == [pb.FINISH_REASON_ABORT]
    server.await_that(lambda: server.lifecycle.num_running == 0)


def test_an_id_is_free_again_with_the_last_event(server: FakeServer, session: WireSession) -> None:
    for _ in range(20):
        session.start("again")
        assert session.read_end("again").event.finish_reason == pb.FINISH_REASON_STOP
    assert len(server.generator.requests) == 20


REFUSED = [
    ({"request_id": "a b"}, CODE.INVALID_ARGUMENT, "request_id"),
    ({"request_id": ""}, CODE.INVALID_ARGUMENT, "a session needs it"),
    ({"sampling_params": {"temperature": -1}}, CODE.INVALID_ARGUMENT, "temperature"),
    ({"num_events": -1}, CODE.INVALID_ARGUMENT, "num_events is -1"),
    ({"timeout_s": 0.0}, CODE.INVALID_ARGUMENT, "timeout_s is 0"),
    ({"timeout_s": float("nan")}, CODE.INVALID_ARGUMENT, "timeout_s is nan"),
    ({"model": "other"}, CODE.NOT_FOUND, "org/toy"),
]


@pytest.mark.parametrize(("fields", "code", "words"), REFUSED)
def test_a_wrong_request_is_refused_and_the_session_lives_on(
    session: WireSession, fields: dict[str, object], code: grpc.StatusCode, words: str
) -> None:
    fields = {"request_id": "r", **fields}
    session.start(**fields)  # type: ignore[arg-type]
    refusal = session.read().refusal
    assert (refusal.request_id, refusal.code) == (fields["request_id"], code.value[0])
    assert words in refusal.message
    session.start("good")
    session.read_end("good")
    assert session.text_of("good") == "Hi!"


@pytest.mark.parametrize(
    ("error", "code", "retry_after_s"),
    [
        (errors.OverloadedError("the queue is full", 2.25), CODE.RESOURCE_EXHAUSTED, 2.25),
        (errors.DeviceError("507011 in /srv/a/b"), CODE.INTERNAL, None),
        (KeyError("secret"), CODE.INTERNAL, None),
    ],
)
def test_a_failure_before_acceptance_is_a_refusal(
    server: FakeServer,
    session: WireSession,
    error: Exception,
    code: grpc.StatusCode,
    retry_after_s: float | None,
) -> None:
    server.generator.script = [error]
    session.start("r")
    refusal = session.read().refusal
    assert refusal.code == code.value[0]
    assert (refusal.retry_after_s if refusal.HasField("retry_after_s") else None) == retry_after_s
    assert "secret" not in refusal.message
    assert "/srv" not in refusal.message
    server.generator.script = [end()]
    session.start("r")
    assert session.read_end("r").event.finish_reason == pb.FINISH_REASON_STOP


def test_fields_of_a_newer_client_are_refused_with_their_request(session: WireSession) -> None:
    start = pb.SessionStart(request=pb.GenerateStreamRequest(request_id="r"))
    newer = pb.SessionStart.FromString(start.SerializeToString() + b"\xfa\x3f\x01x")
    session.send(pb.SessionRequest(start=newer).SerializeToString())
    refusal = session.read().refusal
    assert (refusal.request_id, refusal.code) == ("r", CODE.UNIMPLEMENTED.value[0])
    session.start("good")
    session.read_end("good")


def test_an_id_that_is_live_in_the_session_is_refused_and_goes_on(
    server: FakeServer, session: WireSession
) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
    session.start("r")
    session.read()
    session.start("r")
    assert session.read().refusal.code == CODE.ALREADY_EXISTS.value[0]
    session.cancel("r")
    assert session.read().event.finish_reason == pb.FINISH_REASON_ABORT


BROKEN = [
    (b"\xff\xff\xff", CODE.INVALID_ARGUMENT, "3 bytes are not the protobuf message"),
    (b"", CODE.INVALID_ARGUMENT, "a frame is empty"),
    (pb.SessionRequest(cancel=pb.SessionCancel()), CODE.INVALID_ARGUMENT, "of cancel is not set"),
    (
        pb.SessionRequest(credits=pb.SessionCredits(request_id="r")),
        CODE.INVALID_ARGUMENT,
        "num_events of credits is 0",
    ),
    (b"\x12\x06\x0a\x01r\xc0\x3e\x01", CODE.UNIMPLEMENTED, "SessionCancel has fields"),
]


@pytest.mark.parametrize(("frame", "code", "words"), BROKEN)
def test_a_frame_that_belongs_to_no_request_ends_the_session(
    server: FakeServer,
    session: WireSession,
    frame: bytes | pb.SessionRequest,
    code: grpc.StatusCode,
    words: str,
) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
    session.start("r")
    session.read()
    session.send(frame if isinstance(frame, bytes) else frame.SerializeToString())
    assert session.read_all() is code
    assert words in session.call.details()
    server.await_that(lambda: not server.generator.live and server.lifecycle.num_running == 0)


def test_a_session_opens_before_its_first_event(session: WireSession) -> None:
    """Were the metadata sent with that, no status could follow while it is on its way."""
    assert session.call.initial_metadata() == ()
    session.send(b"\xff")
    assert session.read_all() is CODE.INVALID_ARGUMENT


@pytest.mark.parametrize("is_running", [True, False])
def test_a_cancel_ends_one_request_alone(
    server: FakeServer, session: WireSession, is_running: bool
) -> None:
    """Running, or sent right behind its start."""
    server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
    session.start("stays")
    session.start("goes")
    if is_running:
        session.read_of("goes")
    session.cancel("goes")
    assert session.read_end("goes").event.finish_reason == pb.FINISH_REASON_ABORT
    assert session.frames["goes"][-1].event.usage.num_prompt_tokens == 3
    assert list(server.generator.live) == ["stays"]
    session.cancel("ended")
    session.cancel("goes")
    session.cancel("stays")
    session.close_own_side()
    assert session.read_all() is CODE.OK
    assert session.ends_of("goes") == session.ends_of("stays") == [pb.FINISH_REASON_ABORT]


def test_events_take_credits_and_ends_take_none(server: FakeServer, session: WireSession) -> None:
    server.generator.script = [*PIECES, end()]
    session.start("slow", num_events=0)
    session.start("free")
    session.read_end("free")
    assert not session.frames["slow"]
    session.grant("slow", 1)
    assert session.read_of("slow").event.text == "a"
    session.start("free")
    session.read_end("free")
    assert session.text_of("slow") == "a"
    session.grant("slow", 3)
    session.close_own_side()
    assert session.read_all() is CODE.OK
    assert session.text_of("slow") == "abcd"
    assert session.ends_of("slow") == [pb.FINISH_REASON_STOP]


def test_who_grants_no_credits_loses_that_request_alone() -> None:
    with FakeServer(settings_of(slow_reader_timeout_s=0.3)) as server:
        server.generator.script = [*PIECES, HOLD]
        with WireSession(server.target) as session:
            session.start("other")
            for _ in PIECES:
                session.read()
            session.start("stalled", num_events=1)
            last = session.read_end("stalled").event
            assert session.text_of("stalled") == "a"
            assert last.finish_reason == pb.FINISH_REASON_ABORT
            assert "no credit came for 0.3 s" in last.error
            assert last.usage.num_output_tokens == USAGE.num_output_tokens
            assert list(server.generator.live) == ["other"]
            session.cancel("other")
            assert session.read_end("other").event.error == ""


def test_an_answer_with_a_gap_does_not_look_whole(server: FakeServer, session: WireSession) -> None:
    """It had ended by itself when the cancel came, but its client never saw all of it."""
    server.generator.script = [*PIECES, end(matched_stop=".")]
    session.start("r", num_events=1)
    assert session.read().event.text == "a"
    session.cancel("r")
    last = session.read().event
    assert (last.finish_reason, last.text) == (pb.FINISH_REASON_ABORT, "")
    assert not last.HasField("matched_stop")


def test_a_reader_that_takes_nothing_loses_the_session() -> None:
    piece = TextDelta(0, "x" * 100_000, (1,))
    with FakeServer(settings_of(slow_reader_timeout_s=0.3)) as server:
        server.generator.script = [*[piece] * 1000, end()]
        with WireSession(server.target) as session:
            session.start("one")
            session.start("two")
            server.await_that(lambda: server.generator.num_closed == 2)
            server.await_that(lambda: server.lifecycle.num_running == 0)
            assert session.read_all() is CODE.RESOURCE_EXHAUSTED
            assert "took nothing for 0.3 s" in session.call.details()


@pytest.mark.parametrize("ending", ["cancel", "disconnect"])
def test_a_client_that_goes_away_ends_all_its_requests(server: FakeServer, ending: str) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
    with WireSession(server.target) as session:
        for number in range(5):
            session.start(f"r{number}", num_events=number)
        server.await_that(lambda: len(server.generator.live) == 5)
        if ending == "cancel":
            session.call.cancel()
        else:
            session.hang_up()
        server.await_that(lambda: server.generator.num_closed == 5)
        server.await_that(lambda: server.lifecycle.num_running == 0)


def test_live_requests_are_bounded(server: FakeServer, session: WireSession) -> None:
    server.generator.script = [HOLD]
    for number in range(MAX_LIVE_REQUESTS):
        session.start(f"r{number}")
    session.start("late")
    refusal = session.read().refusal
    assert (refusal.request_id, refusal.code) == ("late", CODE.RESOURCE_EXHAUSTED.value[0])
    session.cancel("r7")
    session.read_end("r7")
    session.start("late")
    session.cancel("late")
    assert session.read_end("late").event.finish_reason == pb.FINISH_REASON_ABORT


def test_a_request_has_its_own_deadline(server: FakeServer, session: WireSession) -> None:
    session.start("r", timeout_s=5.0)
    session.read_end("r")
    session.start("s")
    session.read_end("s")
    own, sessions = (r.scheduling.deadline for r in server.generator.requests)
    assert own is not None
    assert sessions is not None, "the deadline of the session itself"
    assert 10 < sessions - own < 20


def test_draining_refuses_new_requests_and_lets_running_ones_end(
    server: FakeServer, session: WireSession
) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
    session.start("old")
    session.read()
    server.call(server.lifecycle.begin_draining)
    session.start("new")
    refusal = session.read().refusal
    assert (refusal.request_id, refusal.code) == ("new", CODE.UNAVAILABLE.value[0])
    session.cancel("old")
    session.close_own_side()
    assert session.read_all() is CODE.OK
    assert session.ends_of("old") == [pb.FINISH_REASON_ABORT]


def test_limits_of_a_key_hold_and_a_withdrawn_key_ends(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add_key(path, "k", "alice", max_concurrent_requests=1)
    with (
        FakeServer(settings_of(api_keys=path)) as server,
        WireSession(server.target, (("authorization", "Bearer k"),)) as session,
    ):
        server.generator.script = [TextDelta(0, "a", (1,)), HOLD]
        session.start("one")
        session.read()
        session.start("two")
        refusal = session.read().refusal
        assert refusal.code == CODE.RESOURCE_EXHAUSTED.value[0]
        assert refusal.retry_after_s == 1.0
        assert server.generator.requests[0].scheduling.tenant == "alice"
        session.cancel("one")
        session.read_end("one")
        session.start("three")
        assert session.read().event.text == "a", "the place is free with the last event"
        write_key_file(path, [])
        session.start("four")
        refusal = session.read().refusal
        assert refusal.code == CODE.UNAUTHENTICATED.value[0]
        session.cancel("three")
        assert session.read_end("three").event.finish_reason == pb.FINISH_REASON_ABORT


def test_a_session_without_a_key_does_not_begin(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add_key(path, "k", "alice")
    with FakeServer(settings_of(api_keys=path)) as server, WireSession(server.target) as session:
        session.start("r")
        assert session.read_all() is CODE.UNAUTHENTICATED
        assert server.generator.requests == []


def test_all_answers_of_a_request_end(server: FakeServer, session: WireSession) -> None:
    server.generator.script = [
        TextDelta(1, "b", (1,)),
        end(1),
        TextDelta(0, "a", (1,)),
        end(0, FinishReason.LENGTH),
    ]
    session.start("r", sampling_params=pb.SamplingParams(n=2))
    session.close_own_side()
    assert session.read_all() is CODE.OK
    assert session.ends_of("r") == [pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH]
