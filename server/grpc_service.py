"""GrpcInferenceService: the RPCs of `omserve.v1.InferenceService`.

Turns wire messages into domain objects and back, nothing else. Errors leave as exceptions;
`interceptor.py` makes status codes of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
from google.protobuf.message import Message

from omruntime.errors import OverloadedError, RequestError, UnknownModelError
from server.answers import final_deltas, join_deltas, slice_delta, terminated_deltas
from server.cut_off import cut_off
from server.event_writer import EventWriter, until_reader_leaves
from server.grpc_messages import (
    GenerationMessage,
    chat_messages_from,
    choice_to,
    score_request_from,
    stream_response_to,
    template_arguments_from,
    text_request_from,
)
from server.grpc_options import score_to
from server.lifecycle import Lifecycle
from server.logs import request_id_var
from server.pb import inference_pb2 as pb
from server.pb import inference_pb2_grpc
from server.score import score
from server.seams import TextGeneratorLike
from server.session import Events, RequestPath, RequestSession
from server.text import OutputOptions, TextDelta, TextRequest

# What a client at gRPC's default can read. Beyond it the client's library would refuse a reply
# that cost minutes, so such answers are for GenerateStream.
MAX_UNARY_REPLY_BYTES = 4 << 20
# Bounds of Tokenize and Detokenize, so that no reply takes the event loop for long to build.
# With at most one token for each UTF-8 byte, and ids below 2**21, the largest reply just reaches
# MAX_UNARY_REPLY_BYTES; a tokenizer that makes more of a text is caught by the check of the reply.
MAX_TOKENIZE_CHARS = 1 << 18
MAX_DETOKENIZE_IDS = 1 << 18
# With 20 alternatives a token's logprobs take about 500 bytes, so an event stays far below that.
MAX_EVENT_TOKENS = 1024


class GrpcInferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Generates, scores, tokenises and detokenises for one served model."""

    def __init__(self, lifecycle: Lifecycle, model: str, slow_reader_timeout_s: float) -> None:
        """Answer for one model.

        Args:
            lifecycle: Says whether requests are taken.
            model: The served name.
            slow_reader_timeout_s: A stream whose reader takes nothing for so long is cut off.
        """
        self._lifecycle = lifecycle
        self._model = model
        self._slow_reader_timeout_s = slow_reader_timeout_s

    async def Generate(  # noqa: N802 - the RPC's name
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> pb.GenerateResponse:
        """Answer a prompt in one reply."""
        async with self._deltas(request, context.time_remaining(), context) as (accepted, deltas):
            answers = join_deltas([delta async for delta in deltas])
        for answer in answers:
            if failure := cut_off(answer):
                raise failure
        response = pb.GenerateResponse(
            request_id=accepted.request_id,
            model=self._model,
            choices=[choice_to(_sent(answer, accepted.output)) for answer in answers],
        )
        require_unary_size(response, "use GenerateStream, or ask for fewer logprobs")
        return response

    async def GenerateStream(  # noqa: N802 - the RPC's name
        self, request: pb.GenerateStreamRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Answer a prompt piece by piece."""
        writer = EventWriter(context, self._slow_reader_timeout_s)
        events = self._events(request, context.time_remaining(), context)
        async with aclosing(events) as sent:
            async for event in sent:
                await writer.write(event)

    async def Session(  # noqa: N802 - the RPC's name
        self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        """Answer prompts as they come, all at once; one that fails leaves the others alone."""

        def events(message: pb.GenerateStreamRequest, timeout_s: float | None) -> Events:
            limits = [s for s in (timeout_s, context.time_remaining()) if s is not None]
            return self._events(message, min(limits, default=None))

        def abort(request_id: str, tenant: str | None) -> None:
            self._lifecycle.require_loaded().abort(request_id, tenant)

        writer = EventWriter(context, self._slow_reader_timeout_s)
        await writer.open()
        session = RequestSession(RequestPath(events, abort), writer, self._slow_reader_timeout_s)
        await session.run(frames)

    async def Score(  # noqa: N802 - the RPC's name
        self, request: pb.ScoreRequest, context: grpc.aio.ServicerContext
    ) -> pb.ScoreResponse:
        """Say how likely continuations of a prompt are."""
        generator = self._lifecycle.require_serving()
        self._require_model(request)
        wanted = score_request_from(request)
        wanted = replace(wanted, prompt=with_deadline(wanted.prompt, context.time_remaining()))
        request_id = wanted.prompt.request_id

        def stream(part: TextRequest) -> AsyncGenerator[TextDelta, None]:
            return terminated_deltas(generator, part, self._lifecycle)

        with self._lifecycle.running():
            with until_reader_leaves():
                await context.send_initial_metadata((("omserve-request-id", request_id),))
            scores = await score(generator, stream, wanted)
        response = pb.ScoreResponse(
            request_id=request_id, model=self._model, scores=[score_to(s) for s in scores]
        )
        require_unary_size(response, "ask for fewer top_logprobs or continuations")
        return response

    async def _events(
        self,
        message: pb.GenerateStreamRequest,
        left_s: float | None,
        told: grpc.aio.ServicerContext | None = None,
    ) -> Events:
        """The events of a request, alone in its call or in a session; arguments as `_deltas`."""
        async with self._deltas(message, left_s, told) as (accepted, deltas):
            async for delta in deltas:
                for piece in slice_delta(delta, MAX_EVENT_TOKENS):
                    sent = _sent(piece, accepted.output)
                    yield stream_response_to(accepted.request_id, self._model, sent)

    @asynccontextmanager
    async def _deltas(
        self,
        message: GenerationMessage,
        left_s: float | None,
        told: grpc.aio.ServicerContext | None,
    ) -> AsyncIterator[tuple[TextRequest, AsyncIterator[TextDelta]]]:
        """The one path of all RPCs that generate; leaving it early aborts the request.

        Args:
            left_s: Seconds within which it must end.
            told: The call whose initial metadata is to carry the request id.
        """
        generator = self._lifecycle.require_serving()
        self._require_model(message)
        request = with_deadline(text_request_from(message), left_s)
        request_id_var.set(request.request_id)
        with self._lifecycle.running():
            if told is not None:
                with until_reader_leaves():
                    await told.send_initial_metadata((("omserve-request-id", request.request_id),))
            async with aclosing(terminated_deltas(generator, request, self._lifecycle)) as deltas:
                if not request.output.final_only:
                    yield request, deltas
                    return
                async with aclosing(final_deltas(deltas)) as answers:
                    yield request, answers

    async def Tokenize(  # noqa: N802 - the RPC's name
        self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.TokenizeResponse:
        """Turn text, or a chat, into token ids."""
        generator = self._lifecycle.require_serving()
        self._require_model(request)
        with self._lifecycle.running():
            response = await _tokenized(generator, request)
        require_unary_size(response, "send a shorter text")
        return response

    async def Detokenize(  # noqa: N802 - the RPC's name
        self, request: pb.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DetokenizeResponse:
        """Turn token ids into text."""
        generator = self._lifecycle.require_serving()
        self._require_model(request)
        if len(request.token_ids) > MAX_DETOKENIZE_IDS:
            raise RequestError(
                f"token_ids has {len(request.token_ids)} ids, wanted at most "
                f"{MAX_DETOKENIZE_IDS}; send them in pieces"
            )
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        with self._lifecycle.running():
            text = await generator.detokenize(tuple(request.token_ids), skip)
        response = pb.DetokenizeResponse(text=text)
        require_unary_size(response, "send fewer ids")
        return response

    def _require_model(
        self,
        message: GenerationMessage | pb.ScoreRequest | pb.TokenizeRequest | pb.DetokenizeRequest,
    ) -> None:
        if message.HasField("model"):
            require_served_model(message.model, self._model)


async def _tokenized(
    generator: TextGeneratorLike, request: pb.TokenizeRequest
) -> pb.TokenizeResponse:
    which = request.WhichOneof("input")
    if which is None:
        raise RequestError("nothing to tokenize: set one of text and chat")
    text = request.text
    if which == "chat":
        messages = chat_messages_from(request.chat)
        text = await generator.render_chat(messages, template_arguments_from(request.chat))
    if len(text) > MAX_TOKENIZE_CHARS:
        raise RequestError(
            f"{which} has {len(text)} characters, wanted at most {MAX_TOKENIZE_CHARS}; "
            f"send it in pieces"
        )
    add_special_tokens = (
        request.add_special_tokens if request.HasField("add_special_tokens") else which == "text"
    )
    token_ids = await generator.tokenize(text, add_special_tokens)
    return pb.TokenizeResponse(token_ids=token_ids, text=text)


def _sent(delta: TextDelta, output: OutputOptions) -> TextDelta:
    """What of a delta is sent."""
    return replace(delta, token_ids=()) if output.omit_token_ids else delta


def with_deadline(request: TextRequest, left_s: float | None) -> TextRequest:
    """The request with the call's deadline, if it has one, so that the engine keeps it as well.

    A cancelled call ends its request too, but only when the event loop gets to it.
    """
    if left_s is None:
        return request
    deadline = time.monotonic() + left_s
    return replace(request, scheduling=replace(request.scheduling, deadline=deadline))


def require_unary_size(response: Message, advice: str) -> None:
    """Check that clients at gRPC's default limit can read a reply.

    Raises:
        OverloadedError: It is too large; the message ends with the advice.
    """
    if response.ByteSize() > MAX_UNARY_REPLY_BYTES:
        raise OverloadedError(
            f"the reply has {response.ByteSize():,} bytes, a unary reply may have "
            f"{MAX_UNARY_REPLY_BYTES:,}; {advice}"
        )


def require_served_model(wanted: str, served: str) -> None:
    """Check the model name of a request.

    Raises:
        UnknownModelError: It is not the served one; the message lists that.
    """
    if wanted != served:
        raise UnknownModelError(
            f"model {wanted[:200]!r} is not served here; served: {served!r}. Leave model out to "
            f"get it",
            "model",
        )
