"""Preparing the next step while the device works changes nothing but the time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omruntime.buckets import Bucket
from omruntime.device import Device, DeviceTensor, Program, open_device
from omruntime.device.cpu import CpuDevice
from omruntime.device.host_memory import view
from omruntime.engine import Engine
from omruntime.manifest import ProgramSpec
from omruntime.outputs import EngineCounters, EngineLoad, TokenDelta
from omruntime.sequence import Request
from omruntime.settings import EngineSettings
from omruntime.token_stream import merge
from tests.omruntime.test_engine import GREEDY, FailingDevice, open_engine, prompts
from tests.omruntime.token_major_toy import write_token_major_toy
from tests.omruntime.toy_model import toy_answer

Tensors = Mapping[str, DeviceTensor]
# So far that the time of a step decides nothing.
PATIENT_MS = 10**9


class RecordingDevice(FailingDevice):
    """Keeps what every run is given, the pool left out."""

    def __init__(self, failing_runs: set[int]) -> None:
        super().__init__(failing_runs)
        self.given: list[tuple[Bucket, dict[str, list[Any]]]] = []

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        program = super().load_program(spec, bundle)
        bind, run = program.bind, program.run
        bound: dict[Bucket, dict[str, DeviceTensor]] = {}

        def record_bind(bucket: Bucket, inputs: Tensors, outputs: Tensors) -> None:
            bound[bucket] = {name: t for name, t in inputs.items() if t.dtype == "int32"}
            bind(bucket, inputs, outputs)

        def record_run(bucket: Bucket) -> None:
            given = {name: view(tensor).tolist() for name, tensor in bound[bucket].items()}
            self.given.append((bucket, given))
            run(bucket)

        program.bind, program.run = record_bind, record_run  # type: ignore[method-assign]
        return program


def has_prepared(engine: Engine) -> bool:
    return "prepare" in engine.profiler.seconds()


def run(engine: Engine) -> dict[str, TokenDelta]:
    """Answers to twelve prompts, the fourth of which is given up on the way."""
    answers: dict[str, TokenDelta] = {}
    for i, prompt in enumerate(prompts(12)):
        engine.add(Request(f"r{i}", prompt, GREEDY))
    for step in range(10_000):
        if not engine.has_work:
            break
        outputs = engine.step()
        aborted = engine.abort("r3") if step == 20 else None
        for request_id, delta in [*outputs, *([aborted] if aborted else [])]:
            before = answers.get(request_id)
            answers[request_id] = delta if before is None else merge(before, delta)
        engine.check()
    return answers


@pytest.mark.parametrize("failing_run", [None, 30])
def test_the_device_is_given_the_same(
    toy_bundle: Path, tmp_path: Path, failing_run: int | None
) -> None:
    """With answers that outgrow the pool, one that is given up, and a step that fails."""

    def given(overlaps: bool) -> tuple[list[Any], EngineCounters, EngineLoad, list[Any]]:
        device = RecordingDevice(set() if failing_run is None else {failing_run})
        settings = EngineSettings(
            num_blocks=30,
            max_num_seqs=4,
            ttft_target_ms=PATIENT_MS,
            overlap_scheduling=overlaps,
            # No costs that other tests measured: live steps would correct them.
            cache_dir=tmp_path,
        )
        engine = Engine(device, toy_bundle, settings)
        answers = run(engine)
        assert has_prepared(engine) == overlaps
        told = [
            (name, delta.token_ids, delta.finish_reason, delta.error)
            for name, delta in answers.items()
        ]
        counters, load = engine.counters(), engine.load()
        engine.close()
        return device.given, counters, load, told

    ahead = given(overlaps=True)
    assert ahead == given(overlaps=False)
    assert ahead[2].num_preemptions > 0
    assert (ahead[2].num_finished["error"] > 0) == (failing_run is not None)


@pytest.mark.parametrize(("name", "overlaps"), [("cpu", False), ("sim:0", True)])
def test_only_a_device_that_works_by_itself_overlaps_unasked(
    toy_bundle: Path, tmp_path: Path, name: str, overlaps: bool
) -> None:
    bundle = toy_bundle if name == "cpu" else write_token_major_toy(tmp_path / "bundle")
    device: Device = CpuDevice(1) if name == "cpu" else open_device(name)
    engine = Engine(device, bundle, EngineSettings())
    prompt = prompts(1)[0]
    engine.add(Request("r", prompt, GREEDY))
    outputs = [delta for _ in range(20) for _, delta in engine.step()]
    assert has_prepared(engine) == overlaps
    engine.close()
    assert sum((delta.token_ids for delta in outputs), ()) == toy_answer(prompt, 20)


def test_on_a_card_it_can_be_switched_off(tmp_path: Path) -> None:
    bundle = write_token_major_toy(tmp_path / "bundle")
    engine = Engine(open_device("sim:0"), bundle, EngineSettings(overlap_scheduling=False))
    engine.add(Request("r", (3, 4), GREEDY))
    for _ in range(3):
        engine.step()
    assert not has_prepared(engine)
    engine.close()


def test_what_a_step_took_counts_once_the_next_one_runs(toy_bundle: Path, tmp_path: Path) -> None:
    """So that no cost changes between a look ahead and the step that was foreseen."""
    with open_engine(toy_bundle, cache_dir=tmp_path) as engine:
        engine.warm_up(lambda index, count, bucket: None)
        engine.add(Request("r", (3, 4), GREEDY))

        def predicted() -> list[float]:
            return [report.predicted_s for report in engine.inspect().buckets]

        known = predicted()
        engine.step()
        assert predicted() == known
        engine.step()
        assert predicted() != known
