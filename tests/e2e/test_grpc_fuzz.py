from __future__ import annotations

from pathlib import Path

from tests.fuzz_grpc import SERVER_OPTIONS, fuzz
from tests.toy_server import toy_server


def test_no_message_ends_a_call_unexpectedly_or_leaves_anything(tmp_path: Path) -> None:
    """Of every RPC of the port; `make fuzz-grpc` sends a hundred times as many."""
    with toy_server(tmp_path, SERVER_OPTIONS) as child:
        tally = fuzz(child, count=100, seed=7)
    assert tally.faults == []
    # Both ends are reached, or the messages would test nothing.
    assert min(tally.codes["OK"], tally.codes["INVALID_ARGUMENT"]) > 300
