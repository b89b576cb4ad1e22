"""Session against a model: random starts, credits and cancels, over a real socket.

Whatever the order, a request gets a beginning of its answer, never an event without a credit,
exactly one end, and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omruntime.manifest import SamplingDefaults
from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from server.generate import TextGenerator
from server.pb import inference_pb2 as pb
from tests.server.scripted_engine import ScriptedEngine, model_facts, one_by_one
from tests.server.tiny_tokenizers import byte_level_backend, tokenizer_of
from tests.server.wire_fakes import FakeServer
from tests.server.wire_session import WireSession

TOKENIZER = tokenizer_of(byte_level_backend())
ANSWER = TOKENIZER.encode_text("abcdefghijklmnop")
NUM_REQUESTS = 4
ENDLESS = 40


def answer_of(request: Request) -> list[TokenDelta]:
    """As many tokens as asked for, one by one; then LENGTH, or nothing where it is endless."""
    num_tokens = request.params.max_new_tokens or 0
    if num_tokens == ENDLESS:
        return [TokenDelta((token_id,)) for token_id in ANSWER]
    return one_by_one(ANSWER[:num_tokens], FinishReason.LENGTH)


@dataclass(frozen=True)
class Start:
    """`num_tokens` of an answer, `num_events` credits at first."""

    number: int
    num_tokens: int
    num_events: int | None


@dataclass(frozen=True)
class Grant:
    number: int
    num_events: int


@dataclass(frozen=True)
class Cancel:
    number: int


@dataclass(frozen=True)
class Catch:
    """Read what must come of a request by now."""

    number: int


@dataclass
class Expected:
    """What is known of one request."""

    num_tokens: int
    num_credits: float
    cancelled: bool = False
    ended: bool = False
    texts: list[str] = field(default_factory=list)

    @property
    def owes_an_event(self) -> bool:
        """Whether a frame must come without anything more from the client."""
        if self.ended:
            return False
        num_pieces = len(ANSWER) if self.num_tokens == ENDLESS else self.num_tokens - 1
        is_over = len(self.texts) == num_pieces and self.num_tokens != ENDLESS
        may_come = len(self.texts) < min(num_pieces, self.num_credits)
        return self.cancelled or is_over or may_come


numbers = st.integers(0, NUM_REQUESTS - 1)
steps = st.one_of(
    st.builds(
        Start,
        numbers,
        st.one_of(st.integers(1, len(ANSWER)), st.just(ENDLESS)),
        st.one_of(st.none(), st.integers(0, 5)),
    ),
    st.builds(Grant, numbers, st.integers(1, 5)),
    st.builds(Cancel, numbers),
    st.builds(Catch, numbers),
)


class Player:
    """Sends the steps, and keeps the model."""

    def __init__(self, session: WireSession) -> None:
        self._session = session
        self._live: dict[str, Expected] = {}
        self._num_read = 0

    def play(self, step: Start | Grant | Cancel | Catch) -> None:
        request_id = f"r{step.number}"
        known = self._live.get(request_id)
        if isinstance(step, Start):
            if known is None or known.ended:
                self._start(request_id, step)
        elif isinstance(step, Grant):
            self._session.grant(request_id, step.num_events)
            if known is not None:
                known.num_credits += step.num_events
        elif isinstance(step, Cancel):
            self._session.cancel(request_id)
            if known is not None:
                known.cancelled = True
        else:
            while known is not None and known.owes_an_event:
                self._read()

    def finish(self) -> None:
        """End what goes on, one way or the other, and the session."""
        for request_id, known in self._live.items():
            if known.num_tokens == ENDLESS:
                self._session.cancel(request_id)
                known.cancelled = True
            elif not known.ended:
                self._session.grant(request_id, len(ANSWER))
                known.num_credits += len(ANSWER)
        self._session.close_own_side()
        while not all(known.ended for known in self._live.values()):
            self._read()
        assert self._session.read_all() is grpc.StatusCode.OK
        assert sum(map(len, self._session.frames.values())) == self._num_read

    def _start(self, request_id: str, step: Start) -> None:
        params = pb.SamplingParams(max_new_tokens=step.num_tokens, temperature=0)
        self._session.start(request_id, step.num_events, sampling_params=params)
        num_credits = float("inf") if step.num_events is None else step.num_events
        self._live[request_id] = Expected(step.num_tokens, num_credits)

    def _read(self) -> None:
        event = self._session.read().event
        self._num_read += 1
        known = self._live[event.request_id]
        assert not known.ended, "a frame after the end"
        known.texts.append(event.text)
        text = "".join(known.texts)
        if not event.finish_reason:
            assert len(known.texts) <= known.num_credits, "an event without a credit"
            assert text == TOKENIZER.decode(ANSWER[: len(known.texts)], True)
            return
        known.ended = True
        if event.finish_reason == pb.FINISH_REASON_LENGTH:
            assert text == TOKENIZER.decode(ANSWER[: known.num_tokens], True)
        else:
            assert (event.finish_reason, known.cancelled) == (pb.FINISH_REASON_ABORT, True)
            assert TOKENIZER.decode(ANSWER, True).startswith(text)


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(answer_of)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[FakeServer]:
    model = model_facts(TOKENIZER.vocab_size, SamplingDefaults(temperature=0.0))
    with FakeServer(loaded=False) as running:
        generator = TextGenerator(engine, TOKENIZER, model, 64)
        running.call(lambda: running.lifecycle.begin_serving(generator))
        yield running


@settings(max_examples=150)
@given(played=st.lists(steps, max_size=30))
def test_any_order_of_frames(
    server: FakeServer, engine: ScriptedEngine, played: list[Start | Grant | Cancel | Catch]
) -> None:
    with WireSession(server.target) as session:
        player = Player(session)
        for step in played:
            player.play(step)
        player.finish()
    server.await_that(lambda: server.lifecycle.num_running == 0)
    assert not engine.live
