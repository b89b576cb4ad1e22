"""`om-serve` as a child process: start, wait until it serves, stop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from demo.processes import ROOT, tool_command
from server.client import AsyncClient

# A load plus a warm-up run of every bucket; minutes on a busy machine.
READY_TIMEOUT_S = 600.0
# More than the server's own drain limit.
STOP_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
_POLL_S = 0.05


@asynccontextmanager
async def running_server(bundle: Path, log: Path, *flags: str) -> AsyncIterator[str]:
    """Serve a bundle on a free loopback port inside of the `with`; yields the target.

    Raises:
        RuntimeError: The server ended before it served, or did not stop cleanly.
    """
    with tempfile.TemporaryDirectory() as folder, log.open("w") as output:
        port_file = Path(folder) / "port"
        options = ["--grpc-port", "0", "--port-file", str(port_file), *flags]
        # A session of its own: Ctrl-C reaches this process, which then stops the server.
        server = subprocess.Popen(
            [*tool_command("server.cli"), str(bundle), *options],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("OMSERVE_")},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield await _wait_ready(server, port_file)
            await _stop(server)
        finally:
            _end(server)


async def _wait_ready(server: subprocess.Popen[bytes], port_file: Path) -> str:
    ready = asyncio.create_task(_target_when_ready(port_file))
    ended = asyncio.create_task(_exit_code(server))
    try:
        await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise RuntimeError(f"om-serve ended with exit code {ended.result()} while starting")
        return ready.result()
    finally:
        ready.cancel()
        ended.cancel()


async def _target_when_ready(port_file: Path) -> str:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while not port_file.exists():
            await asyncio.sleep(_POLL_S)
        target = f"127.0.0.1:{port_file.read_text().strip()}"
        async with AsyncClient(target) as client:
            await client.wait_ready(READY_TIMEOUT_S)
    return target


async def _exit_code(server: subprocess.Popen[bytes]) -> int:
    """Wait for the end; by polling, so that no cancellation can lose the process."""
    while (code := server.poll()) is None:
        await asyncio.sleep(_POLL_S)
    return code


async def _stop(server: subprocess.Popen[bytes]) -> None:
    """Drain and wait.

    Raises:
        RuntimeError: The server did not end with exit code 0.
    """
    server.terminate()
    async with asyncio.timeout(STOP_TIMEOUT_S):
        code = await _exit_code(server)
    if code != 0:
        raise RuntimeError(f"om-serve ended with exit code {code} after SIGTERM")


def _end(server: subprocess.Popen[bytes]) -> None:
    """End a server that still runs, politely at first."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
