"""A chat body -> the request that it asks for, and how its answers are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from omruntime.constraint import Constraint
from omruntime.errors import FieldError
from server.http.answer_reader import FirstCallWatch, ReadingPlan
from server.http.gateway import Gateway
from server.http.reasoning import Beginning
from server.http.schema import ChatBody
from server.http.think_splitter import CLOSE, OPEN, ThinkSplitter
from server.http.tools import plan_tools, with_calls_told, with_tools_told
from server.http.wishes import messages_of, params_of_chat
from server.text import TextRequest


async def plan_chat(
    body: ChatBody, request_id: str, gateway: Gateway
) -> tuple[TextRequest, ReadingPlan]:
    """The request of a body, and how its answers are read.

    Raises:
        RequestError: The body asks for what cannot be; the message names the field.
    """
    tools = await plan_tools(body, gateway)
    params, messages = params_of_chat(body), messages_of(body.messages)
    arguments = body.chat_template_kwargs
    if tools is not None and tools.constraint is not None:
        params = replace(params, constraint=tools.constraint)
    if tools is not None and tools.template_tools is not None:
        arguments = {**(arguments or {}), "tools": tools.template_tools}
    elif tools is not None:
        messages = with_tools_told(messages, body.tools or [])
    messages = await with_calls_told(messages, arguments, gateway)
    request = TextRequest(
        request_id=request_id,
        params=params,
        messages=messages,
        template_arguments=arguments,
        cache_salt=body.cache_salt or "",
    )
    beginning = await gateway.beginning(request)
    if body.separate_reasoning and gateway.reasoning.is_hidden:
        raise FieldError(
            "separate_reasoning",
            "separate_reasoning is set, but this model's texts do not show where a thought ends, "
            "as its tags are special tokens; leave it out",
        )
    plan = ReadingPlan(tools, _splitter(body, beginning))
    if beginning is not None and params.constraint is not None:
        constraint = _behind_thought(params.constraint, beginning)
        request = replace(request, params=replace(params, constraint=constraint))
    if tools is not None and tools.constraint is None and not tools.is_parallel:
        # The model may go on to further calls, so its answer ends behind the first.
        request = replace(request, new_watch=lambda: FirstCallWatch(plan))
    return request, plan


def _splitter(body: ChatBody, beginning: Beginning | None) -> Callable[[], ThinkSplitter] | None:
    if beginning is None:
        return None
    if body.separate_reasoning is False:
        if body.tools:
            raise FieldError(
                "separate_reasoning",
                "separate_reasoning false beside tools is not built in; leave one out",
            )
        return None
    return lambda: ThinkSplitter(is_open=beginning is Beginning.OPEN)


def _behind_thought(constraint: Constraint, beginning: Beginning) -> Constraint:
    """The constraint for what follows a thought, of which the model is free.

    Raises:
        FieldError: It is of a kind that cannot begin in the middle of an answer.
    """
    if beginning is Beginning.CLOSED:
        return constraint
    if not constraint.may_follow:
        raise FieldError(
            "constraint",
            "constraint of another kind than JSON is not built in for a model that thinks first; "
            'set chat_template_kwargs to {"enable_thinking": false} where its template knows that',
        )
    free_from = OPEN if beginning is Beginning.FREE else ""
    return replace(constraint, free_until=CLOSE, free_from=free_from)
