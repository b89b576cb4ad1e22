from __future__ import annotations

import asyncio

import pytest

from omruntime.errors import NotReadyError, ShuttingDownError
from server.lifecycle import Lifecycle, ServerState
from tests.server.wire_fakes import FakeGenerator


def test_states_and_what_they_allow() -> None:
    lifecycle, generator = Lifecycle(), FakeGenerator()
    states: list[ServerState] = []
    lifecycle.listeners.append(states.append)
    with pytest.raises(NotReadyError, match="starting"):
        lifecycle.require_serving()
    lifecycle.begin_serving(generator)
    assert lifecycle.require_serving() is generator
    lifecycle.begin_draining()
    with pytest.raises(ShuttingDownError):
        lifecycle.require_serving()
    assert lifecycle.require_loaded() is generator
    assert states == [ServerState.SERVING, ServerState.DRAINING]


def test_a_device_that_is_back_is_served_again() -> None:
    lifecycle = Lifecycle()
    states: list[ServerState] = []
    lifecycle.listeners.append(states.append)
    lifecycle.recover()
    lifecycle.begin_serving(FakeGenerator())
    lifecycle.fail("killed")
    assert lifecycle.detail == "killed"
    lifecycle.recover()
    assert lifecycle.detail == ""
    assert states == [ServerState.SERVING, ServerState.FAILED, ServerState.SERVING]
    lifecycle.begin_draining()
    lifecycle.recover()
    assert lifecycle.state is ServerState.DRAINING


def test_draining_beats_loading_and_failing() -> None:
    lifecycle = Lifecycle()
    lifecycle.begin_draining()
    lifecycle.begin_serving(FakeGenerator())
    lifecycle.fail("device")
    assert lifecycle.state is ServerState.DRAINING


def test_idle_when_the_last_request_ends() -> None:
    async def run() -> None:
        lifecycle = Lifecycle()
        await lifecycle.wait_idle()
        with lifecycle.running():
            idle = asyncio.ensure_future(lifecycle.wait_idle())
            with lifecycle.running():
                pass
            await asyncio.sleep(0)
            assert not idle.done()
            assert lifecycle.num_running == 1
        await idle

    asyncio.run(run())
