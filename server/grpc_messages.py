"""Wire messages <-> domain objects, both ways: the server reads requests, the client writes them.

Nothing here decides anything but whether a message is well formed.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import struct_pb2
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from omruntime.constraint import Constraint
from omruntime.errors import NotBuiltInError, RequestError
from omruntime.outputs import RequestTimings
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from omruntime.step import TokenLogprobs
from server.grpc_options import (
    output_from,
    prompt_tokens_from,
    prompt_tokens_to,
    scheduling_from,
)
from server.pb import inference_pb2 as pb
from server.score import Continuation, ScoreRequest
from server.text import ChatMessage, TextDelta, TextRequest, Usage
from server.value_limit import messages_of

GenerationMessage = pb.GenerateRequest | pb.GenerateStreamRequest
"""The two request messages with the same fields."""

# Beyond so many their numbers are not looked for, which takes a while of everybody's time.
MAX_UNKNOWN_BYTES = 1 << 16
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")

_REASON_TO_WIRE = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORT: pb.FINISH_REASON_ABORT,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}
_REASON_FROM_WIRE = {wire: reason for reason, wire in _REASON_TO_WIRE.items()}


def text_request_from(message: GenerationMessage) -> TextRequest:
    """Read a generation request; makes a request id if there is none.

    Raises:
        RequestError: A field is missing or out of range.
    """
    request = _request_from(message)
    return dataclasses.replace(
        request,
        params=sampling_params_from(message.sampling_params),
        output=output_from(message.output),
    )


def score_request_from(message: pb.ScoreRequest) -> ScoreRequest:
    """Read a scoring request; makes a request id if there is none.

    Raises:
        RequestError: A field is missing or out of range.
    """
    continuations: list[Continuation] = []
    for number, continuation in enumerate(message.continuations):
        which = continuation.WhichOneof("input")
        if which is None:
            raise RequestError(f"continuation {number} is not set, wanted text or token_ids")
        is_text = which == "text"
        continuations.append(continuation.text if is_text else tuple(continuation.token_ids.ids))
    return ScoreRequest(_request_from(message), tuple(continuations), message.top_logprobs)


def _request_from(message: GenerationMessage | pb.ScoreRequest) -> TextRequest:
    """What all requests have in common."""
    request_id = message.request_id if message.HasField("request_id") else uuid.uuid4().hex
    if not _REQUEST_ID.fullmatch(request_id):
        raise RequestError(
            f"request_id is {request_id[:140]!r} ({len(request_id)} characters), wanted 1 to 128 "
            f"letters, digits and the signs - _ . : /; leave it out to have one made"
        )
    which = message.prompt.WhichOneof("input")
    if which is None:
        raise RequestError("prompt is not set, wanted one of text, token_ids and chat")
    chat = message.prompt.chat
    return TextRequest(
        request_id=request_id,
        params=_DEFAULT_PARAMS,
        text=message.prompt.text if which == "text" else None,
        token_ids=tuple(message.prompt.token_ids.ids) if which == "token_ids" else None,
        messages=chat_messages_from(chat) if which == "chat" else None,
        template_arguments=template_arguments_from(chat),
        cache_salt=message.cache_salt,
        scheduling=scheduling_from(message.scheduling),
        bypasses_prefix_cache=message.bypass_prefix_cache,
    )


def require_known_fields(message: Message) -> None:
    """Refuse what a newer client asks for and this server would ignore, however deep.

    Raises:
        NotBuiltInError: The message, or one inside, holds fields without a name here.
    """
    # The library does this much faster than a walk in Python, which only a refusal needs.
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() == message.ByteSize():
        return
    num_unknown_bytes = message.ByteSize() - known.ByteSize()
    if num_unknown_bytes > MAX_UNKNOWN_BYTES:
        raise NotBuiltInError(
            f"{message.DESCRIPTOR.name} has {num_unknown_bytes} bytes of fields that this server "
            f"does not know; leave them out or upgrade the server"
        )
    name, numbers = next(_unknown_fields(message))
    raise NotBuiltInError(
        f"{name} has fields with the numbers {numbers}, which this server does not know; leave "
        f"them out or upgrade the server"
    )


def _unknown_fields(message: Message) -> Iterator[tuple[str, list[int]]]:
    """Name and unknown numbers of each message that has any, outermost first."""
    fields = UnknownFieldSet(message)
    if len(fields):
        numbers = {fields[i].field_number for i in range(len(fields))}
        yield message.DESCRIPTOR.name, sorted(numbers)
    for descriptor, value in message.ListFields():
        for inner in messages_of(descriptor, value):
            yield from _unknown_fields(inner)


def sampling_params_from(message: pb.SamplingParams) -> SamplingParams:
    """Read sampling parameters; what is not set keeps its default.

    Raises:
        RequestError: A value is out of range.
    """
    set_fields: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        if descriptor.name == "logit_bias":
            set_fields[descriptor.name] = dict(value)
        elif descriptor.name == "constraint":
            set_fields[descriptor.name] = constraint_from(value)
        elif descriptor.is_repeated:
            set_fields[descriptor.name] = tuple(value)
        else:
            set_fields[descriptor.name] = value
    return SamplingParams(**set_fields)


def sampling_params_to(params: SamplingParams) -> pb.SamplingParams:
    """Write sampling parameters; defaults are left out.

    Raises:
        RequestError: A number does not fit into its field.
    """
    set_fields = {
        field.name: value
        for field in dataclasses.fields(params)
        if (value := getattr(params, field.name)) != getattr(_DEFAULT_PARAMS, field.name)
    }
    try:
        if params.constraint is not None:
            set_fields["constraint"] = constraint_to(params.constraint)
        return pb.SamplingParams(**set_fields)
    except (TypeError, ValueError) as error:
        raise RequestError(f"sampling parameters {set_fields} cannot be sent: {error}") from error


_DEFAULT_PARAMS = SamplingParams()


def constraint_from(message: pb.Constraint) -> Constraint:
    """Read a constraint.

    Raises:
        RequestError: No kind is set, or its value is wrong.
    """
    kind = message.WhichOneof("kind")
    if kind == "choices":
        return Constraint(choices=tuple(message.choices.texts))
    if kind == "json_object":
        return Constraint(json_object=True)
    return Constraint(**({} if kind is None else {kind: getattr(message, kind)}))


def constraint_to(constraint: Constraint) -> pb.Constraint:
    """Write a constraint.

    Raises:
        RequestError: It begins freely, which has no field.
    """
    if constraint.free_until:
        raise RequestError("constraint.free_until cannot be sent, it is for use in process")
    if constraint.choices is not None:
        return pb.Constraint(choices=pb.Choices(texts=constraint.choices))
    if constraint.json_object:
        return pb.Constraint(json_object=pb.JsonObject())
    return pb.Constraint(**{constraint.kind: getattr(constraint, constraint.kind)})


def chat_messages_from(chat: pb.Chat) -> tuple[ChatMessage, ...]:
    """Read a conversation.

    Raises:
        RequestError: No messages, or one without role or content.
    """
    if not chat.messages:
        raise RequestError("chat has no messages, wanted at least one")
    for number, message in enumerate(chat.messages):
        if not message.role or not message.HasField("content"):
            missing = "content" if message.role else "role"
            raise RequestError(f"chat message {number} has no {missing}; set it")
    return tuple(ChatMessage(message.role, message.content) for message in chat.messages)


def template_arguments_from(chat: pb.Chat) -> Mapping[str, Any] | None:
    """The chat template's extra variables; None when there are none."""
    if not chat.HasField("template_arguments"):
        return None
    return {key: _plain(value) for key, value in chat.template_arguments.fields.items()}


def _plain(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {key: _plain(item) for key, item in value.struct_value.fields.items()}
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "string_value":
        return value.string_value
    return value.bool_value if kind == "bool_value" else None


def prompt_to(request: TextRequest) -> pb.Prompt:
    """Write the prompt of a request.

    Raises:
        RequestError: A token id does not fit, or a template argument has no JSON form.
    """
    try:
        if request.token_ids is not None:
            return pb.Prompt(token_ids=pb.TokenIds(ids=request.token_ids))
        if request.messages is None:
            return pb.Prompt(text=request.text)
        if any(m.extras for m in request.messages):
            raise RequestError(
                "a message has extras (tool calls, their results, thoughts), which gRPC does not "
                "carry; leave them out, or send the conversation over HTTP"
            )
        chat = pb.Chat(
            messages=[pb.ChatMessage(role=m.role, content=m.content) for m in request.messages]
        )
        if request.template_arguments:
            chat.template_arguments.update(dict(request.template_arguments))
        return pb.Prompt(chat=chat)
    except (TypeError, ValueError) as error:
        raise RequestError(f"the prompt cannot be sent: {error}") from error


def stream_response_to(request_id: str, model: str, delta: TextDelta) -> pb.GenerateStreamResponse:
    """Write one delta as an event."""
    message = pb.GenerateStreamResponse(request_id=request_id, error=delta.error)
    if delta.finish_reason is not None:
        message.model = model
    _write_delta(message, delta)
    return message


def choice_to(answer: TextDelta) -> pb.Choice:
    """Write one whole answer."""
    message = pb.Choice()
    _write_delta(message, answer)
    return message


def _write_delta(message: pb.GenerateStreamResponse | pb.Choice, delta: TextDelta) -> None:
    message.index = delta.index
    message.text = delta.text
    message.token_ids.extend(delta.token_ids)
    for entry in delta.logprobs:
        top = [pb.TopLogprob(token_id=token_id, logprob=value) for token_id, value in entry.top]
        message.logprobs.append(pb.TokenLogprobs(logprob=entry.logprob, top=top))
    message.prompt_logprobs.extend(prompt_tokens_to(delta.prompt_logprobs))
    if delta.finish_reason is not None:
        message.finish_reason = _REASON_TO_WIRE[delta.finish_reason]
    if isinstance(delta.matched_stop, str):
        message.matched_stop.text = delta.matched_stop
    elif delta.matched_stop is not None:
        message.matched_stop.token_id = delta.matched_stop
    if delta.usage is not None:
        message.usage.CopyFrom(pb.Usage(**dataclasses.asdict(delta.usage)))
    if delta.timings is not None:
        timings = delta.timings
        message.timings.CopyFrom(
            pb.Timings(
                **dataclasses.asdict(timings),
                time_to_first_token_s=timings.queue_s + timings.prefill_s,
            )
        )


def delta_from(message: pb.GenerateStreamResponse | pb.Choice) -> TextDelta:
    """Read an event or a whole answer."""
    match = message.matched_stop.WhichOneof("match")
    usage, timings = message.usage, message.timings
    return TextDelta(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=tuple(
            TokenLogprobs(e.logprob, tuple((t.token_id, t.logprob) for t in e.top))
            for e in message.logprobs
        ),
        finish_reason=_REASON_FROM_WIRE.get(message.finish_reason),
        matched_stop=None if match is None else getattr(message.matched_stop, match),
        error=message.error if isinstance(message, pb.GenerateStreamResponse) else "",
        usage=Usage(usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens)
        if message.HasField("usage")
        else None,
        timings=RequestTimings(timings.queue_s, timings.prefill_s, timings.decode_s)
        if message.HasField("timings")
        else None,
        prompt_logprobs=prompt_tokens_from(message.prompt_logprobs),
    )
