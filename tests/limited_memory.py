"""Commands with a limit on their memory, as `ulimit -v` sets it."""

from __future__ import annotations

from collections.abc import Sequence


def limited_memory(command: Sequence[str], limit_bytes: int) -> list[str]:
    """The same command with so much address space.

    By a shell and not by preexec_fn: that forks, and gRPC, whose threads a fork starts anew in the
    child, aborts it now and then.
    """
    return ["sh", "-c", f'ulimit -v {limit_bytes >> 10}; exec "$@"', "sh", *command]
