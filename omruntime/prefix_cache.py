"""PrefixCache: which blocks hold the keys and values of which token prefix.

Owns the map from content to block. It holds no references: a cached block may be free, and its
entry ends when the pool hands it out again. Who holds blocks is `block_pool.py`'s business.
"""

from __future__ import annotations

from omruntime.block_key import (
    BlockKey,
    HashBytes,
    chain_digest,
    make_extra_keys,
    root_digest,
    same_content,
    sha256_digest,
)
from omruntime.block_pool import BlockPool
from omruntime.sequence import Sequence


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
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._kv_identity = kv_identity
        self._hash_bytes = hash_bytes
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, BlockKey] = {}
        self.num_evictions = 0
        pool.on_reuse(self._evict)

    def __len__(self) -> int:
        """Blocks, held or free, whose content can be given out."""
        return len(self._keys)

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

    def insert(self, sequence: Sequence, first_block: int) -> None:
        """Remember a sequence's full and computed blocks from index `first_block` on.

        Content that is known already stays with the block that had it first.
        """
        num_blocks = sequence.num_computed_tokens // self._block_size
        if first_block >= num_blocks:
            return
        self._extend_keys(sequence, num_blocks)
        for index in range(first_block, num_blocks):
            key, block_id = sequence.block_keys[index], sequence.block_table[index]
            if key.digest not in self._blocks:
                assert block_id not in self._keys, f"block {block_id} was cached, then written"
                self._blocks[key.digest] = block_id
                self._keys[block_id] = key

    def forget(self, block_id: int) -> bool:
        """Drop a block's entry, as its content is about to change; whether it had one."""
        key = self._keys.pop(block_id, None)
        if key is None:
            return False
        del self._blocks[key.digest]
        return True

    def flush(self) -> int:
        """Drop every entry and say how many; blocks that sequences hold stay theirs."""
        num_entries = len(self._keys)
        self._blocks.clear()
        self._keys.clear()
        return num_entries

    def check(self) -> None:
        """Assert that both maps agree and name blocks that exist."""
        assert len(self._blocks) == len(self._keys), "an entry has no block or no key"
        for block_id, key in self._keys.items():
            assert 0 < block_id < self._pool.num_blocks, f"block {block_id} does not exist"
            assert self._blocks[key.digest] == block_id, f"block {block_id} is not found by key"
            assert len(key.token_ids) == self._block_size, f"block {block_id} is not full"

    def _evict(self, block_id: int) -> None:
        self.num_evictions += self.forget(block_id)

    def _extend_keys(self, sequence: Sequence, num_blocks: int) -> None:
        """Compute the keys up to `num_blocks` that a sequence lacks; known tokens never change."""
        keys = sequence.block_keys
        if len(keys) >= num_blocks:
            return
        extra_keys = make_extra_keys(sequence.request.cache_salt)
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
