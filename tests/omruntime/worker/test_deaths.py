"""A device process dies, hangs or fails, at every time: its requests end, and serving resumes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from omruntime.errors import (
    BundleError,
    ConfigError,
    DeviceError,
    NotReadyError,
    OutOfDeviceMemoryError,
    ShuttingDownError,
)
from omruntime.manifest import FileEntry, Manifest
from omruntime.scheduling.turn import Scheduling
from omruntime.sequence import Request
from omruntime.worker.worker_engine import WorkerEngine, stage_due
from tests.omruntime.test_engine import GREEDY
from tests.omruntime.token_major_toy import write_token_major_toy
from tests.omruntime.toy_model import toy_answer, write_toy_bundle
from tests.omruntime.worker.serving import (
    ABORT,
    ERROR,
    HELD,
    LENGTH,
    LIMIT_S,
    LONG,
    ask,
    device_pid,
    is_refused,
    read_all,
    serving,
    settings_of,
    try_device_pid,
    wait_for,
)

ROOT = Path(__file__).parents[3]


async def require_served(engine: WorkerEngine) -> None:
    """The engine answers, and rightly."""
    assert (await ask(engine, "after", 4, 5)).token_ids == toy_answer((4, 5), 20)


def test_the_moment_after_an_end_has_words_too(toy_bundle: Path) -> None:
    """Before it is known how the process ended."""
    engine = WorkerEngine.open(toy_bundle, settings_of())
    engine._not_taking = ""
    with pytest.raises(NotReadyError, match="its process has just ended"):
        asyncio.run(engine.submit(Request("r", (1,), GREEDY)))


def test_a_kill_in_mid_stream_ends_every_stream_once_and_serving_resumes(toy_bundle: Path) -> None:
    async def main() -> None:
        # Late enough that all four are accepted, and before the first of them ends.
        held = "slow=1000@40"
        async with serving(toy_bundle, max_num_seqs=2, inject_fault=held) as (engine, events):
            early = [
                asyncio.ensure_future(engine.submit(Request(f"r{i}", (i + 1,), LONG)))
                for i in range(4)
            ]
            streams = await asyncio.gather(*early)
            await wait_for(events.injected)
            # The step never ends, so this one is neither accepted nor refused.
            unanswered = asyncio.ensure_future(engine.submit(Request("late", (1,), GREEDY)))
            await asyncio.sleep(0)
            killed = device_pid()
            os.kill(killed, signal.SIGKILL)
            answers = await asyncio.gather(*map(read_all, streams))
            for answer in answers:
                assert answer.finish_reason is ERROR
                assert f"(pid {killed}) was killed by signal 9 (SIGKILL)" in answer.error
            with pytest.raises(NotReadyError, match=r"signal 9.*retry"):
                await unanswered
            await wait_for(events.failed)
            assert "retry in a few seconds" in await is_refused(engine)
            await wait_for(events.recovered)
            assert device_pid() != killed
            await require_served(engine)
            assert engine.load().num_finished["error"] == 4
            assert (engine.num_restarts, len(events.errors)) == (1, 1)

    asyncio.run(main())


def test_a_hang_is_ended_by_the_watchdog_and_shows_where(
    toy_bundle: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The hang keeps Python's global lock, as a driver's may: nothing in the process runs."""

    async def main() -> None:
        settings = {"step_timeout_s": 2.0, "inject_fault": "hang@2"}
        async with serving(toy_bundle, **settings) as (engine, events):
            answer = await ask(engine, "r", 1, tokens=50)
            assert answer.finish_reason is ERROR
            assert "did not finish a step within step_timeout_s, 2 s" in answer.error
            await wait_for(events.recovered)
            await require_served(engine)
            assert len(events.errors) == 1

    asyncio.run(main())
    stacks = capfd.readouterr().err
    assert "Fatal Python error: Aborted" in stacks
    assert "in _hang" in stacks


def test_a_stopped_process_is_noticed_when_it_answers_no_request(toy_bundle: Path) -> None:
    async def main() -> None:
        async with serving(toy_bundle, step_timeout_s=1.5) as (engine, events):
            os.kill(device_pid(), signal.SIGSTOP)
            with pytest.raises(NotReadyError, match="step_timeout_s"):
                await engine.submit(Request("r", (1,), GREEDY))
            await wait_for(events.recovered)
            await require_served(engine)

    asyncio.run(main())


def test_a_process_that_freezes_while_loading_is_ended_and_started_again(
    toy_bundle: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before its first message, where nothing in it can speak yet."""

    async def main() -> None:
        async with serving(toy_bundle, load_timeout_s=3.0) as (engine, events):
            os.kill(device_pid(), signal.SIGKILL)
            await wait_for(events.failed)
            async with asyncio.timeout(LIMIT_S):
                while (frozen := try_device_pid()) is None:
                    await asyncio.sleep(0.01)
            os.kill(frozen, signal.SIGSTOP)
            await wait_for(events.recovered)
            await require_served(engine)
            assert len(events.errors) == 2
            assert (
                f"(pid {frozen}) said nothing while loading for load_timeout_s, 3 s"
                in (events.errors[1])
            )

    asyncio.run(main())


def test_a_first_process_that_freezes_in_a_stage_of_loading_fails_the_start(
    toy_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It stops itself while it opens the device, which is a stage that it has told of."""
    freezing = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    (tmp_path / "onnxruntime.py").write_text(freezing)
    monkeypatch.syspath_prepend(tmp_path)
    stages: list[str] = []
    engine = WorkerEngine.open(toy_bundle, settings_of(load_timeout_s=3.0))
    with pytest.raises(DeviceError, match=r"while loading: .* load_timeout_s, 3 s"):
        engine.start(stages.append)
    engine.stop()
    assert stages == ["opening device cpu"]
    assert "Fatal Python error: Aborted" in capfd.readouterr().err


def test_reading_a_large_bundle_from_a_slow_disk_is_no_freeze(tmp_path: Path) -> None:
    """Reading says nothing until it is done, so the size counts."""
    manifest = Manifest.read(write_toy_bundle(tmp_path / "bundle"))
    large = replace(manifest, files=(FileEntry("weights", 20 << 30, ""),))
    due = [stage_due(settings_of(load_timeout_s=5.0), m) for m in (manifest, large)]
    assert [round(d.timeout_s) for d in due] == [5, 5 + 1024]
    assert "1024.0 s that reading the bundle may take" in due[1].failing


def test_a_failed_step_ends_its_requests_alone_then_the_device_is_opened_anew(
    toy_bundle: Path,
) -> None:
    async def main() -> None:
        # Slow enough for the second to be accepted before.
        fault = "slow=1@2,error@3"
        async with serving(toy_bundle, max_num_seqs=1, inject_fault=fault) as (engine, events):
            first_pid = device_pid()
            hit, spared = await asyncio.gather(
                *[engine.submit(Request(f"r{i}", (i + 1,), GREEDY)) for i in range(2)]
            )
            answer = await read_all(hit)
            assert (answer.finish_reason, len(answer.token_ids)) == (ERROR, 2)
            assert "injected: cpu failed in step 3" in answer.error
            assert (await read_all(spared)).token_ids == toy_answer((2,), 20)
            await wait_for(events.recovered)
            assert device_pid() != first_pid
            await require_served(engine)
            finished = engine.load().num_finished
            assert (finished["error"], finished["length"]) == (1, 2)
            assert "failed in step 3" in events.errors[0]

    asyncio.run(main())


def test_a_simulated_chip_is_lost_and_opened_anew(tmp_path: Path) -> None:
    """The code that drives a card, in a process of its own."""
    bundle = write_token_major_toy(tmp_path / "bundle")

    async def main() -> None:
        settings = {"device": "sim:0", "num_threads": 0, "num_blocks": None}
        settings |= {"inject_fault": "kill@3"}
        async with serving(bundle, **settings) as (engine, events):
            answer = await ask(engine, "r", 1)
            assert (answer.finish_reason, len(answer.token_ids)) == (ERROR, 2)
            await wait_for(events.recovered)
            await require_served(engine)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fault", "text"), [("exit=7@3", "ended with exit code 7"), ("kill@3", "signal 9 (SIGKILL)")]
)
def test_a_process_lost_in_a_step(toy_bundle: Path, fault: str, text: str) -> None:
    async def main() -> None:
        async with serving(toy_bundle, inject_fault=fault) as (engine, events):
            answer = await ask(engine, "r", 1)
            assert (answer.finish_reason, len(answer.token_ids)) == (ERROR, 2)
            assert text in answer.error
            await wait_for(events.recovered)
            await require_served(engine)

    asyncio.run(main())


def test_a_process_that_dies_again_and_again_never_ends_the_engine(toy_bundle: Path) -> None:
    async def main() -> None:
        async with serving(toy_bundle, inject_fault="always:kill@1") as (engine, events):
            for round_ in range(1, 3):
                events.recovered.clear()
                assert (await ask(engine, "r", 1)).finish_reason is ERROR
                await wait_for(events.recovered)
                assert engine.num_restarts == round_

    asyncio.run(main())


def test_a_restart_that_fails_is_tried_again(tmp_path: Path) -> None:
    """BL-49 and a bundle on a disk that is away for a while."""
    bundle = write_toy_bundle(tmp_path / "bundle")

    async def main() -> None:
        async with serving(bundle) as (engine, events):
            bundle.rename(tmp_path / "away")
            os.kill(device_pid(), signal.SIGKILL)
            async with asyncio.timeout(LIMIT_S):
                while not any("could not load" in text for text in events.errors):
                    await wait_for(events.failed)
                    events.failed.clear()
            assert "bundle.json" in await is_refused(engine)
            (tmp_path / "away").rename(bundle)
            await wait_for(events.recovered)
            await require_served(engine)

    asyncio.run(main())


def test_another_bundle_in_the_same_place_is_not_served(tmp_path: Path) -> None:
    """Its tokens would mean something else to the tokenizer that was loaded."""
    bundle = write_toy_bundle(tmp_path / "bundle")
    engine = WorkerEngine.open(bundle, settings_of())
    manifest = bundle / "bundle.json"
    manifest.write_text(manifest.read_text().replace('"name": "toy"', '"name": "other"'))
    with pytest.raises(BundleError, match="another one than when the server was"):
        engine.start(lambda _line: None)
    engine.stop()


def test_short_memory_fails_the_start_by_its_class(toy_bundle: Path) -> None:
    engine = WorkerEngine.open(toy_bundle, settings_of(inject_fault="no-memory@2"))
    with pytest.raises(OutOfDeviceMemoryError, match="refuses allocation 2"):
        engine.start(lambda _line: None)
    engine.stop()


def test_a_death_while_loading_fails_the_start(toy_bundle: Path) -> None:
    engine = WorkerEngine.open(toy_bundle, settings_of(inject_fault="kill@w2"))
    with pytest.raises(DeviceError, match=r"while loading: .* was killed by signal 9"):
        engine.start(lambda _line: None)
    engine.stop()


def test_a_hang_in_warm_up_fails_the_start(toy_bundle: Path) -> None:
    engine = WorkerEngine.open(toy_bundle, settings_of(step_timeout_s=1.0, inject_fault="hang@w2"))
    with pytest.raises(DeviceError, match=r"while loading: .* step_timeout_s, 1 s"):
        engine.start(lambda _line: None)
    engine.stop()


def test_stopping_before_the_start_ends_it(toy_bundle: Path) -> None:
    engine = WorkerEngine.open(toy_bundle, settings_of())
    engine.stop()
    with pytest.raises(ShuttingDownError, match="while loading"):
        engine.start(lambda _line: None)


def test_stopping_ends_a_process_that_hangs(toy_bundle: Path) -> None:
    async def main() -> None:
        async with serving(toy_bundle, inject_fault="hang@2") as (engine, events):
            stream = await engine.submit(Request("r", (1,), LONG))
            await wait_for(events.injected)
            await asyncio.to_thread(engine.stop)
            assert (await read_all(stream)).finish_reason is ABORT
            with pytest.raises(ShuttingDownError):
                await engine.submit(Request("late", (1,), GREEDY))
            assert not events.errors

    asyncio.run(main())


def test_a_death_while_draining_ends_the_requests_and_starts_nothing(toy_bundle: Path) -> None:
    async def main() -> None:
        async with serving(toy_bundle, inject_fault=HELD) as (engine, events):
            stream = await engine.submit(Request("r", (1,), LONG))
            await wait_for(events.injected)
            engine.drain()
            os.kill(device_pid(), signal.SIGKILL)
            assert (await read_all(stream)).finish_reason is ERROR
            await asyncio.to_thread(engine.stop)
            assert engine.num_restarts == 0

    asyncio.run(main())


def test_stop_signals_are_left_to_the_parent(toy_bundle: Path) -> None:
    """Service managers send SIGTERM to every process; Ctrl-C goes to a whole group."""

    async def main() -> None:
        async with serving(toy_bundle) as (engine, events):
            pid = device_pid()
            assert os.getsid(pid) == pid
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(pid, number)
            await require_served(engine)
            assert device_pid() == pid
            assert not events.errors

    asyncio.run(main())


def test_nan_in_the_cache_ends_the_requests_that_read_it(toy_bundle: Path) -> None:
    async def main() -> None:
        async with serving(toy_bundle, max_num_seqs=1, inject_fault="nan@1") as (engine, events):
            prompt = tuple(range(1, 14))  # several full blocks, so that they are cached
            hit, spared = await asyncio.gather(
                engine.submit(Request("hit", prompt, GREEDY)),
                engine.submit(Request("spared", (2,), GREEDY)),
            )
            answer = await read_all(hit)
            assert answer.finish_reason is ERROR
            assert "nan" in answer.error
            assert (await read_all(spared)).token_ids == toy_answer((2,), 20)
            # What was spoilt is in no cache, and not in the memory that others get.
            assert (await ask(engine, "again", *prompt)).token_ids == toy_answer(prompt, 20)
            for i in range(30):
                assert (await ask(engine, f"r{i}", i, 3)).token_ids == toy_answer((i, 3), 20)
            assert not events.errors

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_clock_that_jumps_ends_nothing_but_what_waits_for_a_time(
    toy_bundle: Path, seconds: int
) -> None:
    async def main() -> None:
        fault = f"clock={seconds}@3"
        async with serving(toy_bundle, max_num_seqs=1, inject_fault=fault) as (engine, events):
            running = await engine.submit(Request("r", (1,), LONG))
            timed = Scheduling(queue_timeout_s=1800.0)
            waiting = await engine.submit(replace_scheduling(timed))
            assert (await read_all(running)).token_ids == toy_answer((1,), 60)
            assert (await read_all(waiting)).finish_reason is (ABORT if seconds > 0 else LENGTH)
            await require_served(engine)
            assert not events.errors

    asyncio.run(main())


def replace_scheduling(scheduling: Scheduling) -> Request:
    return replace(Request("waiting", (2,), GREEDY), scheduling=scheduling)


FRONT = """
import asyncio, sys
from pathlib import Path
from omruntime.sequence import Request
from tests.omruntime.worker.serving import LONG, device_pid, serving, wait_for

async def main(bundle, faults):
    settings = {"inject_fault": faults} if faults else {}
    async with serving(Path(bundle), **settings) as (engine, events):
        await engine.submit(Request("r", (1,), LONG))
        if faults:
            await wait_for(events.injected)
        print(device_pid(), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("faults", ["", "hang@2"])
def test_the_process_ends_with_its_parent(toy_bundle: Path, faults: str) -> None:
    """Also when it cannot notice anything itself."""
    with subprocess.Popen(
        [sys.executable, "-c", FRONT, toy_bundle, faults],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as front:  # fmt: skip
        assert front.stdout is not None
        device = psutil.Process(int(front.stdout.readline()))
        front.kill()
        front.wait()
    _, alive = psutil.wait_procs([device], timeout=LIMIT_S)
    assert not alive


def test_a_fault_without_the_flag_is_refused() -> None:
    from omruntime.settings import EngineSettings

    with pytest.raises(ConfigError, match="needs --allow-faults"):
        EngineSettings(inject_fault="kill@1")
