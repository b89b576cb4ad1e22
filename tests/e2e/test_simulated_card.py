"""SmolLM2 on the simulated card: exported for Ascend310P3, compiled by simatc, served by om-serve.

A simulation: it shows that the whole path agrees with the vendor's documents, not what a card
computes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from omruntime.manifest import Manifest
from omruntime.sampling_params import SamplingParams
from server.client import Client
from tests.conftest import CACHE, built
from tests.e2e.float16_reference import float16_answers
from tests.e2e.hf_reference import Reference
from tests.e2e.server_child import ServerChild

# Behind 32 tokens each answer has more blocks than it was admitted with, so some are preempted.
NUM_NEW_TOKENS = 64 if "SOAK_FACTOR" in os.environ else 32
# In float16 a logit between 16 and 32 moves in steps of 1/64, and the order of a sum, which other
# chunks and other company change, moves it by a step or two. In the answers to these prompts every
# token leads the next best by more. A deterministic server sums in one order, so its prompts need
# no choice.
LEAST_GAP = 3 / 64
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=NUM_NEW_TOKENS, ignore_eos=True)
PROMPTS = (
    "Translate to French: the cat sleeps on the roof. Explain step by step.",
    "What should I think about when I buy a used bicycle to ride to work every day, about eight "
    "kilometres each way, in all weather, without spending much? Tell me in detail.",
    "Question: Give me a recipe for pancakes for four people, with amounts in grams.\nAnswer:",
    "What is the difference between a list and a tuple in Python? Tell me in detail.",
    "Name three fruits. Explain step by step.",
    "Question: What is a prime number?\nAnswer:",
    "Tell me a story about a lighthouse keeper who has lost his lamp. Tell me in detail.",
    "Question: List the planets of the solar system in order of their distance from the sun.\n"
    "Answer:",
    "Question: How do vaccines work?\nAnswer:",
    "What is 12 times 12? Answer at length.",
    "Summarise the plot of Romeo and Juliet. Answer at length.",
    "Who wrote Hamlet? Tell me in detail.",
    "Question: Summarise the plot of Romeo and Juliet.\nAnswer:",
    "What is the difference between a list and a tuple in Python? Answer at length.",
    "How do vaccines work? Answer at length.",
    "Give me a recipe for pancakes for four people, with amounts in grams. Explain step by step.",
)
# Small blocks and few of them: all prompts are admitted, and their answers outgrow the pool.
GEARS = {
    "block_size": 8,
    "num_blocks": 80,
    "buckets": [
        {"phase": "decode", "batch": 16, "tokens": 1, "past_blocks": 16},
        {"phase": "prefill", "batch": 1, "tokens": 32, "past_blocks": 4},
        {"phase": "prefill", "batch": 1, "tokens": 64, "past_blocks": 16},
    ],
}


@pytest.fixture(scope="module")
def bundle(smollm2_gguf: Path) -> Path:
    """The simulated bundle, with its graph kept for the reference."""
    CACHE.mkdir(parents=True, exist_ok=True)
    gears = CACHE / "smollm2-sim.gears.json"
    gears.write_text(json.dumps(GEARS))
    limits = ("--max-model-len", "128", "--max-num-seqs", str(len(PROMPTS)))
    compiled = ("--target", "Ascend310P3", "--atc", "simatc", "--no-cache", "--keep-onnx")
    options = (*limits, *compiled, "--buckets", str(gears), "--name", "smollm2-sim")
    return built(smollm2_gguf, "smollm2-sim", options)


@pytest.mark.timeout(900)
@pytest.mark.skipif("SOAK_FACTOR" not in os.environ, reason="half a minute more: make soak runs it")
def test_sixteen_answers_equal_the_float16_graph_under_preemption(
    bundle: Path, tmp_path: Path
) -> None:
    with _simulated_card(bundle, tmp_path) as child:
        with Client(child.target) as client:
            prompts = [tuple(client.tokenize(prompt)) for prompt in PROMPTS]
        answers = _answers_under_preemption(child, prompts)
    references = float16_answers(bundle, prompts, NUM_NEW_TOKENS)
    assert min(min(reference.gaps) for reference in references) >= LEAST_GAP
    assert answers == [reference.token_ids for reference in references]


@pytest.mark.timeout(900)
def test_deterministic_answers_to_any_prompts_equal_the_float16_graph_under_preemption(
    bundle: Path, tmp_path: Path, smollm2_references: list[Reference]
) -> None:
    prompts = [reference.prompt for reference in smollm2_references[: len(PROMPTS)]]
    with _simulated_card(bundle, tmp_path, "--deterministic") as child:
        answers = _answers_under_preemption(child, prompts)
    references = float16_answers(bundle, prompts, NUM_NEW_TOKENS)
    assert min(min(reference.gaps) for reference in references) < LEAST_GAP
    assert answers == [reference.token_ids for reference in references]


@contextmanager
def _simulated_card(bundle: Path, folder: Path, *options: str) -> Iterator[ServerChild]:
    """`om-serve` over the bundle; at the end nothing is left on the card."""
    child = ServerChild(bundle, folder, ["--device", "sim:0", *options])
    with child.running():
        yield child
    log = child.log.read_text()
    assert "SIMULAT" in log
    assert "leak" not in log


def _answers_under_preemption(
    child: ServerChild, prompts: list[tuple[int, ...]]
) -> list[list[int]]:
    """The greedy answers to all prompts at once."""

    def ask(prompt: tuple[int, ...]) -> list[int]:
        with Client(child.target) as own:
            return list(own.generate(prompt, GREEDY).answers[0].token_ids)

    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(ask, prompts))
    with Client(child.target) as client:
        assert client.server_info().is_simulated
        load = client.load()
    assert load.num_preemptions > 0
    assert load.num_referenced_blocks == 0
    return answers


def test_the_bundle_says_that_it_is_simulated(bundle: Path) -> None:
    assert Manifest.read(bundle).provenance["simulated"] == "true"
