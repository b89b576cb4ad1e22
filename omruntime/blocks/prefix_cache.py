"""PrefixCache: which blocks hold the keys and values of which token prefix.

Owns the map from content to block. It holds no references: a cached block may be free, and its
entry ends when the pool hands it out again. Who holds blocks is `block_pool.py`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from omruntime.blocks.block_key import (
    BlockKey,
    HashBytes,
    chain_digest,
    make_extra_keys,
    root_digest,
    same_content,
    sha256_digest,
)
from omruntime.blocks.block_pool import BlockPool, Retention
from omruntime.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefixCacheCounters:
    """What the cache has done since start.

    Attributes:
        num_hits, num_misses: Admissions that found some of their prompt, and none of it.
        num_hit_tokens, num_asked_tokens: Prompt tokens found, and all of those prompts' tokens.
        num_evictions: Entries that ended because their block was handed out.
        num_flushed: Entries that flushes dropped.
    """

    num_hits: int = 0
    num_misses: int = 0
    num_hit_tokens: int = 0
    num_asked_tokens: int = 0
    num_evictions: int = 0
    num_flushed: int = 0


class PrefixCache:
    """Finds full blocks by the whole prefix that they end.

    Keys are chained digests, seeded with `kv_identity` (all that decides what a cached value
    is) and the request's extra keys. A hit compares tokens and extra keys as well, so that a
    collision of `hash_bytes` costs a hit but never gives a wrong one.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        kv_identity: str,
        hash_bytes: HashBytes = sha256_digest,
        *,
        prompts_only: bool = False,
    ) -> None:
        """Begin empty.

        Args:
            prompts_only: Remember no tokens of answers. Those are computed one by one, so their
                keys and values differ in the last bits from a prompt's.
        """
        self._pool = pool
        self._block_size = block_size
        self._kv_identity = kv_identity
        self._hash_bytes = hash_bytes
        self._prompts_only = prompts_only
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, BlockKey] = {}
        self._counters = PrefixCacheCounters()
        self._num_evictions = 0
        pool.on_reuse(self._evict)

    def __len__(self) -> int:
        """Blocks, held or free, whose content can be given out."""
        return len(self._keys)

    @property
    def counters(self) -> PrefixCacheCounters:
        """What was found, lost and dropped so far."""
        return replace(self._counters, num_evictions=self._num_evictions)

    def match(self, sequence: Sequence) -> list[int]:
        """The longest run of cached blocks that begin a sequence, in position order.

        At least one of its tokens stays to be computed, since only a computed token gives
        logits. Takes no references: `BlockPool.retain` the result before the next allocation.
        """
        num_blocks = (len(sequence.token_ids) - 1) // self._block_size
        self._extend_keys(sequence, num_blocks)
        block_ids: list[int] = []
        matched: BlockKey | None = None
        for key in sequence.block_keys[:num_blocks]:
            # Equal content, so the chains may share their keys: stored once, compared fast.
            key.parent = matched
            block_id = self._blocks.get(key.digest)
            if block_id is None:
                break
            cached = self._keys[block_id]
            if not same_content(cached, key):
                break
            sequence.block_keys[len(block_ids)] = matched = cached
            block_ids.append(block_id)
        return block_ids

    def prompt_keys(self, sequence: Sequence) -> list[BlockKey]:
        """The keys of all full blocks of a prompt, computed or not."""
        num_blocks = sequence.num_prompt_tokens // self._block_size
        self._extend_keys(sequence, num_blocks)
        return sequence.block_keys[:num_blocks]

    def use(self, sequence: Sequence, num_tokens: int) -> None:
        """Count a first admission that reuses `num_tokens` of what `match` found.

        The reused blocks of a sequence that keeps its prefix are kept from now on.
        """
        counters = self._counters
        self._counters = replace(
            counters,
            num_hits=counters.num_hits + (num_tokens > 0),
            num_misses=counters.num_misses + (num_tokens == 0),
            num_hit_tokens=counters.num_hit_tokens + num_tokens,
            num_asked_tokens=counters.num_asked_tokens + sequence.num_prompt_tokens,
        )
        if sequence.request.scheduling.keeps_prefix:
            for block_id in sequence.block_table[: num_tokens // self._block_size]:
                self._pool.set_retention(block_id, Retention.KEPT)

    def insert(self, sequence: Sequence, first_block: int) -> None:
        """Remember a sequence's full and computed blocks from index `first_block` on.

        Content that is known already stays with the block that had it first.
        """
        num_blocks = sequence.num_computed_tokens // self._block_size
        if self._prompts_only:
            num_blocks = min(num_blocks, sequence.num_prompt_tokens // self._block_size)
        if first_block >= num_blocks:
            return
        self._extend_keys(sequence, num_blocks)
        kept = 0
        if sequence.request.scheduling.keeps_prefix:
            kept = sequence.num_prompt_tokens // self._block_size
        for index in range(first_block, num_blocks):
            key, block_id = sequence.block_keys[index], sequence.block_table[index]
            if key.digest not in self._blocks:
                assert block_id not in self._keys, f"block {block_id} was cached, then written"
                self._blocks[key.digest] = block_id
                self._keys[block_id] = key
                retention = Retention.KEPT if index < kept else Retention.CACHED
                self._pool.set_retention(block_id, retention)

    def forget(self, block_id: int) -> bool:
        """Drop a block's entry, as its content is about to change; whether it had one."""
        key = self._keys.pop(block_id, None)
        if key is None:
            return False
        del self._blocks[key.digest]
        self._pool.set_retention(block_id, Retention.NOTHING)
        return True

    def flush(self) -> int:
        """Drop every entry and say how many; blocks that sequences hold stay theirs."""
        block_ids = list(self._keys)
        for block_id in block_ids:
            self.forget(block_id)
        num_flushed = self._counters.num_flushed + len(block_ids)
        self._counters = replace(self._counters, num_flushed=num_flushed)
        return len(block_ids)

    def check(self) -> None:
        """Assert that both maps agree and name blocks that exist."""
        assert len(self._blocks) == len(self._keys), "an entry has no block or no key"
        for block_id, key in self._keys.items():
            assert 0 < block_id < self._pool.num_blocks, f"block {block_id} does not exist"
            assert self._blocks[key.digest] == block_id, f"block {block_id} is not found by key"
            assert len(key.token_ids) == self._block_size, f"block {block_id} is not full"

    def _evict(self, block_id: int) -> None:
        self._num_evictions += self.forget(block_id)

    def _extend_keys(self, sequence: Sequence, num_blocks: int) -> None:
        """Compute the keys up to `num_blocks` that a sequence lacks; known tokens never change."""
        keys = sequence.block_keys
        if len(keys) >= num_blocks:
            return
        request, adapter = sequence.request, sequence.request.adapter
        names = () if adapter is None else (adapter.name, adapter.content_hash)
        extra_keys = make_extra_keys(request.cache_salt, *names)
        parent = keys[-1] if keys else None
        if parent is None:
            digest = root_digest(self._kv_identity, extra_keys, self._hash_bytes)
        else:
            digest = parent.digest
        for index in range(len(keys), num_blocks):
            start = index * self._block_size
            token_ids = tuple(sequence.token_ids[start : start + self._block_size])
            digest = chain_digest(digest, token_ids, self._hash_bytes)
            parent = BlockKey(digest, token_ids, extra_keys, parent)
            keys.append(parent)
