"""A server without free file descriptors says so in a line, not in megabytes."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from server.http.accept_failures import PAUSE_S, AcceptFailures


class StoppedClock(asyncio.SelectorEventLoop):
    """A loop whose time the test sets."""

    now = 100.0

    def time(self) -> float:
        return self.now


class Exhausted(socket.socket):
    """A listener of a process that has no file descriptor left."""

    def accept(self) -> tuple[socket.socket, Any]:
        raise OSError(24, "Too many open files")


def test_connections_that_cannot_be_taken_are_told_of_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = StoppedClock()
    loop.set_exception_handler(AcceptFailures())
    with Exhausted() as listener:
        for now in (100.0, 100.0 + PAUSE_S / 2, 100.0 + PAUSE_S):
            loop.now = now
            loop._accept_connection(asyncio.Protocol, listener, backlog=50)  # type: ignore[attr-defined]
    loop.close()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "Too many open files; raise ulimit -n" in caplog.text
    assert "Traceback" not in caplog.text


def test_other_errors_of_the_loop_are_told_in_full(caplog: pytest.LogCaptureFixture) -> None:
    loop = StoppedClock()
    loop.set_exception_handler(AcceptFailures())
    loop.call_exception_handler({"message": "a task failed", "exception": ValueError("why")})
    loop.close()
    assert "ValueError: why" in caplog.text
