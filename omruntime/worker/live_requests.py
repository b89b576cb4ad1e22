"""LiveRequests: the serving process's side of every request that a device process has.

Owns tickets, streams and their ends: each request gets its acceptance or refusal, and after an
acceptance exactly one last delta, whatever becomes of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from omruntime.errors import OmError, OverloadedError
from omruntime.limits import EngineLimits
from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.token_stream import TokenStream, call_soon, deliver, resolve
from omruntime.worker.messages import Report

# The device process answers between two steps, of which the longest usual ones take about so long.
ANSWERED_S = 1.0


@dataclass(slots=True)
class LiveRequest:
    """One submitted request.

    Attributes:
        accepted: Of the caller's event loop; set once.
        is_accepted: Whether the device process took it.
    """

    ticket: int
    request: Request
    stream: TokenStream
    accepted: asyncio.Future[None]
    is_accepted: bool = False


class LiveRequests:
    """Every request without an end; all calls from any thread."""

    def __init__(self, limits: EngineLimits, cancel: Callable[[str], None]) -> None:
        """Begin empty.

        Args:
            limits: Bound what is on its way to the device process, as they bound its queue.
            cancel: Called in an event loop for a request whose caller left while it was
                accepted.
        """
        self._limits = limits
        self._cancel = cancel
        self._lock = threading.Lock()
        self._by_ticket: dict[int, LiveRequest] = {}
        self._num_by_id: Counter[str] = Counter()
        # Ids that a cancellation is under way for; one is enough, however often it is asked.
        self._cancelled: set[str] = set()
        self._num_tickets = 0
        self._num_unanswered = 0
        self._num_unanswered_tokens = 0

    def __len__(self) -> int:
        return len(self._by_ticket)

    @property
    def num_unanswered(self) -> int:
        """Requests that were neither accepted nor refused."""
        return self._num_unanswered

    def enter(self, request: Request, loop: asyncio.AbstractEventLoop) -> LiveRequest:
        """Give a request its ticket.

        Raises:
            OverloadedError: Too much is on its way already.
        """
        stream = TokenStream(request.request_id, loop)
        with self._lock:
            self._require_room(request)
            self._num_tickets += 1
            live = LiveRequest(self._num_tickets, request, stream, loop.create_future())
            self._by_ticket[live.ticket] = live
            self._num_by_id[request.request_id] += 1
            self._cancelled.discard(request.request_id)
            self._num_unanswered += 1
            self._num_unanswered_tokens += len(request.prompt_token_ids)
        return live

    def may_cancel(self, request_id: str) -> bool:
        """Whether a cancellation of an id has any effect that another one has not had."""
        with self._lock:
            if request_id not in self._num_by_id or request_id in self._cancelled:
                return False
            self._cancelled.add(request_id)
            return True

    def take(self, report: Report) -> None:
        """Hand out what a report says; tickets that have ended are passed over."""
        with self._lock:
            for answer in report.answers:
                refusal = answer.refusal
                self._answer(answer.ticket, None if refusal is None else refusal.restore())
            pairs = [(ticket, TokenDelta((token_id,))) for ticket, token_id in report.tokens]
            known = self._known([*pairs, *report.deltas])
        deliver(known)

    def end_all(self, last: TokenDelta, refusal: OmError) -> int:
        """End every request.

        Args:
            last: For those that were accepted.
            refusal: For the others.

        Returns:
            How many were accepted.
        """
        with self._lock:
            for live in [live for live in self._by_ticket.values() if not live.is_accepted]:
                self._answer(live.ticket, refusal)
            known = self._known([(ticket, last) for ticket in tuple(self._by_ticket)])
        deliver(known)
        return len(known)

    # From here on: with the lock held.

    def _require_room(self, request: Request) -> None:
        limits = self._limits
        if self._num_unanswered >= limits.max_queued_requests:
            raise OverloadedError.until(
                f"the queue before the device process is full: {self._num_unanswered} wait, "
                f"max_queued_requests is {limits.max_queued_requests}",
                ANSWERED_S,
            )
        num_tokens = self._num_unanswered_tokens + len(request.prompt_token_ids)
        if self._num_unanswered and num_tokens > limits.max_queued_tokens:
            raise OverloadedError.until(
                f"the queue before the device process is full: {num_tokens} prompt tokens would "
                f"wait, max_queued_tokens is {limits.max_queued_tokens}",
                ANSWERED_S,
            )

    def _answer(self, ticket: int, refusal: OmError | None) -> None:
        live = self._by_ticket.get(ticket)
        if live is None:
            return
        self._num_unanswered -= 1
        self._num_unanswered_tokens -= len(live.request.prompt_token_ids)
        if refusal is not None:
            self._forget(live)
            resolve(live.accepted, refusal)
            return
        live.is_accepted = True
        call_soon(live.stream.loop, self._accept, live)

    def _known(
        self, deltas: Iterable[tuple[int, TokenDelta]]
    ) -> list[tuple[TokenStream, TokenDelta]]:
        """The deltas of live requests with their streams; those that end are forgotten."""
        known = []
        for ticket, delta in deltas:
            live = self._by_ticket.get(ticket)
            if live is None:
                continue
            known.append((live.stream, delta))
            if delta.finish_reason is not None:
                self._forget(live)
        return known

    def _forget(self, live: LiveRequest) -> None:
        request_id = live.request.request_id
        del self._by_ticket[live.ticket]
        self._num_by_id[request_id] -= 1
        if not self._num_by_id[request_id]:
            del self._num_by_id[request_id]
            self._cancelled.discard(request_id)

    def _accept(self, live: LiveRequest) -> None:
        """Tell the caller of `submit`; in its event loop, without the lock."""
        if live.accepted.cancelled():
            self._cancel(live.request.request_id)
        else:
            live.accepted.set_result(None)


def error_delta(text: str) -> TokenDelta:
    """The last delta of a request that its device process did not survive."""
    return TokenDelta((), finish_reason=FinishReason.ERROR, error=text)
