"""SmolLM2 on the simulated card: exported for Ascend310P3, compiled by simatc, served by om-serve.

A simulation: it shows that the whole path agrees with the vendor's documents, not what a card
computes.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omruntime.manifest import Manifest
from omruntime.sampling_params import SamplingParams
from server.client import Client
from server.text import TextDelta
from tests.conftest import CACHE, built
from tests.e2e.float16_reference import float16_answers
from tests.e2e.server_child import ServerChild

NUM_NEW_TOKENS = 64
# In float16 a logit between 16 and 32 moves in steps of 1/64, and the order of a sum, which other
# chunks and other company change, moves it by a step or two. In the answers to these prompts every
# token leads the next best by more.
LEAST_GAP = 3 / 64
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
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=NUM_NEW_TOKENS, ignore_eos=True)
# Small blocks and few of them, so that sixteen answers cannot all keep what they need.
GEARS = {
    "block_size": 32,
    "num_blocks": 24,
    "buckets": [
        {"phase": "decode", "batch": 16, "tokens": 1, "past_blocks": 4},
        {"phase": "prefill", "batch": 1, "tokens": 32, "past_blocks": 1},
        {"phase": "prefill", "batch": 1, "tokens": 64, "past_blocks": 4},
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
def test_sixteen_answers_equal_the_float16_graph_under_preemption(
    bundle: Path, tmp_path: Path
) -> None:
    child = ServerChild(bundle, tmp_path, ["--device", "sim:0"])
    with child.running():
        with Client(child.target) as client:
            assert client.server_info().is_simulated
            token_ids = [client.tokenize(prompt) for prompt in PROMPTS]

        def ask(prompt: str) -> TextDelta:
            with Client(child.target) as own:
                return own.generate(prompt, GREEDY).answers[0]

        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            answers = list(pool.map(ask, PROMPTS))
        with Client(child.target) as client:
            load = client.load()
    assert load.num_preemptions > 0
    assert load.num_referenced_blocks == 0
    log = child.log.read_text()
    assert "SIMULAT" in log
    assert "leak" not in log
    references = float16_answers(bundle, token_ids, NUM_NEW_TOKENS)
    for answer, reference in zip(answers, references, strict=True):
        assert min(reference.gaps) >= LEAST_GAP
        assert list(answer.token_ids) == reference.token_ids


def test_the_bundle_says_that_it_is_simulated(bundle: Path) -> None:
    assert Manifest.read(bundle).provenance["simulated"] == "true"
