"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from server.answers import join_deltas
from server.field_names import named_as
from server.http.answer_reader import AnswerPiece, AnswerReaders, ReadingPlan
from server.http.answers import (
    chat_logprobs,
    finish_reason_of,
    prompt_logprobs_of,
    usage_of,
)
from server.http.chat_parts import delta_of, message_of
from server.http.chat_plan import plan_chat
from server.http.events import event_stream
from server.http.field_names import chat_names
from server.http.gateway import Gateway, request_id_of, unless_gone
from server.http.json_route import JsonRoute
from server.http.schema import ChatBody
from server.text import TextDelta, TextRequest, Usage


def chat_routes(gateway: Gateway) -> APIRouter:
    """The route of chat completions."""
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)

    @router.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody, http: Request) -> Response:
        """Continue a conversation, whole or as server-sent events."""
        gateway.require(body.model)
        with named_as(chat_names(body)):
            request, plan = await plan_chat(body, request_id_of(http, "chatcmpl"), gateway)
            if body.stream:
                wants_usage = body.stream_options is not None and body.stream_options.include_usage
                return await event_stream(http, _chunks(gateway, request, wants_usage, plan))
            return JSONResponse(await unless_gone(http, _whole(gateway, request, plan)))

    return router


async def _whole(gateway: Gateway, request: TextRequest, plan: ReadingPlan) -> dict[str, object]:
    async with gateway.deltas(request) as stream:
        deltas = [delta async for delta in stream]
    answers = join_deltas(deltas)
    reasons = [finish_reason_of(answer) for answer in answers]
    readers = AnswerReaders(plan)
    pieces: dict[int, list[AnswerPiece]] = {answer.index: [] for answer in answers}
    for delta in deltas:
        pieces[delta.index] += readers.read(delta)
    choices = [
        {
            "index": answer.index,
            "message": message_of(pieces[answer.index]),
            "logprobs": await chat_logprobs(answer, gateway.token_text),
            "finish_reason": readers.reason(answer.index, reason),
            "stop_reason": answer.matched_stop,
        }
        for answer, reason in zip(answers, reasons, strict=True)
    ]
    usages = [answer.usage for answer in answers if answer.usage is not None]
    body = _frame(gateway, request, "chat.completion")
    body |= {"choices": choices, "usage": usage_of(usages) | readers.usage()}
    k = request.params.prompt_logprobs
    if k is not None:
        tokens = answers[0].prompt_logprobs
        body["prompt_logprobs"] = await prompt_logprobs_of(tokens, k, gateway.token_text)
    return body


async def _chunks(
    gateway: Gateway, request: TextRequest, wants_usage: bool, plan: ReadingPlan
) -> AsyncGenerator[Mapping[str, object], None]:
    """For each answer its role first, then text, then the reason why it ended, alone."""
    frame = _frame(gateway, request, "chat.completion.chunk")
    if wants_usage:
        frame["usage"] = None
    readers = AnswerReaders(plan)
    usages: list[Usage] = []
    async with gateway.deltas(request) as deltas:
        async for delta in deltas:
            if delta.index not in readers:
                yield frame | _choice(delta.index, {"role": "assistant", "content": ""})
            reason = finish_reason_of(delta)
            logprobs = await chat_logprobs(delta, gateway.token_text)
            for piece in readers.read(delta) or ([""] if logprobs else []):
                yield frame | _choice(delta.index, delta_of(piece), logprobs)
                logprobs = None
            if reason is not None:
                reason = readers.reason(delta.index, reason)
                yield frame | _choice(delta.index, {}, reason=reason, stop=delta.matched_stop)
            _collect(usages, delta)
    if wants_usage:
        yield frame | {"choices": [], "usage": usage_of(usages) | readers.usage()}


def _collect(usages: list[Usage], delta: TextDelta) -> None:
    if delta.usage is not None:
        usages.append(delta.usage)


def _frame(gateway: Gateway, request: TextRequest, kind: str) -> dict[str, object]:
    return {
        "id": request.request_id,
        "object": kind,
        "created": gateway.now(),
        "model": gateway.model,
    }


def _choice(
    index: int,
    delta: Mapping[str, object],
    logprobs: object = None,
    reason: str | None = None,
    stop: str | int | None = None,
) -> dict[str, object]:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return {"choices": [choice if stop is None else choice | {"stop_reason": stop}]}
