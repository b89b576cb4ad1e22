"""The run itself: sends conversations when they are due and notes what comes back.

Open loop: a conversation begins at its arrival, whatever the others do. Closed loop: so many
users, each of whom holds one conversation after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from omruntime.errors import CallError, OmError, OverloadedError
from server.terminal.bench.records import Outcome, Record
from server.terminal.bench.targets.target import Piece, Target
from server.terminal.bench.workload import Content, Conversation, History, Turn, joined

_REJECTIONS = ("RESOURCE_EXHAUSTED", "HTTP 429")


async def run_load(
    target: Target, conversations: Sequence[Conversation], max_concurrency: int | None
) -> list[Record]:
    """Send everything; the records in the order in which requests were due to be sent.

    A conversation ends with its first request that is rejected or fails: what would follow builds
    on the answer. Failures are records, never exceptions.

    Args:
        conversations: All with an arrival, in their order, or all without one.
        max_concurrency: Closed loop: the number of users. Open loop: most requests in flight; one
            that is due waits for a place, and its latencies count the wait. None: no limit.
    """
    sender = _Sender(target, max_concurrency)
    if conversations and conversations[0].arrival_s is None:
        assert max_concurrency is not None, "a closed loop has a number of users"
        waiting = iter(enumerate(conversations))
        async with asyncio.TaskGroup() as users:
            for _ in range(min(max_concurrency, len(conversations))):
                users.create_task(sender.use(waiting))
    else:
        async with asyncio.TaskGroup() as running:
            for number, conversation in enumerate(conversations):
                assert conversation.arrival_s is not None
                await sender.wait_until(conversation.arrival_s)
                running.create_task(sender.converse(number, conversation, conversation.arrival_s))
    return sender.records


class _Sender:
    """Sends, and keeps the records; the clock starts with it."""

    def __init__(self, target: Target, max_concurrency: int | None) -> None:
        self.records: list[Record] = []
        self._target = target
        self._places = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._start = time.perf_counter()

    async def wait_until(self, moment_s: float) -> None:
        """Sleep up to a moment of the run; at least let others run."""
        await asyncio.sleep(max(0.0, moment_s - self._now()))

    async def use(self, waiting: Iterator[tuple[int, Conversation]]) -> None:
        """Hold conversations until none is left."""
        for number, conversation in waiting:
            await self.converse(number, conversation, self._now())

    async def converse(self, number: int, conversation: Conversation, due_s: float) -> None:
        """One turn after the other, until one gives no whole answer."""
        history: History = ()
        for index, turn in enumerate(conversation.turns):
            if index:
                due_s += turn.think_s
                await self.wait_until(due_s)
            record = Record(number, index, due_s, turn.num_output_tokens)
            self.records.append(record)
            history = (*history, turn.content)
            answer = await self._ask(record, history, turn)
            if record.outcome is not Outcome.OK:
                return
            history, due_s = (*history, answer), record.end_s

    async def _ask(self, record: Record, history: History, turn: Turn) -> Content:
        if self._places is None:
            record.ready_s = record.due_s
            return await self._answer(record, history, turn)
        has_to_wait = self._places.locked()
        async with self._places:
            record.ready_s = self._now() if has_to_wait else record.due_s
            return await self._answer(record, history, turn)

    async def _answer(self, record: Record, history: History, turn: Turn) -> Content:
        """Send one request and note all that comes back; the answer."""
        parts: list[Content] = []
        record.sent_s = self._now()
        try:
            async with aclosing(self._target.ask(history, turn.num_output_tokens)) as pieces:
                await self._note(record, pieces, parts)
        except OmError as error:
            record.outcome, record.error = _blame(error)
        record.end_s = self._now()
        empty: Content = "" if isinstance(turn.content, str) else ()
        return joined((empty, *parts))

    async def _note(
        self, record: Record, pieces: AsyncGenerator[Piece, None], parts: list[Content]
    ) -> None:
        async for piece in pieces:
            if piece.num_tokens:
                record.events.append((self._now(), piece.num_tokens))
            parts.append(piece.content)
            record.counts = piece.counts or record.counts
            record.finish_reason = piece.finish_reason or record.finish_reason
            record.error = piece.error or record.error
        if not record.finish_reason and not record.error:
            record.error = "NO END: the stream ended before the answer did"
        record.outcome = Outcome.FAILED if record.error else Outcome.OK

    def _now(self) -> float:
        return time.perf_counter() - self._start


def _blame(error: OmError) -> tuple[Outcome, str]:
    """The outcome, and code and text, of a request that was refused or broke off."""
    code = error.code if isinstance(error, CallError) else type(error).__name__
    is_rejection = code in _REJECTIONS or isinstance(error, OverloadedError)
    return (Outcome.REJECTED if is_rejection else Outcome.FAILED), f"{code}: {error}"
