"""The checkpoint itself as the reference: transformers in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TeacherForced:
    """One forward over a whole sequence.

    Attributes:
        logits: position to [vocabulary], for the positions asked for.
        kv: [layers, 2, num_kv_heads, positions, head_dim], keys after rotary.
    """

    logits: dict[int, Floats]
    kv: Floats


@dataclass(frozen=True, slots=True)
class GreedyRun:
    """A greedy continuation that heeds no end token.

    Attributes:
        logits: [tokens, vocabulary].
    """

    token_ids: tuple[int, ...]
    logits: Floats


def teacher_forced(
    model: PreTrainedModel, token_ids: Sequence[int], positions: Sequence[int]
) -> TeacherForced:
    """Run the whole sequence at once, as causality allows, and keep some positions' logits."""
    kept = sorted(set(positions))
    # Without a config the cache keeps every position, sliding windows or not.
    cache = DynamicCache()
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([list(token_ids)]),
            cache=cache,
            use_cache=True,
            logits_to_keep=torch.tensor(kept),
        ).logits[0]
    kv = torch.stack([torch.stack([layer.keys[0], layer.values[0]]) for layer in cache.layers])
    rows = logits.float().numpy()
    return TeacherForced(dict(zip(kept, rows, strict=True)), kv.float().numpy())


def greedy(model: PreTrainedModel, prompt_ids: Sequence[int], num_tokens: int) -> GreedyRun:
    """`generate` without sampling, penalties or end tokens.

    Where an end token would stop it, the tokens up to there are the same, so that one run serves
    every set of end tokens.
    """
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=num_tokens,
        use_cache=True,
        return_dict_in_generate=True,
        output_logits=True,
    )
    before, model.generation_config = model.generation_config, settings
    prompt = torch.tensor([list(prompt_ids)])
    try:
        with torch.no_grad():
            output = model.generate(prompt, attention_mask=torch.ones_like(prompt))
    finally:
        model.generation_config = before
    generated = output.sequences[0, len(prompt_ids) :].tolist()
    return GreedyRun(tuple(generated), torch.cat(output.logits).float().numpy())
