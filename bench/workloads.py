"""Five closed-loop workloads over a model's own tokens: W1 to W5.

Prompts are disjoint slices of the text of CPython's help topics, cut to exact numbers of tokens.
Only W4's shared beginning can hit a prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from tokenizers import Tokenizer

_SEED = 20261129
_SHARED = 256


@dataclass(frozen=True, slots=True)
class SizedWorkload:
    """Prompts with the number of tokens each answer has; greedy, end tokens not heeded."""

    name: str
    concurrency: int
    prompts: tuple[tuple[int, ...], ...]
    num_new_tokens: tuple[int, ...]


def make_rounds(bundle: Path, share: float = 1.0) -> Iterator[list[SizedWorkload]]:
    """The five workloads in the tokens of a bundle, again and again, never over the same text.

    Args:
        share: Of each workload's requests, for a quick look; at least one for each row.
    """
    text = "\n\n".join(topics[name] for name in sorted(topics))
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer" / "tokenizer.json"))
    tokens = iter(tokenizer.encode(text, add_special_tokens=False).ids)
    rng = np.random.default_rng(_SEED)
    while True:
        yield _one_round(tokens, rng, share)


def _one_round(
    tokens: Iterator[int], rng: np.random.Generator, share: float
) -> list[SizedWorkload]:
    def count(requests: int, rows: int) -> int:
        return max(rows, round(requests * share))

    num_mixed = count(96, 32)
    lengths, answers = rng.integers(64, 257, num_mixed), rng.integers(32, 129, num_mixed)
    mixed = [(int(a), int(b)) for a, b in zip(lengths, answers, strict=True)]
    shared = _take(tokens, _SHARED)
    return [
        _equal("W1", 1, tokens, [(128, 128)] * count(8, 1)),
        _equal("W2", 8, tokens, [(128, 128)] * count(32, 8)),
        _equal("W3", 32, tokens, mixed),
        _equal("W4", 8, tokens, [(32, 32)] * count(32, 8), shared),
        _equal("W5", 1, tokens, [(1024, 64)]),
    ]


def _equal(
    name: str,
    concurrency: int,
    tokens: Iterator[int],
    sizes: list[tuple[int, int]],
    shared: tuple[int, ...] = (),
) -> SizedWorkload:
    prompts = tuple(shared + _take(tokens, length) for length, _ in sizes)
    return SizedWorkload(name, concurrency, prompts, tuple(new for _, new in sizes))


def _take(tokens: Iterator[int], length: int) -> tuple[int, ...]:
    taken = tuple(token for token, _ in zip(tokens, range(length), strict=False))
    assert len(taken) == length, "the text is long enough for every workload"
    return taken
