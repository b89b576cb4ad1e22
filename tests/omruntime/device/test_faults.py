"""Each fault does what its name says, at its step alone, to an engine over the toy model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omruntime.device import open_device
from omruntime.device.faults import Fault, FaultKind, FaultyDevice, parse_faults, with_faults
from omruntime.engine import Engine
from omruntime.errors import ConfigError, DeviceError, OutOfDeviceMemoryError
from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.token_stream import merge
from tests.omruntime.test_engine import GREEDY
from tests.omruntime.toy_model import toy_answer, write_toy_bundle

ERROR = FinishReason.ERROR


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_bundle(tmp_path_factory.mktemp("toy") / "bundle")


@contextmanager
def engine_with(faults: str, bundle: Path, **settings: int) -> Iterator[Engine]:
    """A warm engine over a faulty device."""
    device = with_faults(open_device("cpu", num_threads=1), faults)
    engine = Engine(device, bundle, EngineSettings(num_threads=1, num_blocks=40, **settings))  # type: ignore[arg-type]
    engine.warm_up(lambda *_: None)
    yield engine
    engine.check()
    assert engine.load().num_referenced_blocks == 0
    engine.close()


def answers_of(engine: Engine, *prompts: tuple[int, ...]) -> list[TokenDelta]:
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), prompt, GREEDY))
    answers: dict[str, TokenDelta] = {}
    while engine.has_work:
        for request_id, delta in engine.step():
            before = answers.get(request_id)
            answers[request_id] = delta if before is None else merge(before, delta)
    return [answers[str(i)] for i in range(len(prompts))]


def test_a_device_error_at_a_step_ends_that_steps_requests(bundle: Path) -> None:
    with engine_with("error@4", bundle, max_num_seqs=1) as engine:
        hit, spared = answers_of(engine, (1,), (2,))
        assert (hit.finish_reason, hit.token_ids) == (ERROR, toy_answer((1,), 3))
        assert "injected: cpu failed in step 4" in hit.error
        assert spared.token_ids == toy_answer((2,), 20)
        assert "step 4" in (engine.take_device_error() or "")


def test_nan_keys_and_values_end_who_reads_them_and_nobody_later(bundle: Path) -> None:
    """The spoilt blocks leave the prefix cache, and are clean when others get them."""
    prompt = tuple(range(1, 14))
    with engine_with("nan@1", bundle, max_num_seqs=1) as engine:
        hit, spared = answers_of(engine, prompt, (2,))
        assert hit.finish_reason is ERROR
        assert "nan" in hit.error
        assert spared.token_ids == toy_answer((2,), 20)
        # Enough to use every block again, in blocks that are filled in part.
        others = [prompt, *((i, 3) for i in range(30))]
        for answer, other in zip(answers_of(engine, *others), others, strict=True):
            assert answer.token_ids == toy_answer(other, 20)
        assert engine.take_device_error() is None


def test_who_shares_spoilt_blocks_fails_with_them(bundle: Path) -> None:
    prompt = tuple(range(1, 14))
    with engine_with("nan@1", bundle) as engine:
        engine.add(Request("first", prompt, GREEDY))
        engine.step()
        engine.add(Request("second", prompt, GREEDY))
        ends = {}
        while engine.has_work:
            ends |= {i: delta for i, delta in engine.step() if delta.finish_reason}
        assert {end.finish_reason for end in ends.values()} == {ERROR}
        (again,) = answers_of(engine, prompt)
        assert again.token_ids == toy_answer(prompt, 20)


def test_a_spoilt_prompt_that_is_given_up_on_the_way_spoils_nobody(bundle: Path) -> None:
    """What no number is shows in steps that give no token, too."""
    with engine_with("nan@1", bundle, max_num_seqs=1, max_chunk_tokens=4) as engine:
        engine.add(Request("spoilt", tuple(range(1, 14)), GREEDY))
        ends = {i: delta for _ in range(2) for i, delta in engine.step()}
        engine.abort("spoilt")
        others = [(i, 3) for i in range(30)]
        for answer, other in zip(answers_of(engine, *others), others, strict=True):
            assert answer.token_ids == toy_answer(other, 20)
        assert ends["spoilt"].finish_reason is ERROR
        assert "nan" in ends["spoilt"].error


def test_a_device_error_in_a_run_of_warm_up(bundle: Path) -> None:
    with (
        pytest.raises(DeviceError, match="failed in step 2"),
        engine_with("error@w2", bundle),
    ):
        pass


def test_short_memory_at_an_allocation(bundle: Path) -> None:
    with (
        pytest.raises(OutOfDeviceMemoryError, match="refuses allocation 2 "),
        engine_with("no-memory@2", bundle),
    ):
        pass


def test_a_slow_step_takes_longer_and_gives_the_same(bundle: Path) -> None:
    with engine_with("slow=0.05@3", bundle) as engine:
        start = time.monotonic()
        (answer,) = answers_of(engine, (1,))
        assert time.monotonic() - start >= 0.05
        assert answer.token_ids == toy_answer((1,), 20)


def test_clocks_jump(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("monotonic", "time"):  # put back after the test
        monkeypatch.setattr(time, name, getattr(time, name))
    real = time.monotonic
    with engine_with("clock=3600@2", bundle) as engine:
        (answer,) = answers_of(engine, (1,))
    assert time.monotonic() - real() > 3599
    assert answer.token_ids == toy_answer((1,), 20)


def test_no_faults_no_wrapper() -> None:
    device = open_device("cpu", num_threads=1)
    assert with_faults(device, None) is device
    assert isinstance(with_faults(device, "kill@1"), FaultyDevice)
    device.close()


def test_a_list_of_faults_is_read() -> None:
    assert parse_faults("always:error@3, slow=2.5@4,no-memory@1,kill@w2") == (
        Fault(FaultKind.ERROR, 3),
        Fault(FaultKind.SLOW, 4, 2.5),
        Fault(FaultKind.NO_MEMORY, 1),
        Fault(FaultKind.KILL, 2, in_warm_up=True),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "error", "error@", "error@0", "error@-1", "error@x", "error=1@2", "slow@2"),
        *("slow=@2", "slow=-1@2", "slow=inf@2", "clock=nan@1", "exit@1", "burn@1", "error@1,"),
        *("kill@1;hang@2", "nan@w1", "kill@w0", "kill@ww1"),
    ],
)
def test_what_is_no_list_of_faults_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="inject_fault has"):
        parse_faults(text)
