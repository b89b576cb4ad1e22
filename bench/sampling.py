"""What sampling costs for each step, at a large vocabulary, against the naive way.

`python -m bench.sampling`. The naive way is a full softmax, a full sort and a running sum for each
row. Medians over rounds, and the least, which on a busy machine says more; logits are made once,
so they lie in memory as a device left them.

What was tried, each measured on one row of 151,936 float32 (two cores of a Xeon with AVX-512,
busy with other work, best of many runs):

- A full sort of the weights: 15 to 40 ms. Sorting only what is above a cut, in steps: 0.3 ms when
  peaked, 6 ms and more when flat. Dropped: draw from the whole row and refuse what top_p would not
  have kept, which needs the mass above one weight and no order.
- `np.partition` of the row for top_k: 0.15 to 1 ms. The k-th best of 1,024 stripes' maxima bounds
  the k-th best score from below and takes 0.03 ms; few scores pass it.
- Maxima of blocks that lie together (`reshape(-1, 128).max(axis=1)`): 0.3 ms, since NumPy reduces
  short rows slowly; stripes (`axis=0`) are vectorised: 0.02 ms.
- Masses above a weight: `weights[mask].sum()` and `sum(where=mask)` take 1 ms when half of the row
  passes; the mask as float32 and `einsum` 0.05 ms.
- Fresh arrays for each row: up to 0.3 ms in page faults; the thread's workspace has none.
- A second thread halves a step on idle cores and doubles it on busy ones, so warm-up times both.
- exp of the row is 0.07 ms and the floor of every way that needs the total mass.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from omruntime.manifest import SamplingDefaults
from omruntime.sampling.native_rows import open_native_rows
from omruntime.sampling.sampler import Sampler
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request, Sequence

VOCAB_SIZE = 151_936
NUM_ROWS = 32

WORKLOADS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 0.8, top_p 0.9": SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    "temperature 1.0, top_k 50, top_p 0.95": SamplingParams(
        temperature=1.0, top_k=50, top_p=0.95, seed=1
    ),
    "temperature 1.0": SamplingParams(temperature=1.0, seed=1),
    "greedy, penalties": SamplingParams(
        temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5
    ),
    "greedy, logprobs 5": SamplingParams(temperature=0.0, logprobs=5),
}


def model_like_logits(spread: float, seed: int = 0) -> NDArray[np.float32]:
    """A bulk of normal scores and some favourites, as language models give.

    Args:
        spread: Of the bulk; 1.5 is peaked once the favourites are on top, 3 is flat.
    """
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((NUM_ROWS, VOCAB_SIZE)) * spread).astype(np.float32)
    for row in logits:
        favourites = rng.integers(0, VOCAB_SIZE, 40)
        row[favourites] += np.linspace(14.0, 6.0, 40, dtype=np.float32)
    return logits


def naive(logits: NDArray[np.float32], params: SamplingParams, number: float) -> list[int]:
    """One row after the other by the book."""
    token_ids = []
    for row in logits:
        if params.temperature == 0.0:
            token_ids.append(int(np.argmax(row)))
            continue
        assert params.temperature is not None
        assert params.top_p is not None
        scaled = row / np.float32(params.temperature)
        weights = np.exp(scaled - scaled.max())
        shares = weights / weights.sum()
        order = np.argsort(-shares, kind="stable")
        mass = np.cumsum(shares[order], dtype=np.float64)
        kept = order[: np.searchsorted(mass, params.top_p) + 1]
        within = np.cumsum(shares[kept], dtype=np.float64)
        token_ids.append(int(kept[np.searchsorted(within, number * within[-1], side="right")]))
    return token_ids


def median_and_least_ms(call: Callable[[], object], num_rounds: int) -> tuple[float, float]:
    """Both times of a call in milliseconds."""
    call()
    seconds = []
    for _ in range(num_rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3, min(seconds) * 1e3


def sequences_of(params: SamplingParams, num_prompt: int = 200) -> list[Sequence]:
    """One sequence for each row, with some history for the penalties."""
    resolved = params.resolve(SamplingDefaults())
    sequences = []
    for row in range(NUM_ROWS):
        prompt = tuple(range(row, row + num_prompt))
        sequence = Sequence.of(Request(f"r{row}", prompt, resolved), row)
        sequence.token_ids += range(1000, 1100)
        sequences.append(sequence)
    return sequences


def main() -> None:
    """Print one line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--spread", type=float, default=1.5)
    parser.add_argument("--numpy", action="store_true", help="without the native kernels")
    arguments = parser.parse_args()
    logits = model_like_logits(arguments.spread)
    native = None if arguments.numpy else open_native_rows()
    sampler = Sampler(VOCAB_SIZE, [2], native)
    sampler.warm_up()
    print(
        f"{NUM_ROWS} rows of {VOCAB_SIZE} float32, spread {arguments.spread}, "
        f"{'NumPy' if native is None else 'native kernels'}, "
        f"{sampler.num_threads} threads, load of the machine {os.getloadavg()[0]:.1f}; ms"
    )
    for name, params in WORKLOADS.items():
        sequences = sequences_of(params)
        call = partial(sampler.sample, logits, sequences)
        ours, least = median_and_least_ms(call, arguments.rounds)
        line = f"{name:40} median {ours:8.2f}   least {least:8.2f}"
        if params.top_k is None and params.logprobs is None and not params.presence_penalty:
            resolved = params.resolve(SamplingDefaults())
            theirs, _ = median_and_least_ms(partial(naive, logits, resolved, 0.3), 3)
            line += f"   naive {theirs:8.2f}"
        print(line)


if __name__ == "__main__":
    main()
