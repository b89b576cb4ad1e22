"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from server.answers import join_deltas
from server.http.answer_calls import AnswerCalls
from server.http.answers import (
    chat_logprobs,
    finish_reason_of,
    prompt_logprobs_of,
    usage_of,
)
from server.http.events import event_stream
from server.http.gateway import Gateway, request_id_of, unless_gone
from server.http.schema import ChatBody
from server.http.tools import ToolPlan, plan_tools, with_tools_told
from server.http.wishes import messages_of, params_of_chat
from server.text import TextDelta, TextRequest, Usage


def chat_routes(gateway: Gateway) -> APIRouter:
    """The route of chat completions."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody, http: Request) -> Response:
        """Continue a conversation, whole or as server-sent events."""
        gateway.require(body.model)
        plan = await plan_tools(body, gateway)
        request = _request(body, request_id_of(http, "chatcmpl"), plan)
        if body.stream:
            wants_usage = body.stream_options is not None and body.stream_options.include_usage
            return await event_stream(_chunks(gateway, request, wants_usage, plan))
        return JSONResponse(await unless_gone(http, _whole(gateway, request, plan)))

    return router


def _request(body: ChatBody, request_id: str, plan: ToolPlan | None) -> TextRequest:
    params, messages = params_of_chat(body), messages_of(body)
    arguments = body.chat_template_kwargs
    if plan is not None and plan.constraint is not None:
        params = replace(params, constraint=plan.constraint)
    if plan is not None and plan.template_tools is not None:
        arguments = {**(arguments or {}), "tools": plan.template_tools}
    elif plan is not None:
        messages = with_tools_told(messages, body.tools or [])
    return TextRequest(
        request_id=request_id,
        params=params,
        messages=messages,
        template_arguments=arguments,
        cache_salt=body.cache_salt or "",
    )


async def _whole(
    gateway: Gateway, request: TextRequest, plan: ToolPlan | None
) -> dict[str, object]:
    async with gateway.deltas(request) as deltas:
        answers = join_deltas([delta async for delta in deltas])
    choices = []
    for answer in answers:
        calls = AnswerCalls(plan)
        reason = finish_reason_of(answer)
        message = calls.message(answer.text)
        choices.append(
            {
                "index": answer.index,
                "message": message,
                "logprobs": await chat_logprobs(answer, gateway.token_text),
                "finish_reason": calls.reason(reason),
                "stop_reason": answer.matched_stop,
            }
        )
    usages = [answer.usage for answer in answers if answer.usage is not None]
    body = _frame(gateway, request, "chat.completion")
    body |= {"choices": choices, "usage": usage_of(usages)}
    k = request.params.prompt_logprobs
    if k is not None:
        tokens = answers[0].prompt_logprobs
        body["prompt_logprobs"] = await prompt_logprobs_of(tokens, k, gateway.token_text)
    return body


async def _chunks(
    gateway: Gateway, request: TextRequest, wants_usage: bool, plan: ToolPlan | None
) -> AsyncGenerator[Mapping[str, object], None]:
    """For each answer its role first, then text, then the reason why it ended, alone."""
    frame = _frame(gateway, request, "chat.completion.chunk")
    if wants_usage:
        frame["usage"] = None
    calls: dict[int, AnswerCalls] = {}
    usages: list[Usage] = []
    async with gateway.deltas(request) as deltas:
        async for delta in deltas:
            if delta.index not in calls:
                calls[delta.index] = AnswerCalls(plan)
                yield frame | _choice(delta.index, {"role": "assistant", "content": ""})
            reason = finish_reason_of(delta)
            logprobs = await chat_logprobs(delta, gateway.token_text)
            pieces = calls[delta.index].deltas(delta.text, reason is not None)
            for piece in pieces or ([{"content": ""}] if logprobs else []):
                yield frame | _choice(delta.index, piece, logprobs)
                logprobs = None
            if reason is not None:
                reason = calls[delta.index].reason(reason)
                yield frame | _choice(delta.index, {}, reason=reason, stop=delta.matched_stop)
            _collect(usages, delta)
    if wants_usage:
        yield frame | {"choices": [], "usage": usage_of(usages)}


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
