"""What may enter: whether a request can ever run, and what a waiting one may reuse and needs.

Owns the sums; the scheduler acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from omruntime.blocks.block_pool import BlockPool
from omruntime.blocks.prefix_cache import PrefixCache
from omruntime.errors import PromptTooLongError, RequestError
from omruntime.limits import longest_sequence
from omruntime.scheduling.output_lengths import OutputLengths
from omruntime.scheduling.row_choice import RowChooser
from omruntime.sequence import Request, Sequence

# Admission bets on at most this share of the pool: that running answers end before they need it.
# A lost bet costs a preemption, a bet never made leaves rows empty.
MAX_OPTIMISM = 0.25


@dataclass(frozen=True, slots=True)
class Reuse:
    """Blocks in the pool that already hold the beginning of a waiting sequence.

    Attributes:
        num_tokens: Positions that they hold; the last block may be partly of use.
        num_cached_tokens: Those of them that the prefix cache found.
    """

    block_ids: list[int]
    num_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Room:
    """Blocks, either to spare in the pool or wanted by a waiting sequence.

    Attributes:
        num_soon: For known tokens, and one block more for what will grow.
        num_in_all: For whole answers of the expected lengths.
    """

    num_soon: int
    num_in_all: float


class Admission:
    """Sums up what sequences reuse and need from one pool."""

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache | None,
        chooser: RowChooser,
        lengths: OutputLengths,
        max_model_len: int,
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._chooser = chooser
        self._lengths = lengths
        self._block_size = chooser.block_size
        self._max_model_len = max_model_len
        self.max_len = longest_sequence(max_model_len, pool.num_usable, self._block_size)

    def require_runnable(self, request: Request) -> None:
        """Check that the request could run if it were alone.

        `max_new_tokens` beyond the model's length is cut there; beyond the pool it is refused,
        as the answer would stop short of what both the caller and the model allow.

        Raises:
            RequestError: No prompt, or the answer cannot fit into the pool.
            PromptTooLongError: No room for prompt and one token.
        """
        num_prompt_tokens = len(request.prompt_token_ids)
        if num_prompt_tokens == 0:
            raise RequestError("prompt has no tokens, wanted at least 1", "prompt")
        max_new_tokens = request.params.max_new_tokens
        # Without an answer all of the prompt is computed, and nothing beyond it is known.
        most = self.max_len - 1
        if request.params.is_score_only:
            most = min(self._max_model_len, self._pool.num_usable * self._block_size)
        if num_prompt_tokens > most:
            room = "can be scored" if request.params.is_score_only else "leave room for an answer"
            raise PromptTooLongError(
                f"prompt has {num_prompt_tokens} tokens, at most {most} {room} "
                f"({self._limit_text()}); shorten it",
                "prompt",
            )
        if not max_new_tokens:
            return
        wanted = min(num_prompt_tokens + max_new_tokens, self._max_model_len)
        if wanted > self.max_len:
            raise RequestError(
                f"prompt of {num_prompt_tokens} tokens plus max_new_tokens {max_new_tokens} "
                f"passes the {self.max_len} tokens that one sequence may have "
                f"({self._limit_text()}); lower max_new_tokens",
                "max_new_tokens",
            )

    def waits_for(self, sequence: Sequence, leader: Sequence | None) -> bool:
        """Whether a sequence had better wait for its leader's prefill than do it twice.

        Only an earlier arrival that was never preempted is worth it, so that none waits for
        another in a circle.
        """
        if leader is None or leader.arrival >= sequence.arrival or leader.num_preemptions:
            return False
        return leader.num_computed_tokens < sequence.num_prompt_tokens - 1

    def find_reuse(self, sequence: Sequence, leader: Sequence | None) -> Reuse:
        """The longest computed beginning of a waiting sequence, its leader's or a cached one.

        A leader shares all prompt positions but the last, so that the sequence's next step
        gives its first token. Less is reused where that is cheaper, see `RowChooser.reusable`.
        """
        matched = self._match(sequence)
        num_cached_tokens = len(matched) * self._block_size
        num_shared = sequence.num_prompt_tokens - 1
        if leader is not None and num_shared > num_cached_tokens and _shares(leader, sequence):
            num_tokens = self._chooser.reusable(sequence, num_shared)
            return Reuse(leader.block_table[: self._num_blocks(num_tokens)], num_tokens, 0)
        num_tokens = self._chooser.reusable(sequence, num_cached_tokens)
        return Reuse(matched[: num_tokens // self._block_size], num_tokens, num_tokens)

    def num_matched_blocks(self, sequence: Sequence) -> int:
        """Blocks of the longest cached beginning, whether or not they are worth reusing."""
        return len(self._match(sequence))

    def _match(self, sequence: Sequence) -> list[int]:
        if self._cache is None or sequence.request.bypasses_prefix_cache:
            return []
        return self._cache.match(sequence)

    def to_spare(self, running: Iterable[Sequence]) -> Room:
        """What the running sequences will leave free; may be negative.

        Promised are blocks for all their known tokens, and one more each for those that will
        grow: otherwise the youngest would be preempted and admitted again and again. Beyond
        that, the growth of whole answers may pass the free blocks by `MAX_OPTIMISM` of the pool.
        """
        num_soon, num_in_all = self._pool.num_free, MAX_OPTIMISM * self._pool.num_usable
        num_in_all += num_soon
        for sequence in running:
            held = len(sequence.block_table)
            num_soon -= self._num_blocks_soon(sequence) - held
            num_in_all -= max(0.0, self._num_blocks_in_all(sequence) - held)
        return Room(num_soon, num_in_all)

    def needed(self, sequence: Sequence, reuse: Reuse) -> Room:
        """What a waiting sequence takes by the same measures; at least one block soon."""
        num_own = sum(1 for b in reuse.block_ids if self._pool.reference_count(b) == 0)
        # A partly shared tail is copied before it is written.
        num_own += (reuse.num_tokens % self._block_size > 0) - len(reuse.block_ids)
        return Room(
            self._num_blocks_soon(sequence) + num_own, self._num_blocks_in_all(sequence) + num_own
        )

    def has_room(self, spare: Room, needed: Room, num_running: int) -> bool:
        """Whether a sequence may enter; one that would be alone needs no room for its answer."""
        if needed.num_soon > spare.num_soon:
            return False
        return num_running == 0 or needed.num_in_all <= spare.num_in_all

    def _num_blocks_soon(self, sequence: Sequence) -> int:
        num_tokens = len(sequence.token_ids) + self._block_size
        return self._num_blocks(min(num_tokens, self._most(sequence) - 1))

    def _num_blocks_in_all(self, sequence: Sequence) -> float:
        """Never fewer than soon; before any answer has ended, no more."""
        soon = self._num_blocks_soon(sequence)
        if not self._lengths.is_known:
            return soon
        num_tokens = sequence.num_prompt_tokens + self._lengths.expected(sequence)
        return max(soon, min(num_tokens, self._most(sequence) - 1) / self._block_size)

    def _most(self, sequence: Sequence) -> int:
        """Most tokens that a sequence can get, the last of which is never computed."""
        max_new_tokens = sequence.params.max_new_tokens
        if max_new_tokens is None:
            return self.max_len
        if max_new_tokens == 0:
            return sequence.num_prompt_tokens + 1
        return min(self.max_len, sequence.num_prompt_tokens + max_new_tokens)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _limit_text(self) -> str:
        return (
            f"model length {self._max_model_len}, pool of {self._pool.num_usable} blocks of "
            f"{self._block_size} tokens"
        )


def _shares(leader: Sequence, sequence: Sequence) -> bool:
    """Whether a leader holds all prompt positions of a sequence but the last."""
    return (
        leader.num_computed_tokens >= sequence.num_prompt_tokens - 1
        and leader.request.cache_salt == sequence.request.cache_salt
        and leader.request.prompt_token_ids == sequence.request.prompt_token_ids
    )
