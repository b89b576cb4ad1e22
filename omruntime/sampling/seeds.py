"""Seeds and the uniform numbers drawn from them; no state anywhere.

A number is a pure function of seed and position in the answer, so a request that is preempted,
batched otherwise or sent again draws the same tokens.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets

from omruntime.sampling_params import MAX_SEED, SamplingParams

# A float64 holds 53 bits, so every uniform number is exact and below 1.
_UNIFORM_BITS = 53
# Positions are far below, so position and attempt make one number.
_POSITION_BITS = 48


def with_seed(params: SamplingParams) -> SamplingParams:
    """The params themselves when they have a seed, else a copy with a random one."""
    if params.seed is not None:
        return params
    return dataclasses.replace(params, seed=secrets.randbelow(MAX_SEED + 1))


def seed_of_choice(seed: int, index: int) -> int:
    """The seed of answer `index` of `n`: the seed itself for answer 0, else one derived from it."""
    if index == 0:
        return seed
    return _hash64(b"choice", seed, index) & MAX_SEED


def params_of_choice(params: SamplingParams, index: int) -> SamplingParams:
    """The params of answer `index` of `n`: one answer with a seed of its own.

    The prompt is the same for all, so it is scored with the first alone.
    """
    assert params.seed is not None, "the params need a seed, see with_seed"
    prompt_logprobs = None if index else params.prompt_logprobs
    seed = seed_of_choice(params.seed, index)
    return dataclasses.replace(params, n=1, seed=seed, prompt_logprobs=prompt_logprobs)


def uniform(seed: int, position: int, attempt: int = 0) -> float:
    """A number in [0, 1) for the answer's token at `position`, both counted from 0."""
    counter = attempt << _POSITION_BITS | position
    return (_hash64(b"draw", seed, counter) >> (64 - _UNIFORM_BITS)) / (1 << _UNIFORM_BITS)


def _hash64(purpose: bytes, seed: int, counter: int) -> int:
    message = seed.to_bytes(8, "little") + counter.to_bytes(8, "little")
    digest = hashlib.blake2b(message, digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "little")
