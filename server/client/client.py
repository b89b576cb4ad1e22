"""Client: the RPCs of a server as blocking calls. Failed calls raise `CallError`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf import message as protobuf
from grpc_health.v1 import health_pb2

from omruntime.outputs import EngineLoad
from omruntime.owner_process import OwnerProcess
from omruntime.sampling_params import SamplingParams
from server.client.arguments import CallOptions, Continuations, Message, Prompt
from server.client.control_calls import ControlCalls
from server.client.messages import (
    Generation,
    Scores,
    call_error,
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
from server.client.retries import Retries, retried, retried_stream
from server.client.security import ClientSecurity, require_security
from server.client.session import ClientSession
from server.client.stubs import HEALTH_RETRY_S, ClientStubs, closed, not_ready
from server.grpc_messages import delta_from
from server.pb import control_pb2
from server.text import TextDelta

_SERVING = health_pb2.HealthCheckResponse.SERVING
_DEFAULT_PARAMS = SamplingParams()
_DEFAULT_OPTIONS = CallOptions()
_NO_SECURITY = ClientSecurity()
_NO_RETRIES = Retries()


class Client:
    """A blocking client; safe to share among threads, not with forked processes.

    Use it as a context manager.
    """

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
        self._owner = OwnerProcess("this Client")
        self._channel = require_security(security).open_channel(target)
        self._is_closed = False
        self._stubs = ClientStubs(self._channel, security.metadata, self._require_open)

    def _require_open(self) -> None:
        self._owner.require()
        if self._is_closed:
            raise closed("Client")

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
            self._is_closed = True
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
        return generation_from(self._call(self._stubs.inference.Generate, message, options))

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

        def begin(left_s: float | None) -> Generator[TextDelta, None, None]:
            call = self._stubs.inference.GenerateStream(message, timeout=left_s)
            try:
                with translated_errors(self.target):
                    for event in call:
                        yield delta_from(event)
            finally:
                call.cancel()

        yield from retried_stream(self._retries, options.timeout_s, begin)

    def session(self) -> ClientSession:
        """Open one stream for many requests.

        Saves a call for each, and lets a slow reader of one hold up no other. Close it, best as a
        context manager.
        """
        return ClientSession(self._stubs.inference.Session, self.target, self._retries)

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
        return scores_from(self._call(self._stubs.inference.Score, message, options))

    def tokenize(
        self,
        prompt: str | Sequence[Message],
        add_special_tokens: bool | None = None,
        model: str | None = None,
    ) -> tuple[int, ...]:
        """The token ids that `generate` would see."""
        message = tokenize_request(prompt, add_special_tokens, model)
        return tuple(self._call(self._stubs.inference.Tokenize, message).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], skip_special_tokens: bool = True, model: str | None = None
    ) -> str:
        """The text of token ids."""
        message = detokenize_request(token_ids, skip_special_tokens, model)
        return str(self._call(self._stubs.inference.Detokenize, message).text)

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
            time.sleep(max(0.0, min(HEALTH_RETRY_S, deadline - time.monotonic())))
        raise not_ready(self.target, timeout_s, reason)

    def _call(
        self,
        rpc: Callable[..., Any],
        message: protobuf.Message,
        options: CallOptions = _DEFAULT_OPTIONS,
    ) -> Any:
        """The reply to a unary call that uses the engine or its tokenizer."""

        def once(left_s: float | None) -> Any:
            with translated_errors(self.target):
                return rpc(message, timeout=left_s)

        return retried(self._retries, options.timeout_s, once)
