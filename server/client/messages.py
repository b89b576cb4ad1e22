"""How what the Python client takes and gives looks on the wire.

Shared by the synchronous and the asyncio client. Needs gRPC and protobuf, no engine.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from omruntime.errors import CallError, RequestError
from omruntime.outputs import EngineLoad
from omruntime.sampling_params import SamplingParams
from server.client.arguments import CallOptions, Continuations, Message, Prompt, text_request
from server.grpc_messages import delta_from, prompt_to, sampling_params_to
from server.grpc_options import output_to, scheduling_to, score_from
from server.pb import control_pb2
from server.pb import inference_pb2 as pb
from server.retry_info import retry_after_of
from server.text import ContinuationScore, OutputOptions, TextDelta

# Above the server's default for a message, so that the client never is the narrower end.
MAX_MESSAGE_BYTES = 64 << 20

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # gRPC's own waits grow to two minutes, in which a restarted server would look dead. The least
    # of them stays: it is the time that a connection has to open, TLS included.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_TARGET = re.compile(
    r"(unix:.+|(dns:(//[^/]*/)?|ipv4:|ipv6:)?(\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/\s]+):\d{1,5})"
)

_ONE_ADDRESS = re.compile(r"unix:|ipv4:|(ipv6:)?\[|[\d.]+:\d+$")
"""A target that is an address and no name, as far as `_TARGET` lets it be."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished request.

    Attributes:
        answers: The n answers by index, each as one delta that holds all of it.
    """

    request_id: str
    model: str
    answers: tuple[TextDelta, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """What continuations of one prompt are worth, in their order."""

    request_id: str
    model: str
    scores: tuple[ContinuationScore, ...]


def generate_request(
    prompt: Prompt, params: SamplingParams, options: CallOptions
) -> pb.GenerateRequest:
    """The message of a unary call.

    Raises:
        RequestError: A value cannot be sent.
    """
    request = text_request(prompt, params, options)
    try:
        return pb.GenerateRequest(
            request_id=request.request_id,
            model=options.model,
            prompt=prompt_to(request),
            sampling_params=sampling_params_to(params),
            cache_salt=request.cache_salt,
            scheduling=scheduling_to(options.scheduling),
            output=output_to(options.output),
            bypass_prefix_cache=options.bypasses_prefix_cache,
        )
    except (TypeError, ValueError) as error:
        raise RequestError(f"the request cannot be sent: {error}") from error


def generate_stream_request(
    prompt: Prompt, params: SamplingParams, options: CallOptions
) -> pb.GenerateStreamRequest:
    """The message of a streamed call; the fields are those of the unary one.

    Raises:
        RequestError: A value cannot be sent.
    """
    unary = generate_request(prompt, params, options)
    return pb.GenerateStreamRequest.FromString(unary.SerializeToString())


def score_request(
    prompt: Prompt, continuations: Continuations, top_logprobs: int, options: CallOptions
) -> pb.ScoreRequest:
    """The message of a Score call.

    Raises:
        RequestError: A value cannot be sent.
    """
    if isinstance(continuations, str):
        raise RequestError("got one text, wanted a list of continuations: put it into a list")
    request = text_request(prompt, SamplingParams(), options)
    if options.output != OutputOptions():
        raise RequestError("output is not for score, whose reply is always the same; leave it out")
    try:
        return pb.ScoreRequest(
            request_id=request.request_id,
            model=options.model,
            prompt=prompt_to(request),
            continuations=[
                pb.Continuation(text=each)
                if isinstance(each, str)
                else pb.Continuation(token_ids=pb.TokenIds(ids=each))
                for each in continuations
            ],
            cache_salt=request.cache_salt,
            scheduling=scheduling_to(options.scheduling),
            top_logprobs=top_logprobs,
            bypass_prefix_cache=options.bypasses_prefix_cache,
        )
    except (TypeError, ValueError) as error:
        raise RequestError(f"the request cannot be sent: {error}") from error


def tokenize_request(
    prompt: str | Sequence[Message], add_special_tokens: bool | None, model: str | None
) -> pb.TokenizeRequest:
    """The message of a Tokenize call.

    Raises:
        RequestError: A value cannot be sent, or the prompt is token ids already.
    """
    request = text_request(prompt, SamplingParams(), CallOptions())
    if request.token_ids is not None:
        raise RequestError("the prompt is a list of token ids, wanted text or messages")
    try:
        message = pb.TokenizeRequest(
            model=model, add_special_tokens=add_special_tokens, text=request.text
        )
        if request.messages is not None:
            message.chat.CopyFrom(prompt_to(request).chat)
    except (TypeError, ValueError) as error:
        raise RequestError(f"the request cannot be sent: {error}") from error
    return message


def detokenize_request(
    token_ids: Sequence[int], skip_special_tokens: bool, model: str | None
) -> pb.DetokenizeRequest:
    """The message of a Detokenize call.

    Raises:
        RequestError: A value cannot be sent.
    """
    try:
        return pb.DetokenizeRequest(
            token_ids=token_ids, skip_special_tokens=skip_special_tokens, model=model
        )
    except (TypeError, ValueError) as error:
        raise RequestError(f"the request cannot be sent: {error}; wanted token ids") from error


def generation_from(response: pb.GenerateResponse) -> Generation:
    """Read the reply of a unary call."""
    answers = tuple(delta_from(choice) for choice in response.choices)
    return Generation(response.request_id, response.model, answers)


def scores_from(response: pb.ScoreResponse) -> Scores:
    """Read the reply of a Score call."""
    scores = tuple(score_from(score) for score in response.scores)
    return Scores(response.request_id, response.model, scores)


def require_target(target: str) -> str:
    """Check the form of a target; gRPC itself would read a bare name as port 443.

    Raises:
        RequestError: It is none of the accepted forms; the message lists them.
    """
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        raise RequestError(
            f"target is {target!r}, wanted host:port, [ipv6]:port, ipv4:address:port, "
            f"ipv6:[address]:port, dns:host:port or unix:path"
        )
    return target


def load_from(response: control_pb2.GetLoadResponse) -> EngineLoad:
    """Read what the engine holds."""
    counts = {
        field.name: getattr(response, field.name)
        for field in dataclasses.fields(EngineLoad)
        if field.name != "num_finished"
    }
    return EngineLoad(**counts, num_finished=dict(response.num_finished))


@contextmanager
def translated_errors(target: str) -> Iterator[None]:
    """Turn gRPC's exceptions into `CallError`."""
    try:
        yield
    except grpc.RpcError as error:
        raise call_error(error, target) from error


def call_error(error: grpc.RpcError, target: str) -> CallError:
    """Translate a failed call.

    Args:
        error: What gRPC raised; its classes have code(), details() and trailing_metadata().
        target: For the message.
    """
    code, details = error.code(), error.details() or ""
    retry_after_s = retry_after_of(error.trailing_metadata())
    if code is grpc.StatusCode.UNAVAILABLE and _is_unreachable(details):
        reason = f"no server answers at {target}: {details}{tls_hint(details, target)}"
        return CallError(code.name, reason, is_unsent=True)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        details += " (api_key; of om-client --api-key-file or OMSERVE_API_KEY)"
    if code is grpc.StatusCode.CANCELLED and "channel closed" in details.lower():
        return closed_meanwhile()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallError(code.name, f"the deadline passed before {target} answered in full")
    return CallError(code.name, details or code.name, retry_after_s)


def closed_meanwhile() -> CallError:
    """Why a call ended when its client was closed."""
    return CallError("CANCELLED", "the client was closed while the call ran; leave it open")


_HTTP_PORT = "; this speaks HTTP: give the server's gRPC port, see om-serve --grpc-port"
# What gRPC says when something else answers, and what to do then.
_OTHER_PROTOCOLS = {
    "http1.x server": _HTTP_PORT,
    "alpn": _HTTP_PORT,
    "wrong_version_number": "; the server uses no TLS: leave its roots out (tls_ca, --tls-ca)",
}


def _is_unreachable(details: str) -> bool:
    """Whether gRPC itself, and not our server, reported UNAVAILABLE."""
    marks = (
        "failed to connect",
        "connection refused",
        "dns resolution",
        "name resolution",
        "errors resolving",
    )
    return any(mark in details.lower() for mark in marks)


def tls_hint(details: str, target: str) -> str:
    """What to do when something answers that does not speak as this client does.

    gRPC tells what became of the last address it tried. Of a name's several addresses, such as
    ::1 and 127.0.0.1 of localhost, another may have answered with TLS while the last refused.
    """
    for mark, hint in _OTHER_PROTOCOLS.items():
        if mark in details.lower():
            return hint
    marks = ("socket closed", "handshake", "ssl", "verification", "certificate")
    roots = "; if the server uses TLS, give its roots (tls_ca, --tls-ca)"
    if any(mark in details.lower() for mark in marks):
        return (
            f"{roots}, its name where that differs (tls_server_name), and a certificate of your "
            f"own where it asks for one (tls_cert, tls_key)"
        )
    if "last error" in details and not _ONE_ADDRESS.match(target):
        return roots
    return ""
