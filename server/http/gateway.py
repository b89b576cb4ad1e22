"""Gateway: what the routes share of the server, and the life of one request over HTTP.

A client that goes away aborts its request, whichever kind of answer it waits for.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from fastapi import Request

from server.answers import terminated_deltas
from server.grpc_service import require_served_model
from server.http.reasoning import Beginning, Reasoning
from server.http.request_id import answer_with_id, given_id
from server.lifecycle import Lifecycle
from server.logs import request_id_var
from server.seams import TextGeneratorLike
from server.text import TextDelta, TextRequest

Result = TypeVar("Result")


class ClientGoneError(Exception):
    """The client closed the connection; there is nobody to answer."""


class Gateway:
    """One served model over HTTP; used from one event loop."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        model: str,
        max_model_len: int,
        tool_parser: str | None = None,
        reasoning_parser: str = "auto",
    ) -> None:
        """Answer for one model; `model` is the served name.

        Args:
            max_model_len: Most tokens of prompt plus answer.
            tool_parser: How the model writes tool calls down; None: as its template says.
            reasoning_parser: Whether its answers begin with a thought: think, none or auto.
        """
        self.tool_parser = tool_parser
        self.reasoning = Reasoning(reasoning_parser)
        self.lifecycle = lifecycle
        self.model = model
        self.max_model_len = max_model_len
        self.created = int(time.time())
        self._token_texts: dict[int, str] = {}
        self._are_special: dict[int, bool] = {}

    def now(self) -> int:
        """Seconds since 1970, as OpenAI's bodies have them."""
        return int(time.time())

    def require(self, model: str | None) -> TextGeneratorLike:
        """The text generator for a new request.

        Raises:
            UnknownModelError: Another model than the served one was named.
            NotReadyError, ShuttingDownError: No request is taken now.
        """
        if model is not None:
            require_served_model(model, self.model)
        return self.lifecycle.require_serving()

    async def token_text(self, token_id: int) -> str:
        """The text of one token by itself; bytes that form no character are U+FFFD."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = await self.lifecycle.require_loaded().detokenize((token_id,), False)
            self._token_texts[token_id] = text
        return text

    async def is_special(self, token_id: int) -> bool:
        """Whether a token is left out of texts."""
        if token_id not in self._are_special:
            shown = await self.lifecycle.require_loaded().detokenize((token_id,), True)
            self._are_special[token_id] = bool(await self.token_text(token_id)) and not shown
        return self._are_special[token_id]

    async def beginning(self, request: TextRequest) -> Beginning | None:
        """As `Reasoning.beginning`, of a request with messages."""
        generator = self.lifecycle.require_loaded()
        return await self.reasoning.beginning(
            generator, request.messages or (), request.template_arguments
        )

    @asynccontextmanager
    async def deltas(self, request: TextRequest) -> AsyncIterator[AsyncGenerator[TextDelta, None]]:
        """The request's deltas, counted as running; leaving early aborts it."""
        generator = self.lifecycle.require_serving()
        request_id_var.set(request.request_id)
        with self.lifecycle.running():
            async with aclosing(terminated_deltas(generator, request, self.lifecycle)) as deltas:
                yield deltas


def request_id_of(request: Request, prefix: str) -> str:
    """An id for a request, which begins with the client's own X-Request-Id if it has one.

    The reply's header tells it, in refusals too.

    A header that no id can be made of is dropped, since proxies set what they like; one that is
    sent twice, as with a second try, makes two ids, since the first may still be live.
    """
    given = given_id(request.headers)
    own = uuid.uuid4().hex
    found = f"{prefix}-{given}-{own[:8]}" if given else f"{prefix}-{own}"
    answer_with_id(request.scope, found)
    return found


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled when the client goes away.

    Raises:
        ClientGoneError: It went away.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(until_gone(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def until_gone(request: Request) -> None:
    """Return when the client has closed the connection; the body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
