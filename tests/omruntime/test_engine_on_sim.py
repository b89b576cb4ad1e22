"""The engine over the Ascend device: exact answers, refusals at the start, no leaks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from omruntime.buckets import Bucket, Phase
from omruntime.device.cpu import CpuDevice
from omruntime.device.simacl import SimulatedCard, Simulation
from omruntime.engine import Engine
from omruntime.errors import BundleError, ConfigError, OutOfDeviceMemoryError
from omruntime.manifest import MANIFEST_NAME, Manifest
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from tests.omruntime.device.backends import as_real_device, simulated_device
from tests.omruntime.device.simulated_oms import write_twice
from tests.omruntime.test_engine import GREEDY, SCHEDULES, prompts, run_to_end
from tests.omruntime.token_major_toy import (
    LAYOUTS,
    NUM_BLOCKS,
    compile_with_simatc,
    write_token_major_toy,
)
from tests.omruntime.toy_model import BUCKETS, MAX_MODEL_LEN, toy_answer


@pytest.fixture(scope="session")
def sim_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy model for a card, one OM for each phase; read only."""
    return write_token_major_toy(tmp_path_factory.mktemp("sim") / "bundle")


@contextmanager
def open_engine(
    bundle: Path, simulation: Simulation | None = None, **settings: int | bool
) -> Iterator[Engine]:
    simulation = simulation or Simulation()
    device = simulated_device(simulation)
    try:
        engine = Engine(device, bundle, EngineSettings(**settings))  # type: ignore[arg-type]
    except BaseException:
        device.close()
        assert simulation.leaks == ()
        raise
    try:
        yield engine
    finally:
        engine.check()
        engine.close()
        assert simulation.leaks == ()
        assert simulation.is_finalized
        assert simulation.used_bytes == (0,)


def copied(bundle: Path, folder: Path) -> Path:
    """A bundle of one's own to spoil."""
    for path in bundle.rglob("*"):
        target = folder / path.relative_to(bundle)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            target.write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("name", SCHEDULES)
def test_answers_do_not_depend_on_the_schedule(sim_bundle: Path, tmp_path: Path, name: str) -> None:
    settings = dict(SCHEDULES[name])
    # The pool's size is compiled in, so a small one takes a bundle of its own.
    num_blocks = settings.pop("num_blocks", None)
    bundle = (
        sim_bundle
        if num_blocks is None
        else write_token_major_toy(tmp_path / "small", num_blocks=num_blocks)
    )
    with open_engine(bundle, **settings) as engine:
        engine.warm_up(lambda index, count, bucket: None)
        for i, prompt in enumerate(prompts(24)):
            engine.add(Request(f"r{i}", prompt, GREEDY))
        answers = run_to_end(engine)
        assert engine.load().num_preemptions > 0 or name != "preempted"
    for i, prompt in enumerate(prompts(24)):
        assert answers[f"r{i}"].token_ids == toy_answer(prompt, 20), i


@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_do_not_depend_on_the_layout_of_the_oms(tmp_path: Path, layout: str) -> None:
    bundle = write_token_major_toy(tmp_path / "bundle", layout)
    with open_engine(bundle) as engine:
        for i, prompt in enumerate(prompts(6)):
            engine.add(Request(f"r{i}", prompt, GREEDY))
        answers = run_to_end(engine)
    for i, prompt in enumerate(prompts(6)):
        assert answers[f"r{i}"].token_ids == toy_answer(prompt, 20), i


def test_prompts_are_scored_by_the_same_programs(sim_bundle: Path) -> None:
    """Steps that append nothing to the pool, on a device that copies position by position."""
    prompt = prompts(10)[9]
    params = replace(GREEDY, prompt_logprobs=1)
    with open_engine(sim_bundle) as engine:
        engine.add(Request("r", prompt, params))
        engine.add(Request("only", prompt, replace(params, max_new_tokens=0)))
        answers = run_to_end(engine)
    assert answers["r"].token_ids == toy_answer(prompt, 20)
    best = [score.logprobs.top[0][0] for score in answers["r"].prompt_logprobs]
    assert best == [toy_answer(prompt[:end], 1)[0] for end in range(1, len(prompt))]
    assert answers["only"].prompt_logprobs == answers["r"].prompt_logprobs


def test_programs_of_the_simulated_compiler_answer_alike(tmp_path: Path) -> None:
    bundle = write_token_major_toy(tmp_path / "bundle")
    compile_with_simatc(bundle)
    with open_engine(bundle) as engine:
        engine.warm_up(lambda index, count, bucket: None)
        for i, prompt in enumerate(prompts(12)):
            engine.add(Request(f"r{i}", prompt, GREEDY))
        answers = run_to_end(engine)
    for i, prompt in enumerate(prompts(12)):
        assert answers[f"r{i}"].token_ids == toy_answer(prompt, 20), i


def test_float16_logits_serve_as_well(tmp_path: Path) -> None:
    bundle = write_token_major_toy(tmp_path / "bundle", logits_dtype="float16")
    prompt = prompts(1)[0]
    with open_engine(bundle) as engine:
        engine.add(Request("r", prompt, GREEDY))
        assert run_to_end(engine)["r"].token_ids == toy_answer(prompt, 20)


def test_an_equal_prompt_hits_the_prefix_cache_and_answers_alike(sim_bundle: Path) -> None:
    prompt = prompts(10)[9]
    with open_engine(sim_bundle) as engine:
        engine.add(Request("cold", prompt, GREEDY))
        cold = run_to_end(engine)["cold"]
        engine.add(Request("warm", prompt, GREEDY))
        warm = run_to_end(engine)["warm"]
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 36)
    assert warm.token_ids == cold.token_ids == toy_answer(prompt, 20)


def test_siblings_copy_shared_blocks_before_they_write(sim_bundle: Path) -> None:
    prompt = prompts(10)[7]  # 17 tokens: the fifth block is shared and partly filled
    params = SamplingParams(
        temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0,
        max_new_tokens=9, ignore_eos=True, allowed_token_ids=(5, 6, 7),
    )  # fmt: skip

    def answers(indices: range) -> list[tuple[int, ...]]:
        with open_engine(sim_bundle, enable_prefix_cache=False) as engine:
            leader = None
            for index in indices:
                seeded = replace(params, seed=index)
                engine.add(Request(f"r{index}", prompt, seeded, leader_id=leader))
                leader = leader or f"r{index}"
            done = run_to_end(engine)
        return [done[f"r{index}"].token_ids for index in indices]

    alone = [answers(range(i, i + 1))[0] for i in range(3)]
    assert answers(range(3)) == alone


@pytest.mark.parametrize("call", ["mdl.execute_async", "rt.memcpy_async", "run",
                                  "rt.synchronize_stream"])  # fmt: skip
def test_a_failed_step_ends_its_requests_alone(sim_bundle: Path, call: str) -> None:
    simulation = Simulation()
    with open_engine(sim_bundle, simulation) as engine:
        engine.add(Request("lost", (3, 4, 5), GREEDY))
        engine.step()
        simulation.fail_next(call, 507015, "aicore exception")
        lost = run_to_end(engine)["lost"]
        assert lost.finish_reason is FinishReason.ERROR
        assert "507015 (ACL_ERROR_RT_AICORE_EXCEPTION)" in lost.error
        # What fails in the queue is a copy in. The program behind it reads what lies there, so it
        # may fail as well, and then its own words are the last ones and all that is told.
        assert "aicore exception" in lost.error or call == "run"
        for i, prompt in enumerate(prompts(4)):
            engine.add(Request(f"r{i}", prompt, GREEDY))
        answers = run_to_end(engine)
    for i, prompt in enumerate(prompts(4)):
        assert answers[f"r{i}"].token_ids == toy_answer(prompt, 20), i


def test_the_budget_is_logged_before_anything_is_reserved(
    sim_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "omruntime.blocks.memory_budget"), open_engine(sim_bundle):
        pass
    lines = "\n".join(r.getMessage() for r in caplog.records)
    for item in ("weights", "work memory", "gear buffers", "inputs and outputs", "KV pool"):
        assert f"item='{item}' bytes=" in lines
    assert f"item='KV pool' bytes={NUM_BLOCKS * 4 * 64 + 32}" in lines
    assert "free_bytes=1073741824 total_bytes=1073741824" in lines


def test_the_budget_covers_what_is_reserved(
    sim_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    simulation = Simulation()
    with (
        caplog.at_level(logging.INFO, "omruntime.blocks.memory_budget"),
        open_engine(sim_bundle, simulation) as engine,
    ):
        engine.warm_up(lambda index, count, bucket: None)
        used = simulation.used_bytes[0]
    needed = next(r for r in caplog.records if "needed_bytes" in r.getMessage())
    assert isinstance(needed.args, tuple)
    assert 0 <= int(str(needed.args[1])) - used < 16 << 10


def test_too_little_memory_is_refused_with_the_reason(sim_bundle: Path) -> None:
    simulation = Simulation(SimulatedCard(memory_bytes=20 << 10))
    with (
        pytest.raises(
            OutOfDeviceMemoryError,
            match=r"sim:0: 0\.\d MiB needed, 0\.0 MiB of 0\.0 MiB free, .* missing "
            r"\(weights .*work memory .*KV pool .*\); .*smaller --num-blocks",
        ),
        open_engine(sim_bundle, simulation),
    ):
        pass
    assert simulation.used_bytes == (0,)


def test_a_bundle_for_another_chip_is_refused(sim_bundle: Path) -> None:
    simulation = Simulation(SimulatedCard(soc="Ascend310P1"))
    with (
        pytest.raises(BundleError, match=r"built for Ascend310P3.*is Ascend310P1.*--target"),
        open_engine(sim_bundle, simulation),
    ):
        pass
    with pytest.raises(BundleError, match=r"built for Ascend310P3, device cpu is cpu"):
        Engine(CpuDevice(1), sim_bundle, EngineSettings())


def test_gears_that_differ_from_the_manifest_are_refused(sim_bundle: Path, tmp_path: Path) -> None:
    bundle = copied(sim_bundle, tmp_path / "b")
    manifest = Manifest.read(bundle)
    more = Bucket(Phase.DECODE, 8, 1, 16)
    programs = tuple(
        replace(p, buckets=(*p.buckets, more)) if "decode" in p.path else p
        for p in manifest.programs
    )
    spoiled = replace(manifest, programs=programs)
    (bundle / MANIFEST_NAME).write_text(spoiled.to_json(), encoding="utf-8")
    with (
        pytest.raises(
            BundleError,
            match=r"decode\.om: the OM's gears and the manifest's buckets differ\. In the OM "
            r"alone: \[\]; in the manifest alone: \[\(8, 1, 8, 1, 8, 16, 8, 8, 240, 2, 16\)\]",
        ),
        open_engine(bundle),
    ):
        pass


def test_a_pool_of_another_size_is_refused(sim_bundle: Path, tmp_path: Path) -> None:
    bundle = copied(sim_bundle, tmp_path / "b")
    manifest = Manifest.read(bundle)
    spoiled = replace(manifest, kv=replace(manifest.kv, num_blocks=NUM_BLOCKS - 1))
    (bundle / MANIFEST_NAME).write_text(spoiled.to_json(), encoding="utf-8")
    with (
        pytest.raises(BundleError, match=r"kv_pool was compiled as \[240, 2, 16\], bound is "
                                         r"\[236, 2, 16\]"),
        open_engine(bundle),
    ):  # fmt: skip
        pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_blocks": 59}, r"num_blocks is 59: .*compiled for a pool of 60 blocks"),
        ({"kv_memory_mib": 2}, r"kv_memory_mib is 2: .*compiled for a pool of 60 blocks"),
    ],
)
def test_another_pool_size_by_setting_is_refused(
    sim_bundle: Path, settings: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message), open_engine(sim_bundle, **settings):
        pass


def test_the_compiled_pool_size_may_be_named(sim_bundle: Path) -> None:
    with open_engine(sim_bundle, num_blocks=NUM_BLOCKS) as engine:
        assert engine.limits.num_blocks == NUM_BLOCKS
        assert engine.limits.max_model_len == MAX_MODEL_LEN


def test_a_simulated_program_is_refused_on_a_real_device(sim_bundle: Path) -> None:
    device = as_real_device(Simulation())
    with pytest.raises(BundleError, match=r"SIMULATED program, made by simatc; ascend:0 is a real"):
        Engine(device, sim_bundle, EngineSettings())
    device.close()


def test_a_compiled_program_is_refused_on_the_simulator(sim_bundle: Path, tmp_path: Path) -> None:
    bundle = copied(sim_bundle, tmp_path / "b")
    for om in (bundle / "programs").glob("*.om"):
        content = om.read_bytes()
        om.write_bytes(content[:84] + b"real__" + content[90:])
    with (
        pytest.raises(BundleError, match=r"was compiled for a real device; sim:0 runs only"),
        open_engine(bundle),
    ):
        pass


def test_a_program_with_other_tensors_is_refused(sim_bundle: Path, tmp_path: Path) -> None:
    bundle = copied(sim_bundle, tmp_path / "b")
    path = bundle / "programs" / "decode.om"
    write_twice(path)
    manifest = Manifest.read(bundle)
    entries = tuple(
        replace(e, size_bytes=path.stat().st_size) if e.path.endswith("decode.om") else e
        for e in manifest.files
    )
    text = replace(manifest, files=entries).to_json()
    (bundle / MANIFEST_NAME).write_text(text, encoding="utf-8")
    with (
        pytest.raises(BundleError, match=r"decode\.om: the graph's inputs are \['x'\]"),
        open_engine(bundle),
    ):
        pass


def renamed(manifest: Manifest) -> Manifest:
    """The last tensors of each program called otherwise: the pool, and the new keys and values."""
    return replace(
        manifest,
        programs=tuple(
            replace(
                p,
                inputs=(*p.inputs[:-1], replace(p.inputs[-1], name="pool")),
                outputs=(*p.outputs[:-1], replace(p.outputs[-1], name="kv")),
            )
            for p in manifest.programs
        ),
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (renamed, "it takes pool, which a token_major pool does not have; it gives no new_kv"),
        (
            lambda m: replace(m, kv=replace(m.kv, dtype="float32")),
            "kv_pool is float16, wanted float32; new_kv is float16, wanted float32",
        ),
        (
            lambda m: replace(m, model=replace(m.model, vocab_size=7000)),
            "wide, the vocabulary is 7000",
        ),
    ],
)
def test_a_manifest_that_speaks_of_another_pool_or_model_is_refused(
    spoil: Callable[[Manifest], Manifest], message: str, sim_bundle: Path, tmp_path: Path
) -> None:
    bundle = copied(sim_bundle, tmp_path / "bundle")
    text = spoil(Manifest.read(bundle)).to_json()
    (bundle / MANIFEST_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match=message), open_engine(bundle):
        pass


def test_work_memory_is_shared_by_the_programs(tmp_path: Path) -> None:
    bundle = write_token_major_toy(tmp_path / "static", "static", buckets=BUCKETS)
    simulation = Simulation()
    with open_engine(bundle, simulation):
        used = simulation.used_bytes[0]
    # 12 programs with 4,096 bytes of work memory each would take 48 KiB for it alone.
    weights, pool = 12 * (1024 + 32), NUM_BLOCKS * 4 * 64
    assert used < weights + pool + 2 * 4096 + (16 << 10)
