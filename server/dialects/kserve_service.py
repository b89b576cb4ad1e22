"""KServeService: `inference.GRPCInferenceService` of KServe v2 and Triton over the text layer.

A response's content and order are Triton's; how requests live and end is that of every front end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from omruntime.errors import RequestError, UnknownModelError
from server.answers import join_deltas
from server.dialects.kserve_messages import MESSAGES
from server.dialects.kserve_request import (
    NAMES,
    OPTIONAL_INPUTS,
    OUTPUTS,
    InferCall,
    infer_call_from,
)
from server.dialects.kserve_tensors import TensorValue, add_tensor
from server.dialects.live_deltas import live_deltas
from server.event_writer import EventWriter
from server.failure import failure_of
from server.field_names import named_as
from server.grpc_service import require_served_model, require_unary_size
from server.interceptor import read_message
from server.lifecycle import Lifecycle, ServerState
from server.security.callers import renew_caller
from server.text import TextDelta
from server.version import omserve_version

# There is one model in one version; Triton counts from 1.
VERSION = "1"
PLATFORM = "omserve"
_STREAM_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
# Of Triton's model configuration.
_CONFIG_TYPES = {"BOOL": 1, "UINT32": 4, "INT64": 9, "BYTES": 13}
_INPUTS = {"text_input": "BYTES", "input_ids": "INT64", **OPTIONAL_INPUTS}


class KServeService:
    """Each method answers the RPC of its name."""

    def __init__(self, lifecycle: Lifecycle, model: str, slow_reader_timeout_s: float) -> None:
        """Answer for one model, as `GrpcInferenceService` does."""
        self._lifecycle = lifecycle
        self._model = model
        self._slow_reader_timeout_s = slow_reader_timeout_s

    async def ServerLive(self, _: Message, __: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        """Whoever can ask is told yes, unless the device has failed."""
        return _new("ServerLiveResponse", live=self._lifecycle.state is not ServerState.FAILED)

    async def ServerReady(self, _: Message, __: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        """Whether a load balancer had better send requests here."""
        return _new("ServerReadyResponse", ready=self._lifecycle.is_ready)

    async def ModelReady(  # noqa: N802
        self, request: Any, _: grpc.aio.ServicerContext
    ) -> Any:
        """As ServerReady, for a name and version; False for others."""
        try:
            self._require_model(request.name, request.version)
        except UnknownModelError:
            return _new("ModelReadyResponse", ready=False)
        return _new("ModelReadyResponse", ready=self._lifecycle.is_ready)

    async def ServerMetadata(  # noqa: N802
        self, _: Message, __: grpc.aio.ServicerContext
    ) -> Any:
        """Name and version of the server."""
        return _new("ServerMetadataResponse", name=PLATFORM, version=omserve_version())

    async def ModelMetadata(  # noqa: N802
        self, request: Any, _: grpc.aio.ServicerContext
    ) -> Any:
        """Inputs and outputs by name."""
        self._require_model(request.name, request.version)
        response = _new(
            "ModelMetadataResponse", name=self._model, versions=[VERSION], platform=PLATFORM
        )
        for tensors, known in ((response.inputs, _INPUTS), (response.outputs, OUTPUTS)):
            for name, datatype in known.items():
                tensors.add(name=name, datatype=datatype, shape=_dims(name, known is OUTPUTS))
        return response

    async def ModelConfig(  # noqa: N802
        self, request: Any, _: grpc.aio.ServicerContext
    ) -> Any:
        """What Triton's clients read of a model's configuration."""
        self._require_model(request.name, request.version)
        response = _new("ModelConfigResponse")
        config = response.config
        config.name, config.platform, config.backend = self._model, PLATFORM, PLATFORM
        config.model_transaction_policy.decoupled = True
        for name, datatype in _INPUTS.items():
            # Prompts come one way or the other, so neither is required.
            kind = _CONFIG_TYPES[datatype]
            config.input.add(name=name, data_type=kind, dims=_dims(name, False), optional=True)
        for name, datatype in OUTPUTS.items():
            config.output.add(name=name, data_type=_CONFIG_TYPES[datatype], dims=[-1])
        return response

    async def ModelInfer(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> Any:
        """Answer a prompt in one reply."""
        self._lifecycle.require_serving()
        self._require_model(request.model_name, request.model_version)
        with named_as(NAMES):
            call = infer_call_from(request)
            if call.streams:
                raise RequestError(
                    "stream is true, but ModelInfer replies once; use ModelStreamInfer"
                )
            async with aclosing(live_deltas(self._lifecycle, call.request, context)) as deltas:
                answers = join_deltas([delta async for delta in deltas])
        response = self._whole_response(call, answers)
        require_unary_size(response, "use ModelStreamInfer with stream true")
        return response

    async def ModelStreamInfer(  # noqa: N802
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        """Answer prompts as they come, all at once; one that fails leaves the others alone."""
        writer = EventWriter(context, self._slow_reader_timeout_s)
        await writer.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                async for raw in requests:
                    tasks.create_task(self._answer(raw, writer))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    async def _answer(self, raw: bytes, writer: EventWriter) -> None:
        async with aclosing(self._responses(raw, writer.context)) as responses:
            async for response in responses:
                await writer.write(response)

    async def _responses(
        self, raw: bytes, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[Message, None]:
        """What one request of a stream gets; its failure is the last of it."""
        client_id = ""
        try:
            request: Any = read_message(MESSAGES.message_class("ModelInferRequest").FromString, raw)
            client_id = request.id
            renew_caller()
            self._lifecycle.require_serving()
            self._require_model(request.model_name, request.model_version)
            with named_as(NAMES):
                call = infer_call_from(request)
                async with aclosing(live_deltas(self._lifecycle, call.request, context)) as deltas:
                    async for response in self._told(call, deltas):
                        yield response
        except Exception as error:
            yield _error_event(client_id, failure_of(error, _STREAM_METHOD).message)

    async def _told(
        self, call: InferCall, deltas: AsyncGenerator[TextDelta, None]
    ) -> AsyncGenerator[Message, None]:
        """The events of one request, for each piece or for the whole answers."""
        if not call.streams:
            answers = join_deltas([delta async for delta in deltas])
            yield _event(self._whole_response(call, answers))
            return
        async for delta in deltas:
            if delta.text or delta.finish_reason is not None:
                yield _event(self._whole_response(call, (delta,)))

    def _whole_response(self, call: InferCall, answers: Sequence[TextDelta]) -> Any:
        response = _new(
            "ModelInferResponse",
            model_name=self._model,
            model_version=VERSION,
            id=call.client_id,
        )
        is_last = all(answer.finish_reason is not None for answer in answers)
        response.parameters["triton_final_response"].bool_param = is_last
        for name in call.outputs:
            values = [_output(name, answer) for answer in answers]
            add_tensor(response, name, OUTPUTS[name], values)
        return response

    def _require_model(self, name: str, version: str) -> None:
        require_served_model(name, self._model)
        if version not in ("", VERSION):
            raise UnknownModelError(
                f"version {version[:40]!r} of model {name!r} is not served here, only {VERSION}"
            )


def _output(name: str, answer: TextDelta) -> TensorValue:
    if name == "text_output":
        return answer.text.encode()
    if name == "finish_reason":
        return b"" if answer.finish_reason is None else answer.finish_reason.value.encode()
    if name == "num_input_tokens":
        return answer.num_prompt_tokens if answer.usage is None else answer.usage.num_prompt_tokens
    # In a stream of the piece, as in Triton's vLLM backend.
    return len(answer.token_ids)


def _dims(name: str, is_output: bool) -> list[int]:
    return [-1] if is_output or name == "input_ids" else [1]


def _event(response: Any) -> Any:
    return _new("ModelStreamInferResponse", infer_response=response)


def _error_event(client_id: str, text: str) -> Any:
    event = _new("ModelStreamInferResponse", error_message=text)
    event.infer_response.id = client_id
    event.infer_response.parameters["triton_final_response"].bool_param = True
    return event


def _new(message_name: str, /, **fields: Any) -> Any:
    # The messages have no static types, as there are no stubs.
    return MESSAGES.message_class(message_name)(**fields)
