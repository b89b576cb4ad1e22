"""What Hugging Face answers: the reference of the end-to-end tests, made without our exporter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from export.gguf_once import parse_gguf_once

NUM_NEW_TOKENS = 64
# Two tokens whose logits are closer than this may change places with the order of a sum.
NEAR_TIE = 1e-4

QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain how a CPU cache works in simple terms.",
    "Name three fruits.",
    "What is 12 times 12?",
    "Who wrote Hamlet?",
    "Why is the sky blue? Answer in two sentences, for a child of seven.",
    "Give me a recipe for pancakes for four people, with amounts in grams.",
    "Translate to French: the cat sleeps on the roof.",
    "List the planets of the solar system in order of their distance from the sun.",
    "How do vaccines work?",
    "Tell me a story about a lighthouse keeper who has lost his lamp.",
    "What is the difference between a list and a tuple in Python?",
    "Summarise the plot of Romeo and Juliet.",
    "Why do leaves change their colour in autumn?",
    "Write an email to my landlord that asks for a repair of the heating.",
    "Count from one to ten.",
    "What should I think about when I buy a used bicycle to ride to work every day, about "
    "eight kilometres each way, in all weather, without spending much?",
    "Say hello in five languages.",
    "What is a prime number?",
)


@dataclass(frozen=True, slots=True)
class Reference:
    """One greedy answer of HF.

    Attributes:
        token_ids: With the end token, if it came.
        gaps: For each step, by how much the best logit beats the second best.
    """

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]


def load_hf(checkpoint: Path) -> tuple[AutoModelForCausalLM, AutoTokenizer]:
    """Model (float32, evaluation mode) and tokenizer of a GGUF file."""
    folder, name = str(checkpoint.parent), checkpoint.name
    with parse_gguf_once():
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        return model.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=name)


def chat_references(checkpoint: Path) -> list[Reference]:
    """HF's greedy answers to all questions, each as if generated alone.

    They are guessed together, which takes a tenth of the time, and confirmed one by one.
    """
    model, tokenizer = load_hf(checkpoint)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )["input_ids"]
        for question in QUESTIONS
    ]
    guesses = guess_together(model, prompts)
    return [
        confirmed(model, prompt, guess) or greedy(model, prompt)
        for prompt, guess in zip(prompts, guesses, strict=True)
    ]


def guess_together(
    model: AutoModelForCausalLM, prompts: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """HF's greedy answers in one padded batch, each up to its end token."""
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    real = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        padded,
        attention_mask=real,
        do_sample=False,
        max_new_tokens=NUM_NEW_TOKENS,
        pad_token_id=0,
    )
    eos = model.generation_config.eos_token_id
    answers = output[:, longest:].tolist()
    return [tuple(a[: a.index(eos) + 1] if eos in a else a) for a in answers]


def confirmed(
    model: AutoModelForCausalLM, prompt: Sequence[int], guess: tuple[int, ...]
) -> Reference | None:
    """The guess, if each of its tokens is the best behind all before it, the prompt being alone."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *guess]])).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2)
    if best.indices[:, 0].tolist() != list(guess):
        return None
    gaps = best.values[:, 0] - best.values[:, 1]
    return Reference(tuple(prompt), guess, tuple(gaps.tolist()))


def greedy(model: AutoModelForCausalLM, prompt: Sequence[int]) -> Reference:
    """HF's greedy continuation of one prompt."""
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=NUM_NEW_TOKENS,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(output.logits).topk(2).values
    return Reference(
        tuple(prompt),
        tuple(output.sequences[0, len(prompt) :].tolist()),
        tuple((best[:, 0] - best[:, 1]).tolist()),
    )


def require_equal(got: Sequence[int], reference: Reference) -> bool:
    """Assert that an answer equals HF's, or leaves it at a near tie; returns which.

    Returns:
        True when every token is equal.
    """
    wanted = reference.token_ids
    for i, (ours, theirs) in enumerate(zip(got, wanted, strict=False)):
        if ours != theirs:
            assert reference.gaps[i] < NEAR_TIE, (
                f"token {i} is {ours}, HF's is {theirs} with a lead of {reference.gaps[i]:.2e}"
            )
            return False
    assert len(got) == len(wanted), f"{len(got)} tokens, HF gives {len(wanted)}"
    return True
