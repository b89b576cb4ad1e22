"""What the engine tells those who wait for an answer: deltas, timings, load."""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.blocks.prefix_cache import PrefixCacheCounters
from omruntime.sequence import FinishReason
from omruntime.step import ScoredToken, TokenLogprobs


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """Durations of one finished request in seconds, by a monotonic clock.

    Attributes:
        queue_s: Submit to first scheduled step.
        prefill_s: First scheduled step to first token.
        decode_s: First to last token.
    """

    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """The next tokens of one request; several when the reader is slower than the engine.

    Attributes:
        logprobs: One for each token when the request asked, else empty.
        prompt_logprobs: The next of the prompt's tokens, when the request asked; the first that
            comes is the second token's, or that at `Request.score_from`. All come before the
            first token of the answer.
        finish_reason: Set on the last delta, which may carry no token.
        error: Why, when `finish_reason` is ERROR, or ABORT because of a timeout or deadline.
        is_refusal: Whether the error lies in the request's own parameters.
        num_cached_tokens: Prompt tokens taken from the prefix cache.
        timings: On the last delta.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: str = ""
    num_cached_tokens: int = 0
    timings: RequestTimings | None = None
    prompt_logprobs: tuple[ScoredToken, ...] = ()
    is_refusal: bool = False


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine holds right now, for load balancers and tests.

    Attributes:
        num_referenced_blocks: Blocks that live sequences hold; 0 when idle.
        num_cached_blocks: Blocks, held or free, whose content the prefix cache can give out.
        num_total_blocks: Blocks that can be handed out.
        num_finished: Requests ended since start, by `FinishReason` value.
        num_free_cached_blocks: Blocks that nobody holds and whose content the prefix cache can
            give out; what is neither held nor of these is empty.
    """

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_referenced_blocks: int
    num_cached_blocks: int
    num_total_blocks: int
    num_preemptions: int
    num_prefix_hit_tokens: int
    num_finished: dict[str, int]
    num_free_cached_blocks: int = 0

    @staticmethod
    def idle(num_total_blocks: int) -> EngineLoad:
        """The load of an engine that has done nothing yet."""
        return EngineLoad(0, 0, 0, 0, 0, num_total_blocks, 0, 0, {})


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """What has happened since start, for metrics.

    Attributes:
        num_quarantined: Requests that ended because the engine found its state inconsistent.
        num_computed_tokens: Tokens that the rows of all steps have computed.
        num_step_places: Tokens that the buckets of those steps had places for; what is more
            than computed was padding.
        num_prefill_tokens: Tokens of prompts that were computed, those of what was preempted
            again.
        num_generated_tokens: Tokens of answers.
        num_bucket_switches: Steps that ran another bucket than the step before.
    """

    num_steps: int
    num_quarantined: int
    prefix_cache: PrefixCacheCounters
    num_computed_tokens: int = 0
    num_step_places: int = 0
    num_prefill_tokens: int = 0
    num_generated_tokens: int = 0
    num_bucket_switches: int = 0

    @staticmethod
    def none() -> EngineCounters:
        """Of an engine that has done nothing yet."""
        return EngineCounters(0, 0, PrefixCacheCounters())
