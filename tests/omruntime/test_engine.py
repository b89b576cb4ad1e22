"""The engine answers as the model does, whatever the scheduling; and it loses nothing."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from omruntime.blocks.block_pool import BlockState
from omruntime.buckets import Bucket
from omruntime.device import DeviceTensor, Program
from omruntime.device.cpu import CpuDevice
from omruntime.engine import KNOWN_WARM_UP_S, Engine
from omruntime.engine_state import MAX_LISTED_SEQUENCES
from omruntime.errors import (
    BundleError,
    DeviceError,
    NotBuiltInError,
    PromptTooLongError,
    StillRunningError,
)
from omruntime.manifest import ProgramSpec
from omruntime.outputs import TokenDelta
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import Adapter, FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.token_stream import merge
from tests.omruntime.toy_model import EOS_TOKEN_ID, VOCAB_SIZE, toy_answer

GREEDY = SamplingParams(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=0,
    max_new_tokens=20, ignore_eos=True,
)  # fmt: skip


@contextmanager
def open_engine(
    bundle: Path, device: CpuDevice | None = None, **settings: int | bool | Path
) -> Iterator[Engine]:
    engine = Engine(device or CpuDevice(1), bundle, EngineSettings(**settings))  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        engine.check()
        engine.close()


def run_to_end(engine: Engine) -> dict[str, TokenDelta]:
    """Step until idle, checking the invariants; every request's deltas merged."""
    answers: dict[str, TokenDelta] = {}
    while engine.has_work:
        for request_id, delta in engine.step():
            before = answers.get(request_id)
            assert before is None or before.finish_reason is None, "a delta after the last"
            answers[request_id] = delta if before is None else merge(before, delta)
        engine.check()
    assert engine.load().num_referenced_blocks == 0
    return answers


def prompts(count: int, seed: int = 7) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    lengths = [1, 3, 4, 5, 8, 15, 16, 17, 33, 40]
    return [
        tuple(draw.randrange(1, VOCAB_SIZE) for _ in range(lengths[i % len(lengths)]))
        for i in range(count)
    ]


SCHEDULES = {
    "plain": {},
    "smallest chunk": {"max_chunk_tokens": 2},
    "preempted": {"num_blocks": 18},
    "no prefix cache": {"enable_prefix_cache": False},
    "two rows": {"max_num_seqs": 2},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_answers_do_not_depend_on_the_schedule(toy_bundle: Path, name: str) -> None:
    with open_engine(toy_bundle, **SCHEDULES[name]) as engine:
        for i, prompt in enumerate(prompts(24)):
            engine.add(Request(f"r{i}", prompt, GREEDY))
        answers = run_to_end(engine)
        assert engine.load().num_preemptions > 0 or name != "preempted"
    for i, prompt in enumerate(prompts(24)):
        assert answers[f"r{i}"].token_ids == toy_answer(prompt, 20), i


@pytest.mark.parametrize("count", [1, 4, 5, 16, 17])
def test_arrivals_at_the_edges_of_buckets(toy_bundle: Path, count: int) -> None:
    """As many rows as a bucket has and one more; prompts that end with a chunk, block, past."""
    edges = [3, 4, 5, 15, 16, 17, 32, 33, 43]
    asked = [tuple(range(1, 1 + edges[i % len(edges)])) for i in range(count)]
    with open_engine(toy_bundle) as engine:
        for i, prompt in enumerate(asked):
            engine.add(Request(f"r{i}", prompt, GREEDY))
        answers = run_to_end(engine)
    assert [answers[f"r{i}"].token_ids for i in range(count)] == [toy_answer(p, 20) for p in asked]


def test_an_equal_prompt_hits_the_prefix_cache_and_answers_alike(toy_bundle: Path) -> None:
    prompt = prompts(10)[9]
    with open_engine(toy_bundle) as engine:
        engine.add(Request("cold", prompt, GREEDY))
        cold = run_to_end(engine)["cold"]
        engine.add(Request("warm", prompt, GREEDY))
        warm = run_to_end(engine)["warm"]
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 36)
    assert warm.token_ids == cold.token_ids == toy_answer(prompt, 20)


def test_siblings_share_blocks_and_copy_before_they_write(toy_bundle: Path) -> None:
    prompt = prompts(10)[7]  # 17 tokens: the fifth block is shared and partly filled
    sampled = SamplingParams(
        temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0,
        max_new_tokens=9, ignore_eos=True, allowed_token_ids=(5, 6, 7),
    )  # fmt: skip

    def answer(index: int, leader: str | None) -> Request:
        return Request(f"r{index}", prompt, replace(sampled, seed=index), leader_id=leader)

    alone = []
    for index in range(3):
        with open_engine(toy_bundle, enable_prefix_cache=False) as engine:
            engine.add(answer(index, None))
            alone.append(run_to_end(engine)[f"r{index}"].token_ids)
    with open_engine(toy_bundle, enable_prefix_cache=False) as engine:
        for index in range(3):
            engine.add(answer(index, "r0" if index else None))
        together = run_to_end(engine)
    assert [together[f"r{i}"].token_ids for i in range(3)] == alone


def test_end_token_stops_and_counts(toy_bundle: Path) -> None:
    # One token t at position 0 gives t as the next token, so the end token gives itself.
    params = SamplingParams(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=0
    )
    with open_engine(toy_bundle) as engine:
        engine.add(Request("r", (EOS_TOKEN_ID,), params))
        answer = run_to_end(engine)["r"]
    assert answer.token_ids == (EOS_TOKEN_ID,)
    assert answer.finish_reason is FinishReason.STOP
    assert answer.timings is not None


def test_without_a_limit_the_model_length_ends_the_answer(toy_bundle: Path) -> None:
    params = SamplingParams(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=0,
        ignore_eos=True,
    )  # fmt: skip
    with open_engine(toy_bundle) as engine:
        engine.add(Request("r", (1, 2, 3), params))
        answer = run_to_end(engine)["r"]
    assert len(answer.token_ids) == 61
    assert answer.finish_reason is FinishReason.LENGTH


def test_a_prompt_that_can_never_fit_is_refused(toy_bundle: Path) -> None:
    with (
        open_engine(toy_bundle) as engine,
        pytest.raises(PromptTooLongError, match=r"64.*63|63.*64"),
    ):
        engine.add(Request("r", (1,) * 64, GREEDY))


def test_abort_frees_blocks_in_every_state(toy_bundle: Path) -> None:
    with open_engine(toy_bundle, max_chunk_tokens=4) as engine:
        engine.add(Request("waiting", (1, 2), GREEDY))
        assert engine.abort("waiting") is not None
        engine.add(Request("prefilling", (1,) * 20, GREEDY))
        engine.step()
        assert engine.load().num_referenced_blocks > 0
        aborted = engine.abort("prefilling")
        assert aborted is not None
        assert aborted[1].finish_reason is FinishReason.ABORT
        assert engine.load().num_referenced_blocks == 0
        assert engine.abort("prefilling") is None
        assert engine.abort("never") is None


class FailingDevice(CpuDevice):
    """A CPU whose program fails in chosen runs."""

    def __init__(self, failing_runs: set[int]) -> None:
        super().__init__(1)
        self.failing_runs = failing_runs
        self.num_runs = 0

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        program = super().load_program(spec, bundle)
        run = program.run

        def run_or_fail(bucket: Bucket) -> None:
            self.num_runs += 1
            if self.num_runs in self.failing_runs:
                raise DeviceError("the driver said 507011")
            run(bucket)

        program.run = run_or_fail  # type: ignore[method-assign]
        return program


def test_a_failed_step_ends_its_requests_alone(toy_bundle: Path) -> None:
    first, second = (3,) * 40, (5,) * 40
    device = FailingDevice(set())
    with open_engine(toy_bundle, device, max_chunk_tokens=16) as engine:
        engine.add(Request("first", first, GREEDY))
        for _ in range(8):
            engine.step()
        device.failing_runs = {device.num_runs + 1}
        # In a hurry, so that the next step is its first chunk.
        hurry = Scheduling(ttft_target_s=1e-9)
        engine.add(Request("second", second, GREEDY, scheduling=hurry))
        answers = run_to_end(engine)
        assert engine.take_device_error() == "a step failed: the driver said 507011"
        assert engine.take_device_error() is None
    failed = answers["second"]
    assert failed.finish_reason is FinishReason.ERROR
    assert "507011" in failed.error
    assert toy_answer(first, 20)[-len(answers["first"].token_ids) :] == answers["first"].token_ids
    assert answers["first"].finish_reason is FinishReason.LENGTH


class StuckDevice(CpuDevice):
    """Does not end the step of one run, nor anything after it.

    Attributes:
        num_calls: What was asked of it since.
    """

    def __init__(self, stuck_run: int) -> None:
        super().__init__(1)
        self.stuck_run = stuck_run
        self.num_runs = 0
        self.num_calls = 0

    def copy_in(self, target: DeviceTensor, source: NDArray[Any]) -> None:
        self.num_calls += self.num_runs >= self.stuck_run
        self.num_runs += 1
        super().copy_in(target, source)

    def synchronize(self) -> None:
        if self.num_runs >= self.stuck_run:
            raise StillRunningError("code 507046")


def test_nothing_is_asked_of_a_device_that_does_not_end_a_step(toy_bundle: Path) -> None:
    """Its memory is in use for ever: all requests end, further ones are refused."""
    device = StuckDevice(stuck_run=3)
    engine = Engine(device, toy_bundle, EngineSettings(num_blocks=40, max_num_seqs=1))
    for request_id in ("running", "waiting"):
        engine.add(Request(request_id, (3, 4), GREEDY))
    answers = run_to_end(engine)
    assert {a.finish_reason for a in answers.values()} == {FinishReason.ERROR}
    assert all("507046" in answer.error for answer in answers.values())
    assert "does not end" in (engine.take_device_error() or "")
    with pytest.raises(DeviceError, match=r"507046.*restart the server"):
        engine.add(Request("late", (3, 4), GREEDY))
    assert engine.step() == []
    engine.check()
    engine.close()
    assert device.num_calls == 0


def test_after_a_failed_step_the_prefix_cache_gives_nothing_wrong(toy_bundle: Path) -> None:
    prompt = (7,) * 40
    for run in range(1, 8):
        with open_engine(toy_bundle, FailingDevice({run}), max_chunk_tokens=8) as engine:
            engine.add(Request("lost", prompt, GREEDY))
            assert run_to_end(engine)["lost"].finish_reason is FinishReason.ERROR
            engine.add(Request("again", prompt, GREEDY))
            assert run_to_end(engine)["again"].token_ids == toy_answer(prompt, 20)


def test_a_bundle_for_another_device_is_refused(toy_bundle: Path) -> None:
    class Ascend(CpuDevice):
        name, soc = "ascend:0", "Ascend310P3"

    with pytest.raises(BundleError, match=r"built for cpu.*Ascend310P3.*--target Ascend310P3"):
        Engine(Ascend(1), toy_bundle, EngineSettings())


# Costs, time, adapters


def warm_up(engine: Engine) -> list[Bucket]:
    told: list[Bucket] = []
    engine.warm_up(lambda _number, _count, bucket: told.append(bucket))
    return told


def test_warm_up_measures_every_bucket_once_and_the_next_engine_knows(
    toy_bundle: Path, tmp_path: Path
) -> None:
    device = FailingDevice(set())
    with open_engine(toy_bundle, device, cache_dir=tmp_path) as engine:
        assert len(set(warm_up(engine))) == len(engine.manifest.bucket_table())
        num_first = device.num_runs
    assert len(list(tmp_path.rglob("*.json"))) == 1
    again = FailingDevice(set())
    with open_engine(toy_bundle, again, cache_dir=tmp_path) as engine:
        warm_up(engine)
        assert again.num_runs == len(engine.manifest.bucket_table()) < num_first / 2
        engine.add(Request("r", prompts(10)[8], GREEDY))
        assert run_to_end(engine)["r"].token_ids == toy_answer(prompts(10)[8], 20)


@pytest.mark.parametrize("prepares", [False, True])
def test_a_later_start_runs_dear_buckets_again_where_the_device_prepares_them(
    toy_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepares: bool
) -> None:
    monkeypatch.setattr(CpuDevice, "prepares_buckets", prepares)
    with open_engine(toy_bundle, cache_dir=tmp_path) as engine:
        count = len(warm_up(engine))
    (kept,) = tmp_path.rglob("*.json")
    costs = json.loads(kept.read_text())
    dearest = costs["seconds"][-1]
    dearest[-1] = 1000.0
    kept.write_text(json.dumps(costs))
    with open_engine(toy_bundle, cache_dir=tmp_path) as engine:
        run = warm_up(engine)
    assert len(run) == count - (not prepares)
    sizes = [[b.phase.value, b.batch, b.tokens, b.past_blocks] for b in run]
    assert (dearest[:-1] in sizes) == prepares


@pytest.mark.parametrize("prepares", [False, True])
def test_a_restart_spends_no_more_on_runs_than_a_start_where_nothing_is_prepared_by_them(
    toy_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepares: bool
) -> None:
    monkeypatch.setattr(CpuDevice, "prepares_buckets", prepares)
    with open_engine(toy_bundle, cache_dir=tmp_path) as engine:
        count = len(warm_up(engine))
    (kept,) = tmp_path.rglob("*.json")
    costs = json.loads(kept.read_text())
    costs["seconds"][-1][-1] = 2 * KNOWN_WARM_UP_S
    kept.write_text(json.dumps(costs))
    run: list[Bucket] = []
    with open_engine(toy_bundle, cache_dir=tmp_path) as engine:
        engine.warm_up(lambda _number, _count, bucket: run.append(bucket), 4 * KNOWN_WARM_UP_S)
    assert len(run) == count - (not prepares)


def test_measured_costs_are_never_written_into_the_bundle(toy_bundle: Path, tmp_path: Path) -> None:
    before = sorted(toy_bundle.rglob("*"))
    (tmp_path / "costs").write_text("in the way")
    with open_engine(toy_bundle, cache_dir=tmp_path) as engine:
        warm_up(engine)
    assert sorted(toy_bundle.rglob("*")) == before


def test_answers_after_warm_up_do_not_depend_on_what_was_measured(toy_bundle: Path) -> None:
    with open_engine(toy_bundle, num_blocks=18) as engine:
        warm_up(engine)
        for i, prompt in enumerate(prompts(24)):
            engine.add(Request(f"r{i}", prompt, GREEDY))
        answers = run_to_end(engine)
    for i, prompt in enumerate(prompts(24)):
        assert answers[f"r{i}"].token_ids == toy_answer(prompt, 20), i


def test_a_deadline_that_has_passed_ends_the_request_with_a_word(toy_bundle: Path) -> None:
    """By the monotonic clock, which no change of the wall clock moves (BL-48)."""
    with open_engine(toy_bundle) as engine:
        past = Scheduling(deadline=time.monotonic() - 1.0)
        engine.add(Request("late", (1, 2, 3), GREEDY, scheduling=past))
        engine.add(Request("other", (1, 2, 3), GREEDY))
        answers = run_to_end(engine)
    assert answers["late"].finish_reason is FinishReason.ABORT
    assert "deadline" in answers["late"].error
    assert answers["other"].token_ids == toy_answer((1, 2, 3), 20)
    assert answers["late"].timings is not None
    assert min(answers["late"].timings.queue_s, answers["late"].timings.decode_s) >= 0


def test_a_request_for_an_adapter_is_refused_by_name(toy_bundle: Path) -> None:
    with (
        open_engine(toy_bundle) as engine,
        pytest.raises(NotBuiltInError, match=r"'poet'.*not built in"),
    ):
        engine.add(Request("r", (1, 2), GREEDY, adapter=Adapter("poet", "hash")))


def test_flush_and_counters_tell_of_the_prefix_cache(toy_bundle: Path) -> None:
    prompt = prompts(10)[9]
    with open_engine(toy_bundle) as engine:
        for name in ("cold", "warm"):
            engine.add(Request(name, prompt, GREEDY))
            run_to_end(engine)
        counters = engine.counters().prefix_cache
        assert (counters.num_hits, counters.num_misses, counters.num_hit_tokens) == (1, 1, 36)
        assert engine.flush_prefix_cache() > 0
        # A round of an idle engine, as each look at it makes, is no step.
        num_steps = engine.counters().num_steps
        assert engine.step() == []
        assert engine.counters().num_steps == num_steps > 0
        engine.add(Request("flushed", prompt, GREEDY))
        assert run_to_end(engine)["flushed"].num_cached_tokens == 0


def test_a_look_tells_sequences_blocks_and_buckets_but_no_content(
    toy_bundle: Path, tmp_path: Path
) -> None:
    # Nothing was measured before, so every bucket is run.
    with open_engine(toy_bundle, max_num_seqs=1, cache_dir=tmp_path) as engine:
        engine.warm_up(lambda *_: None)
        scheduling = Scheduling(tenant="red")
        engine.add(Request("runs", prompts(10)[8], GREEDY, scheduling=scheduling))
        engine.add(Request("waits", (1, 2), GREEDY))
        while engine.counters().num_generated_tokens < 3:
            engine.step()
        state = engine.inspect()
        runs, waits = state.sequences
        assert (runs.request_id, runs.tenant, runs.status) == ("runs", "red", "running")
        assert (runs.num_prompt_tokens, runs.num_output_tokens) == (33, 3)
        assert len(runs.block_ids) == runs.num_blocks == engine.load().num_referenced_blocks
        assert all(state.block_states[i - 1] == BlockState.HELD for i in runs.block_ids)
        assert (waits.request_id, waits.status, waits.block_ids) == ("waits", "waiting", ())
        assert min(runs.age_s, waits.age_s) >= 0
        assert all(report.warm_up_s > 0 for report in state.buckets)
        assert state.warm_up_s >= sum(report.warm_up_s for report in state.buckets)
        run_to_end(engine)
        reports, counters = engine.inspect().buckets, engine.counters()
    assert sum(report.num_tokens for report in reports) == counters.num_computed_tokens
    padded = counters.num_step_places - counters.num_computed_tokens
    assert sum(report.num_padded_tokens for report in reports) == padded
    assert (counters.num_prefill_tokens, counters.num_generated_tokens) == (35, 40)
    assert 0 < counters.num_bucket_switches < counters.num_steps


def test_a_look_at_many_is_bounded_and_says_how_many_there_are(toy_bundle: Path) -> None:
    with open_engine(toy_bundle) as engine:
        for i in range(MAX_LISTED_SEQUENCES + 5):
            engine.add(Request(f"r{i}", (1, 2), GREEDY))
        state = engine.inspect()
        assert len(state.sequences) == MAX_LISTED_SEQUENCES
        assert state.num_sequences == MAX_LISTED_SEQUENCES + 5
        engine.abort_all()


def test_a_flush_while_blocks_are_held_never_gives_a_wrong_hit(toy_bundle: Path) -> None:
    """What the holder computes later is only found behind a beginning computed after the flush."""
    prompt = prompts(10)[9]
    with open_engine(toy_bundle) as engine:
        engine.add(Request("holds", prompt, replace(GREEDY, max_new_tokens=23)))
        while engine.counters().num_generated_tokens < 2:
            engine.step()
        assert engine.flush_prefix_cache() == 10
        engine.add(Request("after", prompt, GREEDY))
        answers = run_to_end(engine)
        assert answers["after"].num_cached_tokens == 0
        whole = prompt + toy_answer(prompt, 20)
        engine.add(Request("later", whole, replace(GREEDY, max_new_tokens=1)))
        later = run_to_end(engine)["later"]
        assert later.num_cached_tokens > len(prompt)
        assert later.token_ids == toy_answer(whole, 1)
    assert answers["holds"].token_ids == toy_answer(prompt, 23)[2:]
    assert answers["after"].token_ids == toy_answer(prompt, 20)


def test_deterministic_answers_are_right_as_well(toy_bundle: Path) -> None:
    with open_engine(toy_bundle, deterministic=True, num_blocks=18) as engine:
        for i, prompt in enumerate(prompts(12)):
            engine.add(Request(f"r{i}", prompt, GREEDY))
        answers = run_to_end(engine)
    for i, prompt in enumerate(prompts(12)):
        assert answers[f"r{i}"].token_ids == toy_answer(prompt, 20), i
