"""Choosing an engine, and starting and stopping it beside a running event loop.

The latter block for long inside libraries, so each runs in a daemon thread: the process must be
able to end while such a thread is stuck.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from omruntime.async_engine import AsyncEngine
from omruntime.device import require_device_name
from omruntime.device.faults import parse_faults
from omruntime.settings import EngineSettings
from omruntime.worker.worker_engine import WorkerEngine
from server.lifecycle import Lifecycle
from server.seams import EngineLike

logger = logging.getLogger(__name__)


def open_engine(bundle: Path, settings: EngineSettings) -> EngineLike:
    """The engine that the settings ask for, with the device in this process or in its own.

    Reads the manifest; whatever is wrong with settings or bundle by themselves is said here,
    before anything is opened.

    Raises:
        BundleError: The manifest is damaged or its buckets do not cover every step.
        ConfigError: A setting is wrong, or passes what the bundle was built for.
    """
    require_device_name(settings.device)
    if settings.inject_fault is not None:
        parse_faults(settings.inject_fault)
    open_ = WorkerEngine.open if settings.is_isolated else AsyncEngine.open
    return open_(bundle, settings)


async def start_engine(engine: EngineLike, lifecycle: Lifecycle, stop: asyncio.Event) -> bool:
    """Load and warm up; False when `stop` was set before the end.

    Raises:
        OmError: Loading or warming up failed.
    """

    def report(stage: str) -> None:
        logger.info("loading stage=%r", stage)
        lifecycle.detail = stage

    started = in_daemon_thread("load", lambda: engine.start(report))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not started.done():
        started.cancel()
        return False
    started.result()
    return not stop.is_set()


async def stop_engine(engine: EngineLike, timeout_s: float) -> bool:
    """Stop an engine, loaded or still loading; False when it does not end in time."""
    stopped = in_daemon_thread("stop", engine.stop)
    done, _ = await asyncio.wait((stopped,), timeout=timeout_s)
    if done:
        stopped.result()
    else:
        stopped.cancel()
    return bool(done)


def in_daemon_thread(name: str, work: Callable[[], None]) -> asyncio.Future[None]:
    """Run something that may block for long; the process can end while it does."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as caught:  # raised again where the future is awaited
            error = caught
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
