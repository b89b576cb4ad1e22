"""VllmEngineService: `vllm.grpc.engine.VllmEngine`, by which smg's gateway drives an engine."""

from __future__ import annotations

import dataclasses
import json
from contextlib import aclosing
from typing import Any

import grpc.aio

from omruntime.limits import longest_served
from server.answers import final_deltas
from server.control.steering import own_tenant
from server.dialects.live_deltas import live_deltas
from server.dialects.vllm_messages import MESSAGES
from server.dialects.vllm_request import NAMES, generate_request_from
from server.event_writer import EventWriter
from server.field_names import named_as
from server.lifecycle import Lifecycle
from server.seams import EngineLike
from server.text import TextDelta


class VllmEngineService:
    """Each method answers the RPC of its name."""

    def __init__(
        self, lifecycle: Lifecycle, engine: EngineLike, model: str, slow_reader_timeout_s: float
    ) -> None:
        """Answer for one engine, as `GrpcInferenceService` does."""
        self._lifecycle = lifecycle
        self._engine = engine
        self._model = model
        self._slow_reader_timeout_s = slow_reader_timeout_s

    async def Generate(  # noqa: N802 - the RPC's name
        self, message: Any, context: grpc.aio.ServicerContext
    ) -> None:
        """Answer a prompt in chunks if wished, and each answer as a whole at its end."""
        writer = EventWriter(context, self._slow_reader_timeout_s)
        self._lifecycle.require_serving()
        with named_as(NAMES):
            await self._generate(message, writer)

    async def _generate(self, message: Any, writer: EventWriter) -> None:
        request = generate_request_from(message)

        async with aclosing(live_deltas(self._lifecycle, request, writer.context)) as deltas:
            counts = dict.fromkeys(range(request.params.n), 0)

            async def chunked() -> Any:
                async for delta in deltas:
                    counts[delta.index] += len(delta.token_ids)
                    if message.stream and delta.token_ids:
                        await writer.write(_chunk(delta, counts[delta.index]))
                    yield delta

            async with aclosing(final_deltas(chunked())) as answers:
                async for answer in answers:
                    await writer.write(_complete(answer))

    async def HealthCheck(self, _: Any, __: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        """Whether requests had better come here."""
        return _new(
            "HealthCheckResponse",
            healthy=self._lifecycle.is_ready,
            message=self._lifecycle.detail or self._lifecycle.state.value,
        )

    async def Abort(self, message: Any, _: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        """End live requests; those that have ended meanwhile are as wished already."""
        generator = self._lifecycle.require_loaded()
        for request_id in message.request_ids:
            generator.abort(request_id, own_tenant())
        return _new("AbortResponse")

    async def GetModelInfo(self, _: Any, __: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        """What is served. Tokenizer files are for the gateway to find by its own settings."""
        manifest, limits = self._engine.manifest, self._engine.limits
        facts = manifest.model
        longest = longest_served(limits, manifest)
        defaults = dataclasses.asdict(facts.sampling_defaults)
        return _new(
            "GetModelInfoResponse",
            model_path=self._model,
            is_generation=True,
            max_context_length=longest,
            vocab_size=facts.vocab_size,
            served_model_name=self._model,
            architectures=[facts.architecture],
            eos_token_ids=facts.eos_token_ids,
            bos_token_id=facts.bos_token_id,
            max_req_input_len=longest - 1,
            default_sampling_params_json=json.dumps(defaults),
        )

    async def GetServerInfo(self, _: Any, __: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        """What runs, and for how long."""
        return _new(
            "GetServerInfoResponse",
            active_requests=self._lifecycle.num_running,
            uptime_seconds=self._lifecycle.uptime_s,
            server_type="vllm-grpc",
            data_parallel_size=1,
        )


def _chunk(delta: TextDelta, num_tokens: int) -> Any:
    response = _new("GenerateResponse")
    chunk = response.chunk
    chunk.index = delta.index
    chunk.token_ids.extend(delta.token_ids)
    chunk.prompt_tokens, chunk.completion_tokens = delta.num_prompt_tokens, num_tokens
    _write_logprobs(chunk, delta, delta.token_ids)
    return response


def _complete(answer: TextDelta) -> Any:
    response = _new("GenerateResponse")
    whole = response.complete
    whole.index = answer.index
    whole.output_ids.extend(answer.token_ids)
    if answer.finish_reason is not None:
        whole.finish_reason = answer.finish_reason.value
    if answer.usage is not None:
        whole.prompt_tokens = answer.usage.num_prompt_tokens
        whole.completion_tokens = answer.usage.num_output_tokens
        whole.cached_tokens = answer.usage.num_cached_tokens
    if isinstance(answer.matched_stop, str):
        whole.matched_stop_str = answer.matched_stop
    elif answer.matched_stop is not None:
        whole.matched_token_id = answer.matched_stop
    _write_logprobs(whole, answer, answer.token_ids)
    return response


def _write_logprobs(message: Any, delta: TextDelta, token_ids: tuple[int, ...]) -> None:
    for token_id, entry in zip(token_ids, delta.logprobs, strict=False):
        written = message.output_logprobs
        written.token_ids.append(token_id)
        written.token_logprobs.append(entry.logprob)
        written.top_logprobs.add(
            token_ids=[i for i, _ in entry.top], values=[value for _, value in entry.top]
        )


def _new(message_name: str, /, **fields: Any) -> Any:
    return MESSAGES.message_class(message_name)(**fields)
