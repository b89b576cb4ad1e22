"""Client and AsyncClient: the RPCs of a server as Python calls with the domain's types.

Failed calls raise `CallError`. Needs no engine, no tokenizer and no bundle on this machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omruntime.errors import CallError
from omruntime.outputs import EngineLoad
from omruntime.owner_process import OwnerProcess
from omruntime.sampling_params import SamplingParams
from server.client_messages import (
    CallOptions,
    Continuations,
    Generation,
    Prompt,
    Scores,
    call_error,
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
from server.client_security import ClientSecurity
from server.control_calls import ControlCalls
from server.grpc_messages import delta_from
from server.pb import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc
from server.text import ChatMessage, TextDelta

_SERVING = health_pb2.HealthCheckResponse.SERVING
_DEFAULT_PARAMS = SamplingParams()
_DEFAULT_OPTIONS = CallOptions()
_NO_SECURITY = ClientSecurity()
# A health stream that broke is opened again after this.
_RETRY_S = 0.1


class _Stubs:
    """The stubs of one channel, blocking or not; each call carries the same metadata."""

    def __init__(
        self, channel: grpc.Channel | grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]
    ) -> None:
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        self.control = control_pb2_grpc.ControlServiceStub(channel)  # type: ignore[no-untyped-call]
        self.health = health_pb2_grpc.HealthStub(channel)
        for stub in (self.inference, self.control):
            for name, call in tuple(vars(stub).items()):
                setattr(stub, name, partial(call, metadata=metadata))


class Client:
    """A blocking client; safe to share among threads, not with forked processes.

    Use it as a context manager.
    """

    def __init__(self, target: str, security: ClientSecurity = _NO_SECURITY) -> None:
        """Prepare a connection; nothing is sent yet.

        Args:
            target: Such as localhost:50051, [::1]:50051 or unix:path.
            security: TLS and API key; by default neither.

        Raises:
            RequestError: The target has another form, or a file of `security` cannot be read.
        """
        self.target = require_target(target)
        self._owner = OwnerProcess("this Client")
        self._channel = security.open_channel(target)
        self._stubs_here = _Stubs(self._channel, security.metadata)

    @property
    def _stubs(self) -> _Stubs:
        self._owner.require()
        return self._stubs_here

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what runs and close the connection; nothing in a forked child."""
        if self._owner.is_here:
            self._channel.close()

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = _DEFAULT_PARAMS,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Generation:
        """Answer a prompt; returns when every answer is finished.

        Raises:
            RequestError: A value cannot be sent.
            CallError: The call failed.
        """
        message = generate_request(prompt, params, options)
        with translated_errors(self.target):
            response = self._stubs.inference.Generate(message, timeout=options.timeout_s)
        return generation_from(response)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = _DEFAULT_PARAMS,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Generator[TextDelta, None, None]:
        """Answer a prompt piece by piece; closing the generator cancels the request.

        Raises:
            RequestError: A value cannot be sent.
            CallError: The call failed. An answer that failed after it was accepted ends with a
                delta of finish reason ERROR instead.
        """
        message = generate_stream_request(prompt, params, options)
        call = self._stubs.inference.GenerateStream(message, timeout=options.timeout_s)
        try:
            with translated_errors(self.target):
                for event in call:
                    yield delta_from(event)
        finally:
            call.cancel()

    def score(
        self,
        prompt: Prompt,
        continuations: Continuations,
        top_logprobs: int = 0,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Scores:
        """Say how likely continuations of a prompt are; generates nothing.

        Args:
            continuations: Each scored by itself.
            top_logprobs: List the best so many tokens at each position, 0 to 20.

        Raises:
            RequestError: A value cannot be sent.
            CallError: The call failed.
        """
        message = score_request(prompt, continuations, top_logprobs, options)
        with translated_errors(self.target):
            response = self._stubs.inference.Score(message, timeout=options.timeout_s)
        return scores_from(response)

    def tokenize(
        self,
        prompt: str | Sequence[ChatMessage],
        add_special_tokens: bool | None = None,
        model: str | None = None,
    ) -> tuple[int, ...]:
        """The token ids that `generate` would see."""
        message = tokenize_request(prompt, add_special_tokens, model)
        with translated_errors(self.target):
            return tuple(self._stubs.inference.Tokenize(message).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], skip_special_tokens: bool = True, model: str | None = None
    ) -> str:
        """The text of token ids."""
        message = inference_pb2.DetokenizeRequest(
            token_ids=token_ids, skip_special_tokens=skip_special_tokens, model=model
        )
        with translated_errors(self.target):
            return str(self._stubs.inference.Detokenize(message).text)

    def server_info(self) -> control_pb2.GetServerInfoResponse:
        """What the server is and how far it has come."""
        with translated_errors(self.target):
            info: control_pb2.GetServerInfoResponse = self._stubs.control.GetServerInfo(
                control_pb2.GetServerInfoRequest()
            )
        return info

    def model_info(self) -> control_pb2.GetModelInfoResponse:
        """What is served and the limits in force."""
        with translated_errors(self.target):
            info: control_pb2.GetModelInfoResponse = self._stubs.control.GetModelInfo(
                control_pb2.GetModelInfoRequest()
            )
        return info

    def load(self) -> EngineLoad:
        """What the engine holds, as of its last step."""
        with translated_errors(self.target):
            return load_from(self._stubs.control.GetLoad(control_pb2.GetLoadRequest()))

    def abort(self, request_id: str) -> None:
        """End a live request soon.

        Raises:
            CallError: With code NOT_FOUND when no live request has the id.
        """
        with translated_errors(self.target):
            self._stubs.control.Abort(control_pb2.AbortRequest(request_id=request_id))

    @property
    def control(self) -> ControlCalls:
        """The calls that look at the server's inside and steer it."""
        return ControlCalls(self._stubs.control, self.target)

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the server takes requests; it need not run yet.

        Raises:
            CallError: Not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        reason = "no answer"
        while (left := deadline - time.monotonic()) > 0:
            call = self._stubs.health.Watch(
                health_pb2.HealthCheckRequest(), timeout=left, wait_for_ready=True
            )
            try:
                for reply in call:
                    if reply.status == _SERVING:
                        return
                    reason = "its health is NOT_SERVING"
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    reason = str(call_error(error, self.target))
            finally:
                call.cancel()
            time.sleep(max(0.0, min(_RETRY_S, deadline - time.monotonic())))
        raise _not_ready(self.target, timeout_s, reason)


class AsyncClient:
    """`Client` for asyncio; use it as an asynchronous context manager within one event loop."""

    def __init__(self, target: str, security: ClientSecurity = _NO_SECURITY) -> None:
        """Prepare a connection; nothing is sent yet.

        Args:
            target: Such as localhost:50051, [::1]:50051 or unix:path.
            security: TLS and API key; by default neither.

        Raises:
            RequestError: The target has another form, or a file of `security` cannot be read.
        """
        self.target = require_target(target)
        self._channel = security.open_aio_channel(target)
        self._stubs = _Stubs(self._channel, security.metadata)

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
        await self._channel.close()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = _DEFAULT_PARAMS,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Generation:
        """As `Client.generate`; cancelling the task cancels the request."""
        message = generate_request(prompt, params, options)
        with translated_errors(self.target):
            response = await self._stubs.inference.Generate(message, timeout=options.timeout_s)
        return generation_from(response)

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = _DEFAULT_PARAMS,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> AsyncGenerator[TextDelta, None]:
        """As `Client.stream`; wrap it in `contextlib.aclosing` when leaving early."""
        message = generate_stream_request(prompt, params, options)
        call = self._stubs.inference.GenerateStream(message, timeout=options.timeout_s)
        try:
            with translated_errors(self.target):
                async for event in call:
                    yield delta_from(event)
        finally:
            call.cancel()

    async def score(
        self,
        prompt: Prompt,
        continuations: Continuations,
        top_logprobs: int = 0,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Scores:
        """As `Client.score`; cancelling the task cancels the request."""
        message = score_request(prompt, continuations, top_logprobs, options)
        with translated_errors(self.target):
            response = await self._stubs.inference.Score(message, timeout=options.timeout_s)
        return scores_from(response)

    async def tokenize(
        self,
        prompt: str | Sequence[ChatMessage],
        add_special_tokens: bool | None = None,
        model: str | None = None,
    ) -> tuple[int, ...]:
        """As `Client.tokenize`."""
        message = tokenize_request(prompt, add_special_tokens, model)
        with translated_errors(self.target):
            return tuple((await self._stubs.inference.Tokenize(message)).token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], skip_special_tokens: bool = True, model: str | None = None
    ) -> str:
        """As `Client.detokenize`."""
        message = inference_pb2.DetokenizeRequest(
            token_ids=token_ids, skip_special_tokens=skip_special_tokens, model=model
        )
        with translated_errors(self.target):
            return str((await self._stubs.inference.Detokenize(message)).text)

    async def server_info(self) -> control_pb2.GetServerInfoResponse:
        """As `Client.server_info`."""
        with translated_errors(self.target):
            info: control_pb2.GetServerInfoResponse = await self._stubs.control.GetServerInfo(
                control_pb2.GetServerInfoRequest()
            )
        return info

    async def model_info(self) -> control_pb2.GetModelInfoResponse:
        """As `Client.model_info`."""
        with translated_errors(self.target):
            info: control_pb2.GetModelInfoResponse = await self._stubs.control.GetModelInfo(
                control_pb2.GetModelInfoRequest()
            )
        return info

    async def load(self) -> EngineLoad:
        """As `Client.load`."""
        with translated_errors(self.target):
            return load_from(await self._stubs.control.GetLoad(control_pb2.GetLoadRequest()))

    async def abort(self, request_id: str) -> None:
        """As `Client.abort`."""
        with translated_errors(self.target):
            await self._stubs.control.Abort(control_pb2.AbortRequest(request_id=request_id))

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
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            raise _not_ready(self.target, timeout_s, reason) from None


def _not_ready(target: str, timeout_s: float, reason: str) -> CallError:
    return CallError(
        "DEADLINE_EXCEEDED", f"{target} was not ready within {timeout_s:g} s: {reason}"
    )
