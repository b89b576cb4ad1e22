"""BlockKey: what the content of a full block is, namely its tokens and everything before them.

Owns the chained digest. Where a block with that content lies is `prefix_cache.py`'s business.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

HashBytes = Callable[[bytes], bytes]

# (tag, value) pairs. The tag keeps kinds apart: an adapter named like a salt is not that salt.
ExtraKeys = tuple[tuple[str, str], ...]


def sha256_digest(data: bytes) -> bytes:
    """The sha256 of `data`, 32 bytes."""
    return hashlib.sha256(data).digest()


@dataclass(slots=True, eq=False)
class BlockKey:
    """The identity of one full block's keys and values.

    Attributes:
        digest: Over KV identity, extra keys and all tokens up to the block's end.
        token_ids: The block's own tokens.
        extra_keys: What else decides the content; equal along a chain.
        parent: Of the block before; None for the first one.
    """

    digest: bytes
    token_ids: tuple[int, ...]
    extra_keys: ExtraKeys
    parent: BlockKey | None


def make_extra_keys(cache_salt: str, adapter_name: str = "", adapter_hash: str = "") -> ExtraKeys:
    """The tagged keys of a request, those that are set."""
    tagged = (("salt", cache_salt), ("adapter", adapter_name), ("adapter-hash", adapter_hash))
    return tuple((tag, value) for tag, value in tagged if value)


def root_digest(kv_identity: str, extra_keys: ExtraKeys, hash_bytes: HashBytes) -> bytes:
    """The digest that the first block of a chain builds on."""
    # JSON keeps the borders of the strings, which plain joining would lose.
    return hash_bytes(json.dumps([kv_identity, extra_keys]).encode())


def chain_digest(parent: bytes, token_ids: Sequence[int], hash_bytes: HashBytes) -> bytes:
    """The digest of a block whose predecessor's digest is `parent`."""
    return hash_bytes(parent + array("q", token_ids).tobytes())


def same_content(one: BlockKey | None, other: BlockKey | None) -> bool:
    """Whether two keys stand for equal content, by tokens and extra keys, not by digest.

    Fast when the chains share their keys; else the time grows with the chain.
    """
    while one is not other:
        if one is None or other is None:
            return False
        if one.token_ids != other.token_ids or one.extra_keys != other.extra_keys:
            return False
        one, other = one.parent, other.parent
    return True
