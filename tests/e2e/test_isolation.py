"""`om-serve` with the device in its own process: the toy model, real processes, real sockets."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omruntime.errors import CallError
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import Client
from server.text import TextDelta
from tests.e2e.server_child import ServerChild
from tests.omruntime.toy_model import toy_answer, write_toy_bundle
from tests.server.tiny_tokenizers import letters_backend, tokenizer_of, write_tokenizer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LIMIT_S = 60.0
LONG = SamplingParams(temperature=0.0, max_new_tokens=60, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_new_tokens=8, ignore_eos=True)
TOKENIZER = tokenizer_of(letters_backend())
ISOLATED = ("--isolate-device", "--num-threads", "1", "--num-blocks", "100")
# Long enough to act in, on a stream that is under way.
HELD = (*ISOLATED, "--allow-faults", "--inject-fault", "slow=1000@40")

Start = Callable[..., ServerChild]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_toy_bundle(tmp_path_factory.mktemp("toy") / "bundle")
    write_tokenizer(folder / "tokenizer", letters_backend())
    return folder


@pytest.fixture
def start(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a server that is ready; whatever happens, it and its device process end."""
    monkeypatch.setenv("HOME", str(tmp_path))
    children: list[ServerChild] = []

    def run(*options: str) -> ServerChild:
        child = ServerChild(bundle, tmp_path, options)
        children.append(child)
        child.start()
        child.wait_ready()
        return child

    yield run
    for child in children:
        child.kill()
        assert "Traceback" not in child.log.read_text()


def device_process(child: ServerChild) -> psutil.Process:
    (process,) = psutil.Process(child.pid).children()
    return process


def health_watch(child: ServerChild) -> Iterator[int]:
    """Every health from now on."""
    with grpc.insecure_channel(child.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=LIMIT_S
        )
        for reply in watch:
            yield reply.status


def wait_log(child: ServerChild, words: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while words not in child.log.read_text():
        assert time.monotonic() < deadline, child.log.read_text()
        time.sleep(0.01)


def is_ended_by_the_death(answer: Future[list[TextDelta]]) -> bool:
    """One terminal event and nothing after it; or a refusal, when it was not accepted yet."""
    error = answer.exception(LIMIT_S)
    if error is not None:
        assert isinstance(error, CallError)
        assert (error.code, "retry" in str(error)) == ("UNAVAILABLE", True)
        return False
    deltas = answer.result()
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason is FinishReason.ERROR
    assert "was killed by signal 9" in deltas[-1].error
    return True


def require_served(client: Client) -> None:
    answer = client.generate("abc", SHORT).answers[0]
    assert answer.token_ids == toy_answer(TOKENIZER.encode_text("abc"), 8)


def test_a_killed_device_process_ends_its_streams_and_serving_resumes(start: Start) -> None:
    child = start(*HELD)
    health = health_watch(child)
    assert next(health) == SERVING
    device = device_process(child)
    with Client(child.target) as client, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(list, client.stream(prompt, LONG)) for prompt in "abcd"]
        wait_log(child, "injecting")
        device.kill()
        num_errors = sum(is_ended_by_the_death(answer) for answer in answers)
        assert num_errors >= 1
        assert next(health) == NOT_SERVING
        assert next(health) == SERVING
        assert device_process(child).pid != device.pid
        require_served(client)
        assert client.load().num_finished["error"] == num_errors
        assert client.server_info().detail == ""
    health.close()  # type: ignore[attr-defined]
    child.signal()
    assert child.wait() == 0
    assert not psutil.pid_exists(device.pid)


def test_requests_in_between_are_told_to_come_again(start: Start, bundle: Path) -> None:
    """The process cannot come back while its bundle is away."""
    child = start(*ISOLATED)
    away = bundle.with_name("away")
    health = health_watch(child)
    assert next(health) == SERVING
    bundle.rename(away)
    try:
        device_process(child).kill()
        assert next(health) == NOT_SERVING
        with Client(child.target) as client:
            with pytest.raises(CallError, match="retry in a few seconds") as caught:
                client.generate("a", SHORT)
            assert caught.value.code == "UNAVAILABLE"
            assert "signal 9" in client.server_info().detail
    finally:
        away.rename(bundle)
    while next(health) != SERVING:
        pass
    with Client(child.target) as client:
        require_served(client)
    health.close()  # type: ignore[attr-defined]
    child.signal()
    assert child.wait() == 0


def test_sigterm_under_load_lets_answers_end(start: Start) -> None:
    child = start(*ISOLATED, "--allow-faults", "--inject-fault", "slow=2@5")
    device = device_process(child)
    with Client(child.target) as client, ThreadPoolExecutor(8) as pool:
        answer = pool.submit(list, client.stream("a", LONG))
        wait_log(child, "injecting")
        child.signal()
        # As a service manager does, which knows nothing of fronts and devices.
        device.terminate()
        deltas = answer.result(LIMIT_S)
        assert sum(len(d.token_ids) for d in deltas) == 60
        assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert child.wait() == 0
    assert not psutil.pid_exists(device.pid)


@pytest.mark.parametrize("fault", ["slow=1000@3", "hang@3"])
def test_a_second_signal_ends_the_server_although_the_device_is_stuck(
    start: Start, fault: str
) -> None:
    child = start(*ISOLATED, "--allow-faults", "--inject-fault", fault)
    device = device_process(child)
    with Client(child.target) as client:
        stream = client.stream("a", LONG)
        next(stream)
        wait_log(child, "injecting")
        child.signal()
        child.signal(signal.SIGINT)
        *_, last = stream
    assert last.finish_reason is FinishReason.ABORT
    assert child.wait() == 0
    assert not psutil.pid_exists(device.pid)


def test_signals_of_a_terminal_reach_the_server_alone(start: Start) -> None:
    """Those of a closed one, and of Ctrl-C."""
    child = start(*ISOLATED)
    device = device_process(child)
    device.send_signal(signal.SIGHUP)
    with Client(child.target) as client:
        client.generate("a")
    assert device_process(child).pid == device.pid
    os.killpg(os.getpgid(child.pid), signal.SIGINT)
    assert child.wait() == 0
    assert not psutil.pid_exists(device.pid)


def test_a_device_process_that_dies_while_loading_ends_the_server(
    bundle: Path, tmp_path: Path
) -> None:
    options = (*ISOLATED, "--allow-faults", "--inject-fault", "no-memory@1")
    child = ServerChild(bundle, tmp_path, options)
    child.start()
    try:
        assert child.wait() == 1
        log = child.log.read_text()
        assert "om-serve: injected: cpu refuses allocation 1" in log
        assert "Traceback" not in log
    finally:
        child.kill()


def test_the_server_killed_takes_its_device_process_along(start: Start) -> None:
    child = start(*HELD)
    device = device_process(child)
    with Client(child.target) as client:
        stream = client.stream("a", LONG)
        next(stream)
        wait_log(child, "injecting")
        child.signal(signal.SIGKILL)
        with pytest.raises(CallError):
            list(stream)
    _, alive = psutil.wait_procs([device], timeout=LIMIT_S)
    assert not alive


def test_faults_are_announced(start: Start) -> None:
    child = start(*HELD)
    assert "FAULTS ARE INJECTED into cpu" in child.log.read_text()
    child.signal()
    assert child.wait() == 0
