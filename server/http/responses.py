"""POST /v1/responses: OpenAI's newer route, its text subset."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from omruntime.errors import OmError
from server.field_names import named_as
from server.http.answer_reader import AnswerReader, ReadingPlan
from server.http.answers import finish_reason_of
from server.http.chat_plan import plan_chat
from server.http.errors import body_of
from server.http.events import EventStyle, event_stream
from server.http.field_names import RESPONSES_NAMES
from server.http.gateway import Gateway, request_id_of, unless_gone
from server.http.json_route import JsonRoute
from server.http.responses_items import Event, OutputItems
from server.http.responses_schema import ResponsesBody, chat_body_of
from server.text import TextDelta, TextRequest

_STYLE = EventStyle(end="", is_named=True)
_ENDS = {"stop": "completed", "length": "incomplete"}


def response_routes(gateway: Gateway) -> APIRouter:
    """The route of responses."""
    router = APIRouter(tags=["OpenAI"], route_class=JsonRoute)

    @router.post("/v1/responses")
    async def responses(body: ResponsesBody, http: Request) -> Response:
        """Answer one turn, whole or as server-sent events; nothing is kept."""
        gateway.require(body.model)
        chat = chat_body_of(body)
        with named_as(RESPONSES_NAMES):
            request, plan = await plan_chat(chat, request_id_of(http, "resp"), gateway)
            call = _Call(gateway, body, request, plan)
            if body.stream:
                return await event_stream(http, call.events(), _STYLE)
            return JSONResponse(await unless_gone(http, call.whole()))

    return router


class _Call:
    """One call, and the response as it stands."""

    def __init__(
        self, gateway: Gateway, body: ResponsesBody, request: TextRequest, plan: ReadingPlan
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._reader = AnswerReader(plan)
        self._items = OutputItems()
        self._response = _begun(gateway, body, request.request_id)
        self._num_events = 0

    async def whole(self) -> Mapping[str, object]:
        """The whole response."""
        async with self._gateway.deltas(self._request) as deltas:
            async for delta in deltas:
                for _ in self._accept(delta):
                    pass
        return self._response

    async def events(self) -> AsyncGenerator[Mapping[str, object], None]:
        """The response as it begins, what it gains, and as it ends.

        Raises:
            OmError: Before the first event.
        """
        async with self._gateway.deltas(self._request) as deltas:
            async for delta in deltas:
                if not self._num_events:
                    yield self._told("response.created")
                    yield self._told("response.in_progress")
                try:
                    for event in self._accept(delta):
                        yield self._numbered(event)
                except OmError as error:
                    self._fail(error)
        yield self._told(f"response.{self._response['status']}")

    def _accept(self, delta: TextDelta) -> Iterator[Event]:
        reason = finish_reason_of(delta)
        for piece in self._reader.read(delta):
            yield from self._items.accept(piece)
        if reason is not None:
            status = _ENDS[reason]
            yield from self._items.finish(status)
            details = None if reason == "stop" else {"reason": "max_output_tokens"}
            self._response |= {"status": status, "incomplete_details": details}
            self._response |= {"output": self._items.items, "usage": self._usage(delta)}

    def _fail(self, error: OmError) -> None:
        _, body = body_of(error)
        told: Any = body["error"]
        failure = {"code": "server_error", "message": told["message"]}
        self._response |= {"status": "failed", "error": failure, "output": self._items.items}

    def _usage(self, delta: TextDelta) -> dict[str, object]:
        assert delta.usage is not None
        num_input, num_output = delta.usage.num_prompt_tokens, delta.usage.num_output_tokens
        return {
            "input_tokens": num_input,
            "input_tokens_details": {"cached_tokens": delta.usage.num_cached_tokens},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": self._reader.num_thought_tokens},
            "total_tokens": num_input + num_output,
        }

    def _told(self, kind: str) -> Event:
        return self._numbered({"type": kind, "response": dict(self._response)})

    def _numbered(self, event: Event) -> Event:
        numbered = {**event, "sequence_number": self._num_events}
        self._num_events += 1
        return numbered


def _begun(gateway: Gateway, body: ResponsesBody, request_id: str) -> dict[str, object]:
    """The response before its answer; repeats what was asked, as OpenAI's does."""
    asked = body.model_dump(by_alias=True, exclude_unset=True)
    text_format = (asked.get("text") or {}).get("format") or {"type": "text"}
    return {
        "id": request_id,
        "object": "response",
        "created_at": gateway.now(),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": gateway.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": body.temperature,
        "text": {"format": text_format},
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": asked.get("tools") or [],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }
