"""Paged attention against its definition in NumPy, over scrambled blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.omruntime.native.kernels import from_bfloat16, needs_library, run_kernel, to_bfloat16

pytestmark = needs_library


@dataclass(frozen=True)
class Sizes:
    tokens: int
    kv_heads: int
    group: int
    dim: int
    past_lens: tuple[int, ...]
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    is_bfloat16: bool = False


def visible(sizes: Sizes, past: int, num_past: int) -> NDArray[np.bool_]:
    """Which of [cached, new] positions each new token sees: [tokens, num_past + tokens]."""
    cached, new = np.arange(num_past), np.arange(sizes.tokens)
    token = new[:, None]
    window = sizes.window or 10**9
    sees_cached = (cached < past) & (past + token - cached < window)
    sees_new = (token >= new) & (token - new < window)
    return np.concatenate([sees_cached, sees_new], axis=1)


def attend(sizes: Sizes) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """The kernel's result and the right one, [batch, tokens, heads, dim] each."""
    s, rng = sizes, np.random.default_rng(0)
    batch, heads = len(s.past_lens), s.kv_heads * s.group
    num_blocks = max(1, -(-max(s.past_lens) // s.block_size))
    tables = rng.permutation(np.arange(1, batch * num_blocks + 1)).reshape(batch, num_blocks)
    pools = rng.standard_normal(
        (2, s.kv_heads, batch * num_blocks + 1, s.block_size, s.dim)
    ).astype(np.float32)
    pools = from_bfloat16(to_bfloat16(pools)) if s.is_bfloat16 else pools
    # As the halves of a joined product, so that tokens lie apart.
    joined = rng.standard_normal((batch, s.tokens, heads + 2 * s.kv_heads, s.dim))
    joined = joined.astype(np.float32).transpose(0, 2, 1, 3)
    q, key, value = np.split(joined, [heads, heads + s.kv_heads], axis=1)
    past_lens = np.array(s.past_lens, np.int32)
    positions = (past_lens[:, None] + np.arange(s.tokens)).astype(np.int32)
    y = np.full((batch, s.tokens, heads, s.dim), np.nan, np.float32)
    stored = to_bfloat16(pools) if s.is_bfloat16 else pools
    operands = [q, key, value, *stored, tables.astype(np.int32), past_lens, positions, y]
    run_kernel("attention", operands, [s.dim**-0.5, s.window, s.softcap])

    wanted = np.empty(y.shape)
    for row, past in enumerate(s.past_lens):
        # [kv_heads, blocks, block_size, dim] -> [kv_heads, cached, dim]
        cached = pools[:, :, tables[row]].reshape(2, s.kv_heads, -1, s.dim)
        keys = np.concatenate([cached[0], key[row]], axis=1).astype(np.float64)
        values = np.concatenate([cached[1], value[row]], axis=1).astype(np.float64)
        hidden = ~visible(s, past, cached.shape[2])
        for head in range(heads):
            scores = q[row, head] @ keys[head // s.group].T * s.dim**-0.5
            scores = s.softcap * np.tanh(scores / s.softcap) if s.softcap else scores
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            wanted[row, :, head] = weights @ values[head // s.group]
    return y, wanted


def check(sizes: Sizes) -> None:
    got, wanted = attend(sizes)
    np.testing.assert_allclose(got, wanted, atol=3e-6)


@given(
    tokens=st.integers(1, 3) | st.integers(4, 70),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    dim=st.sampled_from([16, 24, 32, 64, 80, 128]),
    past_lens=st.lists(st.integers(0, 150), min_size=1, max_size=4).map(tuple),
    block_size=st.sampled_from([1, 4, 16, 128]),
    window=st.sampled_from([0, 1, 7, 40]),
    softcap=st.sampled_from([0.0, 2.0]),
    is_bfloat16=st.booleans(),
)
@settings(max_examples=60)
def test_attention_is_its_definition(**sizes: object) -> None:
    check(Sizes(**sizes))  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [1, 256])
def test_a_long_past_and_odd_groups(tokens: int) -> None:
    check(Sizes(tokens, 3, 3, 64, (777, 0, 16)))


def test_a_large_score_late_takes_over() -> None:
    """Sums of smaller scores are scaled down to nothing, not lost and not kept."""
    keys = np.zeros((1, 9, 16, 8), np.float32)
    values = np.ones((1, 9, 16, 8), np.float32)
    keys[0, 8, 3], values[0, 8, 3] = 100, 5
    q = np.ones((1, 1, 1, 8), np.float32)
    new, y = np.zeros((1, 1, 1, 8), np.float32), np.empty((1, 1, 1, 8), np.float32)
    tables, lens = np.arange(9, dtype=np.int32)[None], np.array([144], np.int32)
    run_kernel("attention", [q, new, new, keys, values, tables, lens, lens[None], y], [1, 0, 0])
    np.testing.assert_allclose(y, 5, rtol=1e-6)


@pytest.mark.parametrize("tokens", [1, 12])
@pytest.mark.parametrize("part", ["keys", "values"])
def test_what_is_no_number_in_the_cache_comes_out(tokens: int, part: str) -> None:
    parts = {name: np.ones((1, 9, 16, 8), np.float32) for name in ("keys", "values")}
    parts[part][0, 4, 5] = np.nan
    q = np.ones((1, 1, tokens, 8), np.float32)
    y = np.empty((1, tokens, 1, 8), np.float32)
    tables, lens = np.arange(9, dtype=np.int32)[None], np.array([144], np.int32)
    positions = 144 + np.arange(tokens, dtype=np.int32)[None]
    operands = [q, q, q, parts["keys"], parts["values"], tables, lens, positions, y]
    run_kernel("attention", operands, [1, 0, 0])
    assert np.isnan(y).all()
