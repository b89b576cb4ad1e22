"""Sequence: the run-time state of one answer; Request: what the engine is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from omruntime.blocks.block_key import BlockKey
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling

if TYPE_CHECKING:  # it needs numpy, which clients that only name requests do without
    from omruntime.sampling.token_matcher import TokenMatcher


class SequenceStatus(Enum):
    """WAITING holds no blocks; RUNNING holds some; FINISHED holds none and never runs again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why an answer ended.

    STOP: an end token, stop token or stop string. LENGTH: max_new_tokens or the model's limit.
    ABORT: the client cancelled, went away, or somebody called Abort; or the request's queue
    timeout or deadline passed, which its detail then says. ERROR: the device or the engine failed.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Adapter:
    """What changes a model's keys and values: a name for humans, and a hash over its content."""

    name: str
    content_hash: str


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine is asked for: token ids in, one answer out.

    Attributes:
        request_id: Unique among the live ones.
        params: Resolved (no None where a default exists); `n` is the caller's to expand.
        cache_salt: Requests share cached prefixes only with requests of an equal salt.
        leader_id: Another live request with the same prompt, whose blocks this one may
            share once they are computed (the other answers of `n`).
        scheduling: Its wishes about its turn.
        bypasses_prefix_cache: Its prompt is computed anew, and not remembered for others.
        score_from: Tokens of the prompt before this position get no logprobs; those of the
            others are wanted when the params say so.
        adapter: Requests share cached prefixes only with requests of an equal adapter. Running
            one is not built in; the engine refuses it.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    cache_salt: str = ""
    leader_id: str | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)
    adapter: Adapter | None = None
    bypasses_prefix_cache: bool = False
    score_from: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer in the making; owned by the engine thread.

    Attributes:
        token_ids: Prompt, then generated tokens.
        block_table: Blocks of positions 0, block_size, ...; owned by the block pool.
        num_computed_tokens: Positions whose keys and values are in the pool.
        num_scored: Prompt positions, from the first, whose logits are not wanted any more;
            see `num_unscored`. What was told stays told, so a preemption does not change it.
        arrival: Rank of arrival; within a class the order of admission and, reversed, of
            preemption.
        urgency: The class it is in by now: what it asked for, or higher by waiting.
        num_cached_tokens: Prompt tokens that the first admission found in the prefix cache.
        num_overtakes: Others that were admitted while this one waited for blocks before them.
        num_prefix_waits: Steps for which it waited for another's prefill of its own beginning.
        block_keys: Of the full blocks, as far as the prefix cache has asked; see `BlockKey`.
        submitted_at, idle_since, scheduled_at, first_token_at: Seconds of `time.monotonic`;
            it has been idle since the submit, its last step or its last rise by waiting.
        finish_detail: Why, where the reason alone does not say it.
        matcher: Follows the generated tokens; None without a constraint.
    """

    request: Request
    arrival: int
    token_ids: list[int]
    urgency: int
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_scored: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_overtakes: int = 0
    num_prefix_waits: int = 0
    block_keys: list[BlockKey] = field(default_factory=list)
    submitted_at: float = 0.0
    idle_since: float = 0.0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    finish_reason: FinishReason | None = None
    finish_detail: str = ""
    matcher: TokenMatcher | None = None

    @staticmethod
    def of(request: Request, arrival: int) -> Sequence:
        """A waiting sequence that has computed nothing."""
        urgency = int(request.scheduling.urgency)
        sequence = Sequence(request, arrival, list(request.prompt_token_ids), urgency)
        # The logits of a position are those of the next token.
        sequence.num_scored = max(0, request.score_from - 1)
        return sequence

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts the sequences that run: the most urgent first, then the earliest arrival."""
        return -self.urgency, self.arrival

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

    @property
    def num_unscored(self) -> int:
        """Prompt positions whose logits are wanted once the prompt is computed.

        All but the last give logprobs of the prompt. The last gives the first token of the
        answer, after them and so in turn; a request without an answer does not want it.
        """
        if self.params.prompt_logprobs is None or self.num_prompt_tokens == 1:
            return 0
        most = self.num_prompt_tokens - (1 if self.params.is_score_only else 0)
        return max(0, most - self.num_scored)

    @property
    def is_scoring(self) -> bool:
        """Whether the prompt is computed and positions of it are still to be scored."""
        return self.num_computed_tokens >= self.num_prompt_tokens and self.num_unscored > 0
