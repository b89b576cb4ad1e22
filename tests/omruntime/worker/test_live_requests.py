"""Each request has its acceptance or refusal, then one end; what waits is bounded."""

from __future__ import annotations

import asyncio

import pytest

from omruntime.errors import DuplicateRequestError, NotReadyError, OverloadedError
from omruntime.limits import EngineLimits
from omruntime.outputs import EngineCounters, EngineLoad, TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.worker.live_requests import LiveRequests, error_delta
from omruntime.worker.messages import Answer, CarriedError, Report
from tests.omruntime.test_engine import GREEDY

LIMITS = EngineLimits(
    num_blocks=10, max_num_seqs=4, max_model_len=64, max_chunk_tokens=8,
    max_queued_requests=3, max_queued_tokens=10,
)  # fmt: skip
LAST = TokenDelta((), finish_reason=FinishReason.LENGTH)


def requests_of(cancelled: list[str] | None = None) -> LiveRequests:
    return LiveRequests(LIMITS, (cancelled if cancelled is not None else []).append)


def request(request_id: str, num_tokens: int = 1) -> Request:
    return Request(request_id, (1,) * num_tokens, GREEDY)


def report(*answers: Answer, tokens: tuple = (), deltas: tuple = ()) -> Report:  # type: ignore[type-arg]
    load, counters = EngineLoad.idle(9), EngineCounters.none()
    return Report(load, counters, False, answers, tokens, deltas)


def test_a_request_lives_from_its_acceptance_to_its_last_delta() -> None:
    async def main() -> None:
        requests = requests_of()
        live = requests.enter(request("a"), asyncio.get_running_loop())
        requests.take(report(Answer(live.ticket, None), tokens=((live.ticket, 5),)))
        await live.accepted
        assert (await anext(live.stream)).token_ids == (5,)
        requests.take(report(deltas=((live.ticket, LAST),)))
        assert (await anext(live.stream)).finish_reason is FinishReason.LENGTH
        assert len(requests) == 0
        # Whatever comes after the end, from a process that was given up, is nobody's.
        requests.take(report(Answer(live.ticket, None), deltas=((live.ticket, LAST),)))
        assert requests.num_unanswered == 0

    asyncio.run(main())


def test_a_refusal_comes_with_its_class() -> None:
    async def main() -> None:
        requests = requests_of()
        live = requests.enter(request("a"), asyncio.get_running_loop())
        refusal = CarriedError.of(DuplicateRequestError("taken"))
        requests.take(report(Answer(live.ticket, refusal)))
        with pytest.raises(DuplicateRequestError, match="taken"):
            await live.accepted
        assert len(requests) == requests.num_unanswered == 0

    asyncio.run(main())


def test_the_end_of_a_process_ends_the_accepted_and_refuses_the_others() -> None:
    async def main() -> None:
        requests, loop = requests_of(), asyncio.get_running_loop()
        taken, waiting = requests.enter(request("a"), loop), requests.enter(request("b"), loop)
        requests.take(report(Answer(taken.ticket, None)))
        assert requests.end_all(error_delta("killed"), NotReadyError("soon")) == 1
        last = await anext(taken.stream)
        assert (last.finish_reason, last.error) == (FinishReason.ERROR, "killed")
        with pytest.raises(StopAsyncIteration):
            await anext(taken.stream)
        with pytest.raises(NotReadyError, match="soon"):
            await waiting.accepted
        assert requests.end_all(error_delta("killed"), NotReadyError("soon")) == 0

    asyncio.run(main())


def test_what_a_stuck_process_does_not_take_is_bounded() -> None:
    async def main() -> None:
        requests, loop = requests_of(), asyncio.get_running_loop()
        lives = [requests.enter(request(str(i), 3), loop) for i in range(3)]
        with pytest.raises(OverloadedError, match="max_queued_requests is 3"):
            requests.enter(request("one too many"), loop)
        requests.take(report(Answer(lives[0].ticket, None)))
        with pytest.raises(OverloadedError, match="max_queued_tokens is 10"):
            requests.enter(request("too long", 5), loop)
        requests.enter(request("fits", 4), loop)

    asyncio.run(main())


def test_a_cancellation_is_sent_once_for_each_life_of_an_id() -> None:
    """Else a client could fill the queue to a stuck process with them."""

    async def main() -> None:
        requests, loop = requests_of(), asyncio.get_running_loop()
        assert not requests.may_cancel("a")
        first = requests.enter(request("a"), loop)
        assert [requests.may_cancel("a") for _ in range(3)] == [True, False, False]
        second = requests.enter(request("a"), loop)
        assert [requests.may_cancel("a") for _ in range(2)] == [True, False]
        requests.take(report(*(Answer(live.ticket, None) for live in (first, second))))
        requests.take(report(deltas=((first.ticket, LAST), (second.ticket, LAST))))
        assert not requests.may_cancel("a")
        assert not requests._cancelled

    asyncio.run(main())


def test_a_request_whose_caller_left_is_cancelled_when_it_is_accepted() -> None:
    cancelled: list[str] = []

    async def main() -> None:
        requests = requests_of(cancelled)
        live = requests.enter(request("a"), asyncio.get_running_loop())
        live.accepted.cancel()
        requests.take(report(Answer(live.ticket, None)))
        await asyncio.sleep(0)

    asyncio.run(main())
    assert cancelled == ["a"]
