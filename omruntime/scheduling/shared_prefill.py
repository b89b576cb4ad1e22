"""SharedPrefill: which running sequence is computing which prompt beginning right now.

Owns the map from block content to the sequence that computes it, so that a second request with
the same beginning waits for the prefix cache instead of computing it again. What is computed
already is `prefix_cache.py`'s business.
"""

from __future__ import annotations

from omruntime.blocks.block_key import BlockKey
from omruntime.sequence import Sequence

# A sequence waits for others' prefills in at most so many steps of its life. Each of those steps
# may be a decode step, so this is some seconds at worst; far more than a prompt's chunks.
MAX_PREFIX_WAITS = 64


class SharedPrefill:
    """Names the computing sequence by block digest; for the engine thread alone."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._computing: dict[bytes, Sequence] = {}
        self._digests: dict[Sequence, list[bytes]] = {}

    def __len__(self) -> int:
        """Sequences that compute a prompt."""
        return len(self._digests)

    def begin(self, sequence: Sequence, prompt_keys: list[BlockKey]) -> None:
        """An admitted sequence starts to compute what it could not reuse of its prompt."""
        first = sequence.num_computed_tokens // self._block_size
        # Once each: a weak digest may occur twice in one prompt.
        digests = dict.fromkeys(key.digest for key in prompt_keys[first:])
        new = [digest for digest in digests if digest not in self._computing]
        if new:
            self._computing |= dict.fromkeys(new, sequence)
            self._digests[sequence] = new

    def end(self, sequence: Sequence) -> None:
        """A sequence has computed its prompt, or will not."""
        for digest in self._digests.pop(sequence, ()):
            del self._computing[digest]

    def num_coming(self, sequence: Sequence, num_cached_blocks: int) -> int:
        """Tokens of a waiting sequence, after its cached blocks, that another is computing now."""
        keys = sequence.block_keys[num_cached_blocks:]
        leader = self._computing.get(keys[0].digest) if keys else None
        if leader is None or leader.num_computed_tokens >= leader.num_prompt_tokens:
            return 0
        num_blocks = 0
        for key in keys:
            if self._computing.get(key.digest) is not leader:
                break
            num_blocks += 1
        return num_blocks * self._block_size

    def worth_waiting(self, sequence: Sequence, num_cached_blocks: int) -> bool:
        """Whether a waiting sequence had better wait another step for a prefill under way.

        When that is at least half of what it would have to compute itself, and within its
        bound. Counts the wait.
        """
        num_coming = self.num_coming(sequence, num_cached_blocks)
        num_left = len(sequence.token_ids) - num_cached_blocks * self._block_size
        if num_coming == 0 or 2 * num_coming < num_left:
            return False
        sequence.num_prefix_waits += 1
        return sequence.num_prefix_waits <= MAX_PREFIX_WAITS
