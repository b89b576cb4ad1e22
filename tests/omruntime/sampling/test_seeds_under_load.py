"""BL-28: a seeded request gets its tokens whatever else runs, through the whole engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omruntime.engine import Engine
from omruntime.sampling.seeds import seed_of_choice
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import Request
from tests.omruntime.test_engine import GREEDY, open_engine, prompts, run_to_end

PROMPT = prompts(10)[8]
# Hot enough that the toy's favourite token is one among others.
SEEDED = SamplingParams(
    temperature=6.0, top_p=0.95, top_k=0, min_p=0.0, repetition_penalty=1.1, seed=42,
    max_new_tokens=16, ignore_eos=True,
)  # fmt: skip
UNSEEDED = [replace(SEEDED, seed=1000 + i) for i in range(15)]


def company(engine: Engine, count: int) -> None:
    for i, prompt in enumerate(prompts(count)):
        engine.add(Request(f"other{i}", prompt, UNSEEDED[i % 15] if i % 2 else GREEDY))


def answer_among(bundle: Path, num_others: int, **settings: int | bool) -> tuple[int, ...]:
    with open_engine(bundle, **settings) as engine:
        company(engine, num_others // 2)
        engine.add(Request("r", PROMPT, SEEDED))
        if settings.get("num_blocks") is None:
            engine.step()  # the others come while it runs, so that its bucket changes
        company_after = prompts(num_others - num_others // 2, seed=8)
        for i, prompt in enumerate(company_after):
            engine.add(Request(f"later{i}", prompt, UNSEEDED[i % 15]))
        answers = run_to_end(engine)
        assert engine.load().num_preemptions > 0 or settings.get("num_blocks") is None
    return answers["r"].token_ids


@pytest.fixture(scope="module")
def alone(toy_bundle: Path) -> tuple[int, ...]:
    return answer_among(toy_bundle, 0)


@pytest.mark.parametrize(
    ("num_others", "settings"),
    [
        (1, {}),
        (15, {}),
        (15, {"num_blocks": 30}),  # preempted
        (15, {"max_num_seqs": 3}),
        (15, {"max_chunk_tokens": 3}),
        (15, {"enable_prefix_cache": False}),
        (15, {"deterministic": True}),
    ],
)
def test_company_does_not_change_a_seeded_answer(
    toy_bundle: Path, alone: tuple[int, ...], num_others: int, settings: dict[str, int]
) -> None:
    assert len(set(alone)) > 3, "an answer that is not drawn proves nothing"
    assert answer_among(toy_bundle, num_others, **settings) == alone


def test_the_first_of_several_answers_is_that_of_the_seed(
    toy_bundle: Path, alone: tuple[int, ...]
) -> None:
    with open_engine(toy_bundle) as engine:
        for index in range(3):
            params = replace(SEEDED, seed=seed_of_choice(42, index))
            leader_id = "r0" if index else None
            engine.add(Request(f"r{index}", PROMPT, params, leader_id=leader_id))
        answers = run_to_end(engine)
    assert answers["r0"].token_ids == alone
    assert len({answers[f"r{i}"].token_ids for i in range(3)}) == 3
