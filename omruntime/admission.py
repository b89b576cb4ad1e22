"""What may enter: whether a request can ever run, and what a waiting one may reuse and needs.

Owns the sums; the scheduler acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from omruntime.block_pool import BlockPool
from omruntime.errors import PromptTooLongError, RequestError
from omruntime.limits import longest_sequence
from omruntime.prefix_cache import PrefixCache
from omruntime.sequence import Request, Sequence


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


class Admission:
    """Sums up what sequences reuse and need from one pool."""

    def __init__(
        self, pool: BlockPool, cache: PrefixCache | None, block_size: int, max_model_len: int
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._block_size = block_size
        self._max_model_len = max_model_len
        self.max_len = longest_sequence(max_model_len, pool.num_usable, block_size)

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
            raise RequestError("prompt has no tokens, wanted at least 1")
        if num_prompt_tokens >= self.max_len:
            raise PromptTooLongError(
                f"prompt has {num_prompt_tokens} tokens, at most {self.max_len - 1} leave room "
                f"for an answer ({self._limit_text()}); shorten it"
            )
        max_new_tokens = request.params.max_new_tokens
        if max_new_tokens is None:
            return
        wanted = min(num_prompt_tokens + max_new_tokens, self._max_model_len)
        if wanted > self.max_len:
            raise RequestError(
                f"prompt of {num_prompt_tokens} tokens plus max_new_tokens {max_new_tokens} "
                f"passes the {self.max_len} tokens that one sequence may have "
                f"({self._limit_text()}); lower max_new_tokens"
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
        gives its first token.
        """
        block_ids = [] if self._cache is None else self._cache.match(sequence)
        num_cached_tokens = len(block_ids) * self._block_size
        num_shared = sequence.num_prompt_tokens - 1
        if leader is not None and num_shared > num_cached_tokens and _shares(leader, sequence):
            shared = leader.block_table[: -(-num_shared // self._block_size)]
            return Reuse(shared, num_shared, 0)
        return Reuse(block_ids, num_cached_tokens, num_cached_tokens)

    def num_spare(self, running: Iterable[Sequence]) -> int:
        """Free blocks that the running sequences will not want soon; may be negative.

        Promised are blocks for all their known tokens, and one more each for those that will
        grow: otherwise the youngest would be preempted and admitted again and again.
        """
        promised = sum(self._num_blocks_soon(s) - len(s.block_table) for s in running)
        return self._pool.num_free - promised

    def num_needed(self, sequence: Sequence, reuse: Reuse) -> int:
        """Free blocks that a waiting sequence takes, by the same measure; at least 1."""
        num_blocks = self._num_blocks_soon(sequence) - len(reuse.block_ids)
        num_blocks += sum(1 for b in reuse.block_ids if self._pool.reference_count(b) == 0)
        # A partly shared tail is copied before it is written.
        return num_blocks + (reuse.num_tokens % self._block_size > 0)

    def _num_blocks_soon(self, sequence: Sequence) -> int:
        num_tokens = len(sequence.token_ids)
        max_new_tokens = sequence.params.max_new_tokens
        most = self.max_len
        if max_new_tokens is not None:
            most = min(most, sequence.num_prompt_tokens + max_new_tokens)
        return -(-min(num_tokens + self._block_size, most - 1) // self._block_size)

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
