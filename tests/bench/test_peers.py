"""What a peer is asked, and which of its answers count."""

from __future__ import annotations

from contextlib import closing

import pytest

from bench.peers.loaded import Loaded
from bench.peers.peer import Peer
from bench.workloads import SizedWorkload
from omruntime.errors import CallError
from server.terminal.bench.targets.target import Target
from tests.server.terminal.bench.scripted_target import ScriptedTarget

THREE = ((1, 2), (3,), (4,))


def peer_of(target: ScriptedTarget) -> Peer:
    async def opened() -> Target:
        return target

    return Loaded("peer", opened)


def test_as_many_at_a_time_as_the_workload_says() -> None:
    target = ScriptedTarget()
    with closing(peer_of(target)) as peer:
        run = peer.run(SizedWorkload("W", 2, THREE, (2, 2, 2)))
    assert sorted(target.histories) == sorted((prompt,) for prompt in THREE)
    assert (target.most_live, len(run.ttft_s)) == (2, 3)
    assert 0 < max(run.ttft_s) <= run.seconds


def test_a_short_answer_counts_for_no_speed() -> None:
    """Two tokens come where four were asked for."""
    with (
        closing(peer_of(ScriptedTarget())) as peer,
        pytest.raises(CallError, match="peer: got 2 tokens, wanted 4 tokens"),
    ):
        peer.run(SizedWorkload("W", 1, THREE, (2, 4, 2)))
