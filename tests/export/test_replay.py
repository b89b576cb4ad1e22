"""Replay over a model in NumPy that attends to what the pool holds, so every slot matters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from export.reference import ReferenceCase, record_case
from export.replay import ReplayReport, replay_cases
from omruntime.buckets import Bucket, Phase
from omruntime.errors import BundleError
from omruntime.manifest import (
    KVLayout,
    KVSpec,
    Manifest,
    ModelFacts,
    ParitySummary,
    ProgramSpec,
    SamplingDefaults,
)

VOCAB, BLOCK, NUM_KV_HEADS, HEAD_DIM = 13, 4, 2, 3
Tensors = dict[str, np.ndarray]
BUCKETS = (
    Bucket(Phase.DECODE, 2, 1, 4),
    Bucket(Phase.DECODE, 2, 1, 16),
    Bucket(Phase.PREFILL, 1, 8, 1),
    Bucket(Phase.PREFILL, 2, 32, 16),
)
EMBEDDING = np.random.default_rng(1).normal(size=(VOCAB, NUM_KV_HEADS, HEAD_DIM))
PROMPTS = ((1, 2, 3), tuple(range(13)) * 3, (7,) * 9)
NUM_STEPS = 12


def history_logits(token_ids: list[int]) -> np.ndarray:
    """A function of every token and its position."""
    weights = np.cos(np.arange(len(token_ids)) + 1.0)
    summed = (EMBEDDING[token_ids] * weights[:, None, None]).sum(axis=0)
    return np.asarray((EMBEDDING * summed).sum(axis=(1, 2)), np.float32)


def reference() -> tuple[ReferenceCase, ...]:
    cases = []
    for prompt in PROMPTS:
        token_ids, rows = list(prompt), []
        for _ in range(NUM_STEPS):
            rows.append(history_logits(token_ids))
            token_ids.append(int(rows[-1].argmax()))
        cases.append(record_case(prompt, np.stack(rows)))
    return tuple(cases)


class Session:
    """The same function as a step program: the past comes out of the pool alone.

    `change` is applied to the inputs first, as a wrong program might read them.
    """

    def __init__(
        self,
        change: Callable[[Tensors], Tensors] = lambda inputs: inputs,
        factor: float = 1.0,
    ) -> None:
        self.change = change
        self.factor = np.float32(factor)

    def run(self, names: list[str], inputs: Tensors) -> list[np.ndarray]:
        assert names == ["logits", "new_kv"]
        logits, new_kv = run_paged(self.change(inputs))
        return [logits * self.factor, new_kv]


def run_paged(inputs: Tensors) -> tuple[np.ndarray, np.ndarray]:
    input_ids, tables = inputs["input_ids"], inputs["block_tables"]
    batch = len(input_ids)
    past = np.arange(tables.shape[1] * BLOCK)
    logits = np.zeros((batch, VOCAB), np.float32)
    for row in range(batch):
        last = inputs["last_index"][row]
        summed = np.zeros((NUM_KV_HEADS, HEAD_DIM))
        for position in past[: inputs["past_lens"][row]]:
            block = tables[row, position // BLOCK]
            key = inputs["kv_pool.0.key"][:, block, position % BLOCK]
            value = inputs["kv_pool.0.value"][:, block, position % BLOCK]
            np.testing.assert_allclose(value, -key)
            summed += key * np.cos(position + 1.0)
        for i in range(last + 1):
            summed += EMBEDDING[input_ids[row, i]] * np.cos(inputs["positions"][row, i] + 1.0)
        logits[row] = (EMBEDDING * summed).sum(axis=(1, 2))
    keys = EMBEDDING[input_ids.reshape(-1)].transpose(1, 0, 2)
    return logits, np.concatenate([keys, -keys]).astype(np.float32)


def manifest() -> Manifest:
    return Manifest(
        format_version=1,
        graph_contract=1,
        profile="cpu",
        soc="cpu",
        kv_identity="",
        model=ModelFacts(
            name="m",
            architecture="A",
            num_layers=1,
            num_heads=2,
            num_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            vocab_size=VOCAB,
            max_model_len=64,
            max_num_seqs=2,
            dtype="float32",
            bos_token_id=None,
            eos_token_ids=(),
            eos_source="none",
            sampling_defaults=SamplingDefaults(),
        ),
        kv=KVSpec(KVLayout.HEAD_MAJOR, BLOCK, "float32", 192),
        programs=(ProgramSpec("step", "programs/step.onnx", (), (), BUCKETS),),
        files=(),
        parity=ParitySummary(0.0, 1e-4, 1, 0, 1),
        provenance={},
    )


def replay(
    cases: tuple[ReferenceCase, ...], session: Session | None = None, tolerance: float = 1e-4
) -> ReplayReport:
    parity = ParitySummary(0.0, tolerance, 1, 0, 1)
    found = dataclasses.replace(manifest(), parity=parity)
    return replay_cases(session or Session(), found, cases)  # type: ignore[arg-type]


def test_an_equal_program_passes() -> None:
    report = replay(reference())
    assert (report.num_tokens, report.num_near_ties) == (len(PROMPTS) * NUM_STEPS, 0)
    assert report.max_abs_logits_diff < 1e-5


def test_answers_of_different_length() -> None:
    first, second, third = reference()
    short = dataclasses.replace(
        second,
        greedy_ids=second.greedy_ids[:2],
        columns=second.columns[:2],
        logits=second.logits[:2],
    )
    assert replay((first, short, third)).num_tokens == 2 * NUM_STEPS + 2


@pytest.mark.parametrize("name", ["past_lens", "positions", "block_tables", "last_index"])
def test_a_program_that_ignores_an_input_is_found(name: str) -> None:
    session = Session(lambda inputs: inputs | {name: np.zeros_like(inputs[name])})
    with pytest.raises((BundleError, AssertionError)):
        replay(reference(), session)


def test_not_a_number_is_found() -> None:
    with pytest.raises(BundleError, match="differ by nan"):
        replay(reference(), Session(factor=float("nan")))


def test_logits_beyond_the_tolerance_are_found() -> None:
    with pytest.raises(BundleError, match=r"the tolerance is 0\.0001"):
        replay(reference(), Session(factor=1.01))


def first_step() -> tuple[ReferenceCase, np.ndarray]:
    """The first step of the first case, and its full row of logits."""
    full = history_logits(list(PROMPTS[0]))
    return record_case(PROMPTS[0], full[None]), full


def test_another_token_is_found() -> None:
    """The recorded logits fit; the recorded choice is another and no near tie."""
    case, _ = first_step()
    for other in (int(case.columns[0, 1]), VOCAB + 1):
        changed = dataclasses.replace(case, greedy_ids=(other,))
        with pytest.raises(BundleError, match="chose token"):
            replay((changed,))


def test_a_near_tie_is_counted() -> None:
    """Two logits closer than twice the tolerance may change places on another machine."""
    case, full = first_step()
    best, second = np.argsort(-full)[:2]
    gap = float(full[best] - full[second])
    swapped = full.copy()
    swapped[second] = full[best] + np.float32(gap / 10)
    swapped[best] = full[best] - np.float32(gap / 10)
    report = replay((record_case(case.prompt_ids, swapped[None]),), tolerance=1.2 * gap)
    assert (report.num_tokens, report.num_near_ties) == (1, 1)
