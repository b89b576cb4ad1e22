"""A chat body -> the request that it asks for, and how its answers are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from omruntime.errors import FieldError
from server.http.answer_reader import FirstCallWatch, ReadingPlan
from server.http.gateway import Gateway
from server.http.schema import ChatBody
from server.http.think_splitter import ThinkSplitter
from server.http.tools import plan_tools, with_tools_told
from server.http.wishes import messages_of, params_of_chat
from server.text import TextRequest

_CANNOT_HOLD = (
    "a constraint is for the whole answer, but the chat template of this model begins it with a "
    "thought; send chat_template_kwargs with enable_thinking false if the template knows it, or "
    "leave response_format and a forced tool_choice out"
)


async def plan_chat(
    body: ChatBody, request_id: str, gateway: Gateway
) -> tuple[TextRequest, ReadingPlan]:
    """The request of a body, and how its answers are read.

    Raises:
        RequestError: The body asks for what cannot be; the message names the field.
    """
    tools = await plan_tools(body, gateway)
    params, messages = params_of_chat(body), messages_of(body)
    arguments = body.chat_template_kwargs
    if tools is not None and tools.constraint is not None:
        params = replace(params, constraint=tools.constraint)
    if tools is not None and tools.template_tools is not None:
        arguments = {**(arguments or {}), "tools": tools.template_tools}
    elif tools is not None:
        messages = with_tools_told(messages, body.tools or [])
    request = TextRequest(
        request_id=request_id,
        params=params,
        messages=messages,
        template_arguments=arguments,
        cache_salt=body.cache_salt or "",
    )
    plan = ReadingPlan(tools, await _splitter(body, request, gateway))
    if tools is not None and tools.constraint is None and not tools.is_parallel:
        # The model may go on to further calls, so its answer ends behind the first.
        request = replace(request, new_watch=lambda: FirstCallWatch(plan))
    return request, plan


async def _splitter(
    body: ChatBody, request: TextRequest, gateway: Gateway
) -> Callable[[], ThinkSplitter] | None:
    """A constraint is for the whole answer, so it leaves no room for a thought."""
    is_open = await gateway.opens_thought(request)
    if request.params.constraint is not None:
        if is_open:
            raise FieldError(_forcing(body), _CANNOT_HOLD)
        return None
    if is_open is None or body.separate_reasoning is False:
        return None
    return lambda: ThinkSplitter(is_open)


def _forcing(body: ChatBody) -> str:
    return "tool_choice" if body.tools else "response_format"
