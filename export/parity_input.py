"""What the parity gate runs over for one checkpoint: its prompts and its long sequence."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerFast

from export.parity import ParityInput
from export.step_shape import StepShape
from export.tokenizer_files import named_templates
from omruntime.buckets import BucketTable

_PROMPTS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain how a CPU cache works in simple terms.",
)
_SEED = 11


def parity_input(
    tokenizer: PreTrainedTokenizerFast, shape: StepShape, table: BucketTable, max_model_len: int
) -> ParityInput:
    """Prompts in the checkpoint's own manner, and a sequence as long as the buckets allow."""
    prompts = parity_prompts(tokenizer, shape.vocab_size, max_model_len)
    return ParityInput(
        shape=shape,
        table=table,
        token_ids=_parity_sequence(prompts, shape.vocab_size, max_model_len),
        prompts=prompts,
    )


def parity_prompts(
    tokenizer: PreTrainedTokenizerFast, vocab_size: int, max_model_len: int
) -> tuple[tuple[int, ...], ...]:
    """Prompts for the greedy answers, as conversations where there is a template for them."""
    half = max(1, max_model_len // 2)
    prompts = []
    for text in _PROMPTS:
        encoded = tokenizer(_as_chat(tokenizer, text))["input_ids"]
        token_ids = tuple(int(i) for i in encoded if i < vocab_size)[:half]
        prompts.append(token_ids or (0,))
    return tuple(prompts)


def _as_chat(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    if "default" not in named_templates(tokenizer):
        return text
    try:
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
    # A template may refuse any conversation in its own words; the plain text does as well.
    except Exception:
        return text
    return str(rendered)


def _parity_sequence(
    prompts: tuple[tuple[int, ...], ...], vocab_size: int, length: int
) -> tuple[int, ...]:
    """The prompts, then seeded random ids, `length` in all."""
    rng = np.random.default_rng(_SEED)
    spoken = [token_id for prompt in prompts for token_id in prompt]
    filler = rng.integers(0, vocab_size, length).tolist()
    return tuple((spoken[: length // 2] + filler)[:length])
