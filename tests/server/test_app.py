"""The process around the server: readiness, signals, draining, exit codes."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omruntime.errors import CallError
from omruntime.sequence import FinishReason
from server.client import Client
from server.client.security import ClientSecurity
from tests.server.certificates import Authority
from tests.server.key_files import add_key

ROOT = Path(__file__).parents[2]
LIMIT_S = 30
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Process:
    """A serving process on a free port."""

    def __init__(self, folder: Path, mode: str, *flags: str) -> None:
        self.bundle = folder / "bundle"
        self.port_file = folder / "port"
        self.log = folder / "log"
        ports = ["--grpc-port", "0", "--port-file", str(self.port_file)]
        command = [sys.executable, "-m", "tests.server.serve_fakes"]
        with self.log.open("w") as log:
            self.popen = subprocess.Popen(
                [*command, mode, self.bundle, *ports, *flags],
                cwd=ROOT,
                stderr=log,
                env={k: v for k, v in os.environ.items() if not k.startswith("OMSERVE_")},
            )

    def target(self) -> str:
        """Wait for the port file and read it."""
        deadline = time.monotonic() + LIMIT_S
        while not self.port_file.exists():
            assert self.popen.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return f"127.0.0.1:{self.port_file.read_text().strip()}"

    def wait_health(self, status: int) -> None:
        with grpc.insecure_channel(self.target()) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), timeout=LIMIT_S
            )
            assert any(reply.status == status for reply in watch)
            watch.cancel()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.popen.send_signal(number)

    def exit_code(self) -> int:
        return self.popen.wait(LIMIT_S)


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes and ends them, whatever happens."""
    started: list[Process] = []

    def run(mode: str, *flags: str) -> Process:
        started.append(Process(tmp_path, mode, *flags))
        return started[-1]

    yield run
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()
        assert "Traceback" not in process.log.read_text()


@contextmanager
def inherited(handler: signal.Handlers) -> Iterator[None]:
    """What processes that are started meanwhile do on SIGHUP, unless they say so themselves."""
    before = signal.signal(signal.SIGHUP, handler)
    yield
    signal.signal(signal.SIGHUP, before)


def test_behind_nohup_a_closed_terminal_changes_nothing(start: Start) -> None:
    with inherited(signal.SIG_IGN):
        process = start("ready")
    with Client(process.target()) as client:
        client.wait_ready(LIMIT_S)
        process.signal(signal.SIGHUP)
        assert client.generate("x").answers[0].text == "Hi!"
        assert "signal received" not in process.log.read_text()
    process.signal()
    assert process.exit_code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_an_idle_server_with_0(start: Start, number: signal.Signals) -> None:
    with inherited(signal.SIG_DFL):
        process = start("ready")
    with Client(process.target()) as client:
        client.wait_ready(LIMIT_S)
        assert client.generate("x").answers[0].text == "Hi!"
    process.signal(number)
    assert process.exit_code() == 0
    assert not process.port_file.exists()
    assert "request finished" in process.log.read_text()


def test_running_requests_finish_while_new_ones_are_refused(start: Start) -> None:
    process = start("hold")
    with Client(process.target()) as client:
        client.wait_ready(LIMIT_S)
        stream = client.stream("x")
        assert next(stream).text == "a"
        process.signal()
        process.wait_health(NOT_SERVING)
        with pytest.raises(CallError, match="shutting down") as caught:
            client.generate("y")
        assert caught.value.code == "UNAVAILABLE"
        process.bundle.with_suffix(".finish").touch()
        assert [d.finish_reason for d in stream] == [FinishReason.STOP]
    assert process.exit_code() == 0


def test_the_first_to_see_it_unhealthy_are_still_served(start: Start) -> None:
    process = start("ready", "--drain-delay-s", "inf")
    with Client(process.target()) as client:
        client.wait_ready(LIMIT_S)
        process.signal()
        process.wait_health(NOT_SERVING)
        assert client.generate("x").answers[0].text == "Hi!"
        assert process.popen.poll() is None
        # A second one ends the delay.
        process.signal()
    assert process.exit_code() == 0


def test_a_drained_process_stays_until_a_signal_which_does_not_drain_again(start: Start) -> None:
    """As in Kubernetes: the hook drains, then SIGTERM comes."""
    process = start("ready", "--drain-delay-s", "0.1")
    with Client(process.target()) as client:
        client.wait_ready(LIMIT_S)
        *_, last = client.control.drain()
        assert last.is_drained
        process.wait_health(NOT_SERVING)
        assert client.server_info().version
        assert process.popen.poll() is None
    process.signal()
    assert process.exit_code() == 0
    assert process.log.read_text().count("refusing follows") == 1


def test_keys_and_certificates_hold_for_the_whole_process(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "made")
    pair = authority.sign("server")
    keys = tmp_path / "keys.json"
    add_key(keys, "the-key-itself", "alice")
    tls = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--api-keys", str(keys))
    process = start("ready", "--http-port", "0", "--log-level", "debug", *tls)
    target = process.target().replace("127.0.0.1", "localhost")
    security = ClientSecurity(tls_ca=authority.path, api_key="the-key-itself")
    with Client(target, security) as client:
        client.wait_ready(LIMIT_S)
        assert client.generate("the prompt itself").answers[0].text == "Hi!"
    with (
        Client(target, ClientSecurity(tls_ca=authority.path, api_key="another")) as client,
        pytest.raises(CallError, match="not one of this server's"),
    ):
        client.generate("the prompt itself")
    (url,) = re.findall(r"listening url=(https://\S+)", process.log.read_text())
    reply = httpx.post(
        f"{url}/v1/completions",
        json={"prompt": "the prompt itself"},
        headers={"Authorization": "Bearer the-key-itself"},
        verify=ssl.create_default_context(cafile=str(authority.path)),
        trust_env=False,
    )
    assert reply.status_code == 200
    process.signal()
    assert process.exit_code() == 0
    log = process.log.read_text()
    assert log.count("request finished") == 2
    assert log.count("key=alice") >= 2
    for secret in ("the prompt itself", "the-key-itself", "another", "Hi!"):
        assert secret not in log, log


@pytest.mark.parametrize("flag", ["--tls-cert", "--api-keys"])
def test_damaged_files_of_access_are_a_config_error(
    start: Start, tmp_path: Path, flag: str
) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_text("junk")
    more = ("--tls-key", str(damaged)) if flag == "--tls-cert" else ()
    process = start("ready", flag, str(damaged), *more)
    assert process.exit_code() == 2
    assert str(damaged) in process.log.read_text().splitlines()[-1]
    assert not process.port_file.exists()


def test_requests_over_the_drain_timeout_are_aborted_with_a_terminal_event(start: Start) -> None:
    process = start("hold", "--drain-timeout-s", "0.2")
    with Client(process.target()) as client:
        client.wait_ready(LIMIT_S)
        stream = client.stream("x")
        assert next(stream).text == "a"
        process.signal()
        assert [d.finish_reason for d in stream] == [FinishReason.ABORT]
    assert process.exit_code() == 0


def test_a_second_signal_ends_the_draining(start: Start) -> None:
    process = start("hold", "--drain-timeout-s", "inf")
    with Client(process.target()) as client:
        client.wait_ready(LIMIT_S)
        stream = client.stream("x")
        assert next(stream).text == "a"
        process.signal()
        process.wait_health(NOT_SERVING)
        assert process.popen.poll() is None
        process.signal()
        assert [d.finish_reason for d in stream] == [FinishReason.ABORT]
    assert process.exit_code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_loading_although_a_library_is_stuck(
    start: Start, number: signal.Signals
) -> None:
    """BL-45: exit code 0, no traceback, and health never was SERVING."""
    process = start("stuck")
    process.wait_health(NOT_SERVING)
    process.signal(number)
    assert process.exit_code() == 0


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2, 0.3, 0.5, 0.8])
def test_a_signal_at_any_moment_of_the_start(start: Start, delay_s: float) -> None:
    """BL-45: before the handlers stand, the signal itself ends the process (143 in a shell)."""
    process = start("stuck")
    time.sleep(delay_s)
    process.signal()
    assert process.exit_code() in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("cls", "code"), [("BundleError", 2), ("ConfigError", 2), ("DeviceError", 1)]
)
def test_an_error_while_loading_ends_with_its_exit_code(start: Start, cls: str, code: int) -> None:
    process = start(f"broken:{cls}")
    assert process.exit_code() == code
    assert process.log.read_text().splitlines()[-1] == "om-serve: the reason"
    assert not process.port_file.exists()


def test_a_device_error_turns_the_health(start: Start) -> None:
    process = start("fault")
    with Client(process.target()) as client:
        client.wait_ready(LIMIT_S)
        (last,) = client.stream("x")
        assert last.finish_reason is FinishReason.ERROR
        process.wait_health(NOT_SERVING)
        assert "507899" in client.server_info().detail
    process.signal()
    assert process.exit_code() == 0


def test_a_port_file_that_is_a_folder_leaves_nothing_behind(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    process = start("ready", "--port-file", str(folder))
    assert process.exit_code() == 2
    assert f"cannot write port_file {folder}" in process.log.read_text()
    assert not folder.with_name("folder.partial").exists()


def test_a_port_file_that_cannot_be_written_is_a_config_error(start: Start) -> None:
    process = start("ready", "--port-file", "/nowhere/port")
    assert process.exit_code() == 2
    assert "cannot write port_file /nowhere/port" in process.log.read_text()
