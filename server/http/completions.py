"""POST /v1/completions: plain text, several prompts at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from server.all_or_error import all_or_error
from server.answers import joined, sort_deltas
from server.field_names import named_as
from server.http.answers import (
    CompletionLogprobs,
    finish_reason_of,
    prompt_logprobs_of,
    usage_of,
)
from server.http.events import event_stream
from server.http.field_names import completion_names
from server.http.gateway import Gateway, request_id_of, unless_gone
from server.http.json_route import JsonRoute
from server.http.schema import CompletionBody
from server.http.wishes import params_of_completion, prompts_of
from server.security.callers import require_possible
from server.text import PromptToken, TextDelta, TextRequest, Usage


def completion_routes(gateway: Gateway) -> APIRouter:
    """The route of plain completions."""
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)

    @router.post("/v1/completions")
    async def completions(body: CompletionBody, http: Request) -> Response:
        """Continue texts, whole or as server-sent events."""
        gateway.require(body.model)
        with named_as(completion_names(body)):
            call = _Call(gateway, request_id_of(http, "cmpl"), body)
            if body.stream:
                return await event_stream(http, call.chunks())
            return JSONResponse(await unless_gone(http, call.whole()))

    return router


@dataclass(slots=True)
class _End:
    """How far a choice has been written: characters of its text, and of the prompt's tokens."""

    is_echoed: bool = False
    text: int = 0
    prompt: int = 0


class _Call:
    """One call: a request for each prompt, and choices numbered through all of them."""

    def __init__(self, gateway: Gateway, call_id: str, body: CompletionBody) -> None:
        self._gateway = gateway
        self._body = body
        self._params = params_of_completion(body)
        self._prompts = prompts_of(body)
        require_possible(len(self._prompts), "prompt")
        self._requests = [
            TextRequest(
                request_id=call_id if len(self._prompts) == 1 else f"{call_id}-{number}",
                params=self._params,
                text=prompt if isinstance(prompt, str) else None,
                token_ids=None if isinstance(prompt, str) else prompt,
                cache_salt=body.cache_salt or "",
            )
            for number, prompt in enumerate(self._prompts)
        ]
        self._frame: dict[str, object] = {
            "id": call_id,
            "object": "text_completion",
            "created": gateway.now(),
            "model": gateway.model,
        }

    async def whole(self) -> dict[str, object]:
        """The whole reply."""
        groups = await self._all_answers()
        choices = []
        for number, group in enumerate(groups):
            prompt = joined(group[0]).prompt_logprobs
            for pieces in group:
                answer = replace(joined(pieces), prompt_logprobs=prompt)
                choices.append(await self._choice(number, answer, _End(), pieces))
        usages = [d.usage for group in groups for a in group for d in a if d.usage is not None]
        usage = usage_of(usages, len(self._prompts))
        return self._frame | {"choices": choices, "usage": usage}

    async def chunks(self) -> AsyncGenerator[Mapping[str, object], None]:
        """The reply piece by piece."""
        options = self._body.stream_options
        wants_usage = options is not None and options.include_usage
        frame = self._frame | ({"usage": None} if wants_usage else {})
        usages: dict[int, list[Usage]] = {}
        ends: dict[tuple[int, int], _End] = {}
        async for number, delta in self._merged():
            end = ends.setdefault((number, delta.index), _End())
            has_more = delta.text or delta.logprobs or delta.finish_reason is not None
            is_echo_due = self._body.echo and not end.is_echoed
            if is_echo_due or self._scores(delta) or has_more:
                yield frame | {"choices": [await self._choice(number, delta, end, (delta,))]}
            if delta.usage is not None:
                usages.setdefault(number, []).append(delta.usage)
        if wants_usage:
            found = [usage for number in sorted(usages) for usage in usages[number]]
            yield frame | {"choices": [], "usage": usage_of(found, len(self._prompts))}

    async def _all_answers(self) -> list[tuple[list[TextDelta], ...]]:
        """The deltas of every prompt's answers.

        The first refusal ends the other prompts, since nobody will read them.
        """
        return await all_or_error(self._answers(request) for request in self._requests)

    async def _answers(self, request: TextRequest) -> tuple[list[TextDelta], ...]:
        async with self._gateway.deltas(request) as deltas:
            return sort_deltas([delta async for delta in deltas])

    async def _merged(self) -> AsyncIterator[tuple[int, TextDelta]]:
        """The deltas of all prompts as they come."""
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(self._gateway.deltas(request))
                for request in self._requests
            ]
            waiting = {asyncio.ensure_future(anext(s)): i for i, s in enumerate(streams)}
            try:
                while waiting:
                    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in [task for task in waiting if task in done]:
                        number = waiting.pop(task)
                        if isinstance(task.exception(), StopAsyncIteration):
                            continue
                        waiting[asyncio.ensure_future(anext(streams[number]))] = number
                        yield number, task.result()
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    async def _echo(self, number: int) -> str:
        if not self._body.echo:
            return ""
        prompt = self._prompts[number]
        if isinstance(prompt, str):
            return prompt
        return await self._gateway.lifecycle.require_loaded().detokenize(prompt, False)

    def _scores(self, delta: TextDelta) -> tuple[PromptToken, ...]:
        """The tokens of the prompt whose logprobs an echo shows."""
        is_shown = self._body.echo and self._body.logprobs is not None
        return delta.prompt_logprobs if is_shown else ()

    async def _choice(
        self, number: int, delta: TextDelta, end: _End, pieces: Sequence[TextDelta]
    ) -> dict[str, object]:
        """A choice, or the next piece of it; moves its end.

        Args:
            pieces: What the delta was joined from: where texts of tokens and of deltas differ, as
                inside of characters, they tell the places.
        """
        prefix = "" if end.is_echoed else await self._echo(number)
        end.is_echoed = True
        end.text += len(prefix)
        logprobs = CompletionLogprobs(self._gateway.token_text)
        k = self._body.logprobs or 0
        end.prompt = await logprobs.put_prompt(self._scores(delta), k, end.prompt)
        for piece in pieces:
            await logprobs.put_answer(piece, end.text)
            end.text += len(piece.text)
        choice: dict[str, object] = {
            "index": number * self._params.n + delta.index,
            "text": prefix + delta.text,
            "logprobs": logprobs.body(),
            "finish_reason": finish_reason_of(delta),
            "stop_reason": delta.matched_stop,
        }
        k_asked = self._body.prompt_logprobs
        if k_asked is not None:
            choice["prompt_logprobs"] = await prompt_logprobs_of(
                delta.prompt_logprobs, k_asked, self._gateway.token_text
            )
        return choice
