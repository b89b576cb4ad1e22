"""Two blocks have one key only when everything that decides their content is equal."""

from __future__ import annotations

import pytest

from omruntime.blocks.block_key import (
    BlockKey,
    ExtraKeys,
    chain_digest,
    make_extra_keys,
    root_digest,
    same_content,
    sha256_digest,
)


def chain(*blocks: tuple[int, ...], identity: str = "model", keys: ExtraKeys = ()) -> BlockKey:
    digest, key = root_digest(identity, keys, sha256_digest), None
    for token_ids in blocks:
        digest = chain_digest(digest, token_ids, sha256_digest)
        key = BlockKey(digest, token_ids, keys, key)
    assert key is not None
    return key


BASE = chain((1, 2), (3, 4), keys=(("salt", "a"),))


def test_equal_chains_have_equal_digests_and_content() -> None:
    again = chain((1, 2), (3, 4), keys=(("salt", "a"),))
    assert again.digest == BASE.digest
    assert same_content(again, BASE)


@pytest.mark.parametrize(
    "other",
    [
        chain((1, 2), (3, 5), keys=(("salt", "a"),)),
        chain((1, 9), (3, 4), keys=(("salt", "a"),)),
        chain((3, 4), keys=(("salt", "a"),)),
        chain((1, 2), (3, 4), keys=(("salt", "b"),)),
        chain((1, 2), (3, 4)),
        # Another kind of key with the same value, as an adapter named like a salt.
        chain((1, 2), (3, 4), keys=(("adapter", "a"),)),
    ],
    ids=["tokens", "tokens before", "position", "salt", "no salt", "tag"],
)
def test_one_different_field_is_another_key(other: BlockKey) -> None:
    assert other.digest != BASE.digest
    assert not same_content(other, BASE)
    assert not same_content(BASE, other)


def test_another_kv_identity_is_another_digest() -> None:
    other = chain((1, 2), (3, 4), identity="model2", keys=(("salt", "a"),))
    assert other.digest != BASE.digest


def test_borders_between_strings_count() -> None:
    keys = [(("ab", "c"),), (("a", "bc"),), (("a", "b"), ("", "c")), (("a", "b"), ("c", ""))]
    digests = [root_digest("model", k, sha256_digest) for k in keys]
    digests.append(root_digest("modela", (("", "bc"),), sha256_digest))
    assert len(set(digests)) == len(digests)


def test_empty_salt_is_no_key() -> None:
    assert make_extra_keys("") == ()
    assert make_extra_keys("x") == (("salt", "x"),)
