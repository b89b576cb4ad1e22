"""Churn: many clients that ask, read, and go away at random times, over the toy model.

Owns the clients and what they check: every greedy answer, whole or cut short, must be the toy
model's own, whatever was preempted, shared or cancelled around it. What the engine may keep in
memory meanwhile is `bench.soak`'s business.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from omruntime.async_engine import AsyncEngine
from omruntime.errors import OverloadedError
from omruntime.manifest import SamplingDefaults
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling, Urgency
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.token_stream import TokenStream
from tests.omruntime.toy_model import BLOCK_SIZE, EOS_TOKEN_ID, toy_answer

NUM_CLIENTS = 48
SHARE_CANCELLED = 0.3
MOST_NEW_TOKENS = 24
RETRY_S = 0.02
REFUSED = "refused"

# Sixteen rows of the longest sequence want 256 blocks: preemptions are certain.
# With second answers there are sometimes more requests than may wait, so that some are refused.
SETTINGS = EngineSettings(
    num_threads=1,
    num_blocks=97,
    max_queued_requests=40,
    check_invariants_every=100,
    # As on a card: more is under way at once.
    overlap_scheduling=True,
)


@dataclass(slots=True)
class Tally:
    """What became of the requests.

    Attributes:
        ends: By finish reason, or how the client left.
        wrong: The first few answers that were not the model's.
    """

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        """Requests that were taken and have come to their end."""
        return self.ends.total() - self.ends[REFUSED]

    def note_wrong(self, text: str) -> None:
        """Remember an answer that must not be."""
        if len(self.wrong) < 10:
            self.wrong.append(text)


class Client:
    """One caller: asks again as soon as it has its answer or has lost patience."""

    def __init__(self, engine: AsyncEngine, tally: Tally, number: int, seed: int) -> None:
        self._engine = engine
        self._tally = tally
        self._name = f"client-{number}"
        self._num_asked = 0
        self._draw = random.Random(f"{seed} {number}")  # noqa: S311 - must be repeatable

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Ask until it is over."""
        while not is_over():
            requests = self._requests()
            await asyncio.gather(*(self._ask(request) for request in requests))

    def _requests(self) -> list[Request]:
        """One request, or now and then a second answer to the same prompt."""
        draw = self._draw
        self._num_asked += 1
        request_id = f"{self._name}-{self._num_asked}"
        prompt, params, scheduling = self._prompt(), self._params(), self._scheduling()
        salt = draw.choice(("", "", "", "a", "b"))
        first = Request(request_id, prompt, params, salt, scheduling=scheduling)
        if draw.random() < 0.9:
            return [first]
        second = Request(f"{request_id}-2", prompt, params, salt, request_id, scheduling)
        return [first, second]

    def _prompt(self) -> tuple[int, ...]:
        """Often the beginning of one of a few well-known texts, then words of its own."""
        draw = self._draw
        known = draw.randrange(8)
        shared = tuple((7 * known + 3 * i) % EOS_TOKEN_ID for i in range(6 * BLOCK_SIZE))
        own = tuple(draw.randrange(EOS_TOKEN_ID) for _ in range(draw.randint(1, 10)))
        return shared[: draw.choice((0, 5, 16, 24))] + own

    def _params(self) -> SamplingParams:
        draw = self._draw
        most = draw.randint(1, MOST_NEW_TOKENS)
        if draw.random() < 0.8:
            logprobs = draw.choice((None, None, 0, 3))
            params = SamplingParams(temperature=0.0, max_new_tokens=most, logprobs=logprobs)
        else:
            params = SamplingParams(
                temperature=1.0, max_new_tokens=most, seed=draw.randrange(1 << 30),
                top_p=0.9, repetition_penalty=1.1,
            )  # fmt: skip
        return params.resolve(SamplingDefaults())

    def _scheduling(self) -> Scheduling:
        draw = self._draw
        return Scheduling(
            urgency=draw.choice((Urgency.LOW, Urgency.NORMAL, Urgency.NORMAL, Urgency.HIGH)),
            # Ever new tenants: an engine that remembered them all would grow.
            tenant=draw.choice(("", f"{self._name}-{self._num_asked // 100}")),
            queue_timeout_s=draw.choice((None, None, None, 0.05)),
            deadline=draw.choice((None, None, None, time.monotonic() + draw.uniform(0.01, 0.2))),
            keeps_prefix=draw.random() < 0.1,
        )

    async def _ask(self, request: Request) -> None:
        try:
            self._tally.ends[await self._outcome(request)] += 1
        except OverloadedError:
            self._tally.ends[REFUSED] += 1
            await asyncio.sleep(RETRY_S)

    async def _outcome(self, request: Request) -> str:
        patience = self._draw.random()
        if patience >= SHARE_CANCELLED:
            return await self._read(request, await self._engine.submit(request))
        if patience < 0.2 * SHARE_CANCELLED:
            return await self._leave_while_asking(request)
        stream = await self._engine.submit(request)
        if patience < 0.4 * SHARE_CANCELLED:
            await self._engine.abort(request.request_id)
            return await self._read(request, stream)
        return await self._leave_while_reading(request, stream)

    async def _leave_while_asking(self, request: Request) -> str:
        asking = asyncio.ensure_future(self._engine.submit(request))
        for _ in range(self._draw.randrange(3)):
            await asyncio.sleep(0)
        asking.cancel()
        results = await asyncio.gather(asking, return_exceptions=True)
        if isinstance(results[0], OverloadedError):
            raise results[0]
        if isinstance(results[0], TokenStream):  # accepted before the cancellation
            self._engine.cancel(request.request_id)
        return "left while asking"

    async def _leave_while_reading(self, request: Request, stream: TokenStream) -> str:
        tokens: tuple[int, ...] = ()
        num_deltas = self._draw.randrange(MOST_NEW_TOKENS)
        async for delta in stream:
            tokens += delta.token_ids
            if num_deltas == 0 or delta.finish_reason is not None:
                break
            num_deltas -= 1
        self._engine.cancel(request.request_id)
        self._compare(request, tokens, None)
        return "left while reading"

    async def _read(self, request: Request, stream: TokenStream) -> str:
        tokens: tuple[int, ...] = ()
        reason = None
        async for delta in stream:
            tokens += delta.token_ids
            reason = delta.finish_reason
        assert reason is not None, "a stream ended without a reason"
        self._compare(request, tokens, reason)
        return reason.value

    def _compare(
        self, request: Request, tokens: tuple[int, ...], reason: FinishReason | None
    ) -> None:
        params = request.params
        if reason is FinishReason.ERROR:
            self._tally.note_wrong(f"{request}: ended with an error")
        if not params.is_greedy:
            return
        assert params.max_new_tokens is not None
        wanted = toy_answer(request.prompt_token_ids, params.max_new_tokens)
        if EOS_TOKEN_ID in wanted:
            wanted = wanted[: wanted.index(EOS_TOKEN_ID) + 1]
        is_whole = reason in (FinishReason.STOP, FinishReason.LENGTH)
        if tokens != (wanted if is_whole else wanted[: len(tokens)]):
            self._tally.note_wrong(f"{request}: got {tokens}, wanted {wanted}")
