"""AsyncClient: `Client` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf import message as protobuf
from grpc_health.v1 import health_pb2

from omruntime.outputs import EngineLoad
from omruntime.sampling_params import SamplingParams
from server.client.arguments import CallOptions, Continuations, Message, Prompt
from server.client.async_control_calls import AsyncControlCalls
from server.client.async_session import AsyncClientSession
from server.client.messages import (
    Generation,
    Scores,
    call_error,
    closed_meanwhile,
    detokenize_request,
    generate_request,
    generate_stream_request,
    generation_from,
    load_from,
    require_target,
    score_request,
    scores_from,
    tokenize_request,
    translated_errors,
)
from server.client.retries import Retries, retried_async, retried_async_stream
from server.client.security import ClientSecurity, require_security
from server.client.stubs import HEALTH_RETRY_S, ClientStubs, closed, not_ready
from server.grpc_messages import delta_from
from server.pb import control_pb2
from server.text import TextDelta

_SERVING = health_pb2.HealthCheckResponse.SERVING
_DEFAULT_PARAMS = SamplingParams()
_DEFAULT_OPTIONS = CallOptions()
_NO_SECURITY = ClientSecurity()
_NO_RETRIES = Retries()


class AsyncClient:
    """`Client` for asyncio; use it as an asynchronous context manager within one event loop."""

    def __init__(
        self,
        target: str,
        security: ClientSecurity = _NO_SECURITY,
        retries: Retries = _NO_RETRIES,
    ) -> None:
        """Prepare a connection; nothing is sent yet.

        Args:
            target: Such as localhost:50051, [::1]:50051 or unix:path.
            security: TLS and API key; by default neither.
            retries: Which refused calls are tried again; by default none.

        Raises:
            RequestError: The target has another form, or a file of `security` cannot be read.
        """
        self.target = require_target(target)
        self._retries = retries
        self._channel = require_security(security).open_aio_channel(target)
        self._is_closed = False
        self._stubs = ClientStubs(self._channel, security.metadata, self._require_open)

    def _require_open(self) -> None:
        if self._is_closed:
            raise closed("AsyncClient")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what runs and close the connection."""
        self._is_closed = True
        await self._channel.close()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = _DEFAULT_PARAMS,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Generation:
        """As `Client.generate`; cancelling the task cancels the request."""
        message = generate_request(prompt, params, options)
        return generation_from(await self._call(self._stubs.inference.Generate, message, options))

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = _DEFAULT_PARAMS,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> AsyncGenerator[TextDelta, None]:
        """As `Client.stream`; wrap it in `contextlib.aclosing` when leaving early."""
        message = generate_stream_request(prompt, params, options)

        async def begin(left_s: float | None) -> AsyncGenerator[TextDelta, None]:
            call = self._stubs.inference.GenerateStream(message, timeout=left_s)
            try:
                with self._translated_errors():
                    async for event in call:
                        yield delta_from(event)
            finally:
                call.cancel()

        tried = retried_async_stream(self._retries, options.timeout_s, begin)
        async with aclosing(tried) as deltas:
            async for delta in deltas:
                yield delta

    def session(self) -> AsyncClientSession:
        """As `Client.session`; call it within the event loop."""
        return AsyncClientSession(self._stubs.inference.Session, self.target, self._retries)

    async def score(
        self,
        prompt: Prompt,
        continuations: Continuations,
        top_logprobs: int = 0,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Scores:
        """As `Client.score`; cancelling the task cancels the request."""
        message = score_request(prompt, continuations, top_logprobs, options)
        return scores_from(await self._call(self._stubs.inference.Score, message, options))

    async def tokenize(
        self,
        prompt: str | Sequence[Message],
        add_special_tokens: bool | None = None,
        model: str | None = None,
    ) -> tuple[int, ...]:
        """As `Client.tokenize`."""
        message = tokenize_request(prompt, add_special_tokens, model)
        return tuple((await self._call(self._stubs.inference.Tokenize, message)).token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], skip_special_tokens: bool = True, model: str | None = None
    ) -> str:
        """As `Client.detokenize`."""
        message = detokenize_request(token_ids, skip_special_tokens, model)
        return str((await self._call(self._stubs.inference.Detokenize, message)).text)

    async def server_info(self) -> control_pb2.GetServerInfoResponse:
        """As `Client.server_info`."""
        with self._translated_errors():
            info: control_pb2.GetServerInfoResponse = await self._stubs.control.GetServerInfo(
                control_pb2.GetServerInfoRequest()
            )
        return info

    async def model_info(self) -> control_pb2.GetModelInfoResponse:
        """As `Client.model_info`."""
        with self._translated_errors():
            info: control_pb2.GetModelInfoResponse = await self._stubs.control.GetModelInfo(
                control_pb2.GetModelInfoRequest()
            )
        return info

    async def load(self) -> EngineLoad:
        """As `Client.load`."""
        with self._translated_errors():
            return load_from(await self._stubs.control.GetLoad(control_pb2.GetLoadRequest()))

    async def abort(self, request_id: str) -> None:
        """As `Client.abort`."""
        with self._translated_errors():
            await self._stubs.control.Abort(control_pb2.AbortRequest(request_id=request_id))

    @property
    def control(self) -> AsyncControlCalls:
        """As `Client.control`."""
        return AsyncControlCalls(self._stubs.control, self.target)

    async def wait_ready(self, timeout_s: float) -> None:
        """As `Client.wait_ready`."""
        reason = "no answer"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        call = self._stubs.health.Watch(
                            health_pb2.HealthCheckRequest(), wait_for_ready=True
                        )
                        async for reply in call:
                            if reply.status == _SERVING:
                                call.cancel()
                                return
                            reason = "its health is NOT_SERVING"
                    except grpc.RpcError as error:
                        reason = str(call_error(error, self.target))
                    await asyncio.sleep(HEALTH_RETRY_S)
        except TimeoutError:
            raise not_ready(self.target, timeout_s, reason) from None

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """As `translated_errors`; gRPC also raises CancelledError where a channel was closed."""
        try:
            with translated_errors(self.target):
                yield
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not self._is_closed or (task is not None and task.cancelling()):
                raise
            raise closed_meanwhile() from error

    async def _call(
        self,
        rpc: Callable[..., Any],
        message: protobuf.Message,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Any:
        """The reply to a unary call that uses the engine or its tokenizer."""

        async def once(left_s: float | None) -> Any:
            with self._translated_errors():
                return await rpc(message, timeout=left_s)

        return await retried_async(self._retries, options.timeout_s, once)
