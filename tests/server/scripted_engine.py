"""A stand-in for the engine: each request's deltas are written down beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from omruntime.errors import OmError
from omruntime.manifest import ModelFacts, SamplingDefaults
from omruntime.outputs import RequestTimings, TokenDelta
from omruntime.sequence import FinishReason, Request

TIMINGS = RequestTimings(queue_s=0.25, prefill_s=0.5, decode_s=1.0)

Script = Callable[[Request], Sequence[TokenDelta]]


def model_facts(vocab_size: int, sampling_defaults: SamplingDefaults) -> ModelFacts:
    """A model whose end token is id 2."""
    return ModelFacts(
        name="scripted",
        architecture="ScriptedForCausalLM",
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        vocab_size=vocab_size,
        max_model_len=64,
        max_num_seqs=4,
        dtype="float32",
        bos_token_id=None,
        eos_token_ids=(2,),
        eos_source="test",
        sampling_defaults=sampling_defaults,
    )


def last(reason: FinishReason, *token_ids: int, error: str = "") -> TokenDelta:
    """The delta that ends a request."""
    return TokenDelta(
        token_ids, finish_reason=reason, error=error, num_cached_tokens=3, timings=TIMINGS
    )


def one_by_one(token_ids: Sequence[int], reason: FinishReason) -> list[TokenDelta]:
    """A delta for each token; the last has the reason."""
    return [*(TokenDelta((i,)) for i in token_ids[:-1]), last(reason, token_ids[-1])]


class ScriptedEngine:
    """Fits `TokenEngine`.

    Attributes:
        submitted: Every request, in order.
        cancelled: Every id given to `cancel`, in order.
        live: Ids whose stream has not had its last delta.
        refusal: What `submit` raises from the given number of accepted requests on.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.submitted: list[Request] = []
        self.cancelled: list[str] = []
        self.live: set[str] = set()
        self.refusal: tuple[int, OmError] | None = None

    async def submit(self, request: Request) -> AsyncIterator[TokenDelta]:
        """Accept, and play the request's script; a tick of the loop before each delta."""
        await asyncio.sleep(0)
        if self.refusal is not None and len(self.submitted) >= self.refusal[0]:
            raise self.refusal[1]
        self.submitted.append(request)
        self.live.add(request.request_id)
        return self._play(request)

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """The stream ends with ABORT instead of its next delta."""
        self.cancelled.append(request_id)
        self.live.discard(request_id)

    async def _play(self, request: Request) -> AsyncIterator[TokenDelta]:
        for delta in self._script(request):
            await asyncio.sleep(0)
            if request.request_id not in self.live:
                yield last(FinishReason.ABORT)
                return
            if delta.finish_reason is not None:
                self.live.discard(request.request_id)
            yield delta
        # A script without an end waits for `cancel`.
        while request.request_id in self.live:
            await asyncio.sleep(0)
        if self._script(request)[-1].finish_reason is None:
            yield last(FinishReason.ABORT)
