from __future__ import annotations

import pytest

from omruntime.worker.launch import describe_exit


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with exit code 0"),
        (7, "ended with exit code 7"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (-40, "was killed by signal 40"),
    ],
)
def test_an_exit_is_described(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_kill_that_nobody_sent_points_to_the_kernels_log() -> None:
    assert describe_exit(-9).startswith("was killed by signal 9 (SIGKILL)")
    assert "memory" in describe_exit(-9)
