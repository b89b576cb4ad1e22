"""The run: who is sent when, what follows what, and that waiting in the client counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from omruntime.errors import CallError, OverloadedError
from server.terminal.bench.records import Outcome, Record
from server.terminal.bench.runner import run_load
from server.terminal.bench.targets.target import Piece
from server.terminal.bench.workload import Conversation, History
from tests.server.terminal.bench.scripted_target import Answer, ScriptedTarget, conversation

PAUSE_S = 0.01


def run(
    target: ScriptedTarget, conversations: Sequence[Conversation], places: int | None
) -> list[Record]:
    return asyncio.run(run_load(target, conversations, places))


def test_a_closed_loop_has_as_many_in_flight_as_users() -> None:
    target = ScriptedTarget()
    records = run(target, [conversation() for _ in range(9)], 3)
    assert target.most_live == 3
    assert [record.outcome for record in records] == [Outcome.OK] * 9
    assert [(r.counts.num_prompt_tokens, r.num_tokens) for r in records] == [(3, 2)] * 9


def test_an_open_loop_waits_for_nobody() -> None:
    target = ScriptedTarget()

    async def until_all_are_there() -> None:
        while target.most_live < 9:
            await asyncio.sleep(0)

    target.pause = until_all_are_there
    run(target, [conversation(0.0) for _ in range(9)], None)
    assert target.most_live == 9


def test_requests_go_at_their_arrival_and_not_before() -> None:
    records = run(ScriptedTarget(), [conversation(n * PAUSE_S) for n in range(3)], None)
    assert [record.due_s for record in records] == [0.0, PAUSE_S, 2 * PAUSE_S]
    assert all(record.sent_s >= record.due_s for record in records)


def test_what_a_request_waits_for_a_place_counts_as_latency_and_not_as_late() -> None:
    """Without it a slow server would slow its own load: coordinated omission."""
    target = ScriptedTarget(pause=lambda: asyncio.sleep(PAUSE_S))
    records = run(target, [conversation(0.0) for _ in range(4)], 1)
    assert target.most_live == 1
    for number, record in enumerate(records):
        assert record.due_s == 0.0
        assert (record.ttft_s or 0.0) >= PAUSE_S * (3 * number + 1)
        assert record.sent_s >= 3 * PAUSE_S * number
        assert record.late_s == pytest.approx(record.sent_s - record.ready_s)
        assert number == 0 or record.ready_s > 0.0


def test_later_turns_send_the_answers_before_again() -> None:
    target = ScriptedTarget()
    records = run(target, [conversation(turns=3)], 1)
    assert target.histories == [((0,),), ((0,), (7, 8), (1,)), ((0,), (7, 8), (1,), (7, 8), (2,))]
    assert [record.turn for record in records] == [0, 1, 2]
    assert records[1].due_s == records[0].end_s


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (CallError("RESOURCE_EXHAUSTED", "full"), Outcome.REJECTED, "RESOURCE_EXHAUSTED"),
        (CallError("HTTP 429", "slow down"), Outcome.REJECTED, "HTTP 429"),
        (OverloadedError("full"), Outcome.REJECTED, "OverloadedError"),
        (CallError("UNAVAILABLE", "gone"), Outcome.FAILED, "UNAVAILABLE"),
    ],
)
def test_refusals_and_failures_are_told_apart_and_end_their_conversation(
    error: Exception, outcome: Outcome, code: str
) -> None:
    def script(_history: History) -> Answer:
        return [error]

    (record,) = run(ScriptedTarget(script), [conversation(turns=3)], 1)
    assert record.outcome is outcome
    assert record.error.startswith(f"{code}: ")


@pytest.mark.parametrize(
    ("last", "code"),
    [(Piece(1, (7,)), "NO END"), (Piece(0, (), "error", "ERROR: the device"), "ERROR")],
)
def test_answers_without_a_good_end_have_failed(last: Piece, code: str) -> None:
    (record,) = run(ScriptedTarget(lambda _history: [last]), [conversation()], 1)
    assert record.outcome is Outcome.FAILED
    assert record.error.partition(":")[0] == code
