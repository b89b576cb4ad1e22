"""Sequence: the run-time state of one answer; Request: what the engine is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from omruntime.block_key import BlockKey
from omruntime.sampling_params import SamplingParams


class SequenceStatus(Enum):
    """WAITING holds no blocks; RUNNING holds some; FINISHED holds none and never runs again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why an answer ended.

    STOP: an end token, stop token or stop string. LENGTH: max_new_tokens or the model's limit.
    ABORT: the client cancelled, went away, or somebody called Abort. ERROR: the device or
    the engine failed.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine is asked for: token ids in, one answer out.

    Attributes:
        request_id: Unique among the live ones.
        params: Resolved (no None where a default exists); `n` is the caller's to expand.
        cache_salt: Requests share cached prefixes only with requests of an equal salt.
        leader_id: Another live request with the same prompt, whose blocks this one may
            share once they are computed (the other answers of `n`).
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    cache_salt: str = ""
    leader_id: str | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer in the making; owned by the engine thread.

    Attributes:
        token_ids: Prompt, then generated tokens.
        block_table: Blocks of positions 0, block_size, ...; owned by the block pool.
        num_computed_tokens: Positions whose keys and values are in the pool.
        arrival: Rank of arrival; the order of admission and, reversed, of preemption.
        num_cached_tokens: Prompt tokens that the first admission found in the prefix cache.
        num_overtakes: Later arrivals that were admitted while this one waited for blocks.
        block_keys: Of the full blocks, as far as the prefix cache has asked; see `BlockKey`.
        submitted_at, scheduled_at, first_token_at: Seconds of `time.monotonic`.
    """

    request: Request
    arrival: int
    token_ids: list[int]
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_overtakes: int = 0
    block_keys: list[BlockKey] = field(default_factory=list)
    submitted_at: float = 0.0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    finish_reason: FinishReason | None = None

    @staticmethod
    def of(request: Request, arrival: int) -> Sequence:
        """A waiting sequence that has computed nothing."""
        return Sequence(request, arrival, list(request.prompt_token_ids))

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.request.params

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Known tokens that are not computed yet; 1 means ready for a decode step."""
        return len(self.token_ids) - self.num_computed_tokens
