"""A call in a forked child of the test's process."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

import pytest

TIMEOUT_S = 30


def said_by_forked_child(call: Callable[[], object]) -> str:
    """What a call returned or raised in a forked child, as text; fails when it hangs."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: it is the point
        child = os.fork()
    if child == 0:
        _answer(call, writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        pytest.fail(f"the forked child ended with status {status}, -14 being a hang; {said!r}")
    return said


def _answer(call: Callable[[], object], writing: int) -> None:
    """In the child: write and end without the parent's clean-up; the alarm ends a hang."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(TIMEOUT_S)
    try:
        said = str(call())
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    os.write(writing, said.encode())
    os._exit(0)
