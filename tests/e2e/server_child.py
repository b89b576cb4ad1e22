"""`om-serve` as a child process of a test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from demo.processes import ROOT, tool_command
from server.client import Client

READY_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.02


class ServerChild:
    """One server over one bundle; its port and log lie in `folder`."""

    def __init__(self, bundle: Path, folder: Path, options: Sequence[str] = ()) -> None:
        self._bundle = bundle
        self._options = options
        self._port_file = folder / "port"
        self.log = folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        """Where it serves; the port must be open."""
        return f"127.0.0.1:{self._port_file.read_text().strip()}"

    @property
    def url(self) -> str:
        """Where it serves HTTP; the options must ask for it, and the port must be open."""
        found = re.search(r"url=(http://\S+)", self.log.read_text())
        assert found is not None, self.log.read_text()
        return found[1]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, cwd: Path = ROOT) -> None:
        """Start the process; it is not ready yet."""
        self._port_file.unlink(missing_ok=True)
        port = ["--grpc-port", "0", "--port-file", str(self._port_file)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OMSERVE_")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*tool_command("server.cli"), str(self._bundle), *port, *self._options],
                cwd=cwd,
                env=environment | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until health says SERVING; fails with the log when the process ends before."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._port_file.exists():
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(_POLL_S)
        with Client(self.target) as client:
            client.wait_ready(READY_TIMEOUT_S)

    def signal(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code; fails with the log when the process does not end."""
        assert self.process is not None
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running; log:\n{self.log.read_text()}") from None

    @contextmanager
    def running(self, cwd: Path = ROOT) -> Iterator[str]:
        """Serve inside of the `with`; yields the target, stops by SIGTERM."""
        self.start(cwd)
        try:
            self.wait_ready()
            yield self.target
            self.signal()
            assert self.wait() == 0, self.log.read_text()
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process if it still runs."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
