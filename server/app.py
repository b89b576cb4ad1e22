"""The serving process: load, serve, drain, stop. Wiring and signals only.

The port opens before the bundle is loaded, so that probes see NOT_SERVING instead of a refused
connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from omruntime.errors import ConfigError
from omruntime.limits import longest_served
from omruntime.settings import MIB, EngineSettings
from server.control.draining import refuse_new
from server.grpc_server import start_grpc_server
from server.lifecycle import Lifecycle
from server.loading import in_daemon_thread, start_engine, stop_engine
from server.logs import set_up_logging
from server.overload import watch_overload
from server.seams import EngineLike, FrontEnd, TextGeneratorLike, TracesLike
from server.security.access import Access, open_access
from server.settings import Settings

logger = logging.getLogger(__name__)

# What a loading engine gets to notice that it shall stop; the whole exit takes about 2 s.
LOAD_STOP_S = 1.0
# What a running engine gets for the step in flight and for releasing the device.
ENGINE_STOP_S = 10.0
# What aborted requests get to send their terminal events, and RPCs to send their status.
LAST_EVENTS_S = 2.0
LAST_STATUS_S = 0.5
# What the last spans get to reach their collector.
LAST_SPANS_S = 2.0


StartHttp = Callable[[Settings, Lifecycle, EngineLike, Access], Awaitable[FrontEnd]]
"""Opens the HTTP port."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the process is made of; tests put fakes here.

    Attributes:
        open_engine: Settles manifest and limits; quick.
        open_generator: Opens the text layer over an engine that is not loaded yet.
        start_http: None without a gateway.
        open_traces: Opens the way to a collector, by its address and the served name; None
            without traces.
    """

    open_engine: Callable[[Path, EngineSettings], EngineLike]
    open_generator: Callable[[Path, EngineLike], TextGeneratorLike]
    start_http: StartHttp | None = None
    open_traces: Callable[[str, str], TracesLike] | None = None


class StopSignals:
    """SIGTERM, SIGINT and SIGHUP alike: the first drains, the second ends the draining.

    By itself SIGHUP, which a closed terminal sends, and people who want files read again, would
    end the process at once; behind `nohup` it stays ignored.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._receive, number)

    def _receive(self, number: signal.Signals) -> None:
        logger.info("signal received signal=%s", number.name)
        (self.second if self.first.is_set() else self.first).set()


async def serve(settings: Settings, parts: Parts) -> bool:
    """Serve until a signal.

    Returns:
        Whether everything has ended. False: the engine's thread is still deep in a library, so
        the caller must end the process without waiting for threads.

    Raises:
        ConfigError, BundleError: Settings, bundle or machine do not fit.
        DeviceError: The device failed while loading.
    """
    stop = StopSignals()
    engine = parts.open_engine(settings.bundle, settings.engine)
    lifecycle = Lifecycle()
    access = open_access(settings, lifecycle)
    async with (
        _tracing(settings, parts, lifecycle, engine),
        _listening(settings, parts, lifecycle, (engine, access)) as port,
    ):
        _announce_port(settings, port)
        generator = parts.open_generator(settings.bundle, engine)
        _watch_device(engine, lifecycle)
        if not await start_engine(engine, lifecycle, stop.first):
            logger.info("stopping while loading")
            return await stop_engine(engine, LOAD_STOP_S)
        _announce_limits(engine)
        lifecycle.begin_serving(generator)
        label = "a SIMULATION " if settings.engine.is_simulated else ""
        logger.info("serving %saddress=%s", label, settings.address(port))
        overload = asyncio.create_task(watch_overload(engine, lifecycle))
        await stop.first.wait()
        overload.cancel()
        return await _drain(settings, lifecycle, engine, stop.second)


@asynccontextmanager
async def _tracing(
    settings: Settings, parts: Parts, lifecycle: Lifecycle, engine: EngineLike
) -> AsyncIterator[None]:
    """Have each request traced, and send the last spans at the end."""
    if parts.open_traces is None:
        yield
        return
    assert settings.otlp_endpoint is not None, "there is nowhere to send traces"
    model = settings.served_model_name or engine.manifest.model.name
    traces = parts.open_traces(settings.otlp_endpoint, model)
    lifecycle.observers.append(traces)
    try:
        yield
    finally:
        await asyncio.wait((in_daemon_thread("traces", traces.close),), timeout=LAST_SPANS_S)


@asynccontextmanager
async def _listening(
    settings: Settings, parts: Parts, lifecycle: Lifecycle, served: tuple[EngineLike, Access]
) -> AsyncIterator[int]:
    """Open all ports and close them at the end; gives the gRPC port."""
    engine, access = served
    server, port = await start_grpc_server(settings, lifecycle, engine, access)
    http: FrontEnd | None = None
    try:
        if parts.start_http is not None:
            http = await parts.start_http(settings, lifecycle, engine, access)
            scheme = "http" if access.tls is None else "https"
            logger.info("listening url=%s://%s", scheme, settings.address(http.port))
        yield port
    finally:
        # The grace is for requests that are sending their last words, and ends with those.
        if http is not None:
            await http.stop(LAST_STATUS_S)
        await server.stop(grace=LAST_STATUS_S)
        _remove_port_file(settings)


async def _drain(
    settings: Settings, lifecycle: Lifecycle, engine: EngineLike, hurry: asyncio.Event
) -> bool:
    """Let running requests finish; abort them at the time limit or when `hurry` is set."""
    await refuse_new(lifecycle, engine, settings.drain_delay_s, hurry)
    idle = asyncio.create_task(lifecycle.wait_idle())
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait(
        (idle, hurried), timeout=settings.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED
    )
    hurried.cancel()
    if not idle.done():
        logger.warning("aborting num_running=%d", lifecycle.num_running)
    # Ends what is live with a last delta each.
    ended = await stop_engine(engine, ENGINE_STOP_S)
    await asyncio.wait((idle,), timeout=LAST_EVENTS_S)
    idle.cancel()
    logger.info("drained")
    return ended


def _watch_device(engine: EngineLike, lifecycle: Lifecycle) -> None:
    loop = asyncio.get_running_loop()

    def on_device_error(text: str) -> None:
        logger.error("device error, health is NOT_SERVING: %s", text)
        with suppress(RuntimeError):  # the loop is closed: the server stops anyway
            loop.call_soon_threadsafe(lifecycle.fail, text)

    def on_recovered() -> None:
        logger.info("the device is back, health is SERVING again")
        with suppress(RuntimeError):  # as above
            loop.call_soon_threadsafe(lifecycle.recover)

    engine.on_device_error = on_device_error
    engine.on_recovered = on_recovered


def _announce_port(settings: Settings, port: int) -> None:
    logger.info("listening address=%s", settings.address(port))
    path = settings.port_file
    if path is None:
        return
    try:
        # By rename, so that a reader never sees half a number.
        partial = path.with_name(path.name + ".partial")
        try:
            partial.write_text(f"{port}\n")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a path such as / has no name
        raise ConfigError(f"cannot write port_file {path}: {error}") from error


def _announce_limits(engine: EngineLike) -> None:
    limits, kv = engine.limits, engine.manifest.kv
    logger.info(
        "limits kv_blocks=%d kv_mib=%d max_num_seqs=%d longest_sequence=%d",
        limits.num_blocks,
        limits.num_blocks * kv.bytes_per_block // MIB,
        limits.max_num_seqs,
        longest_served(limits, engine.manifest),
    )


def _remove_port_file(settings: Settings) -> None:
    if settings.port_file is not None:
        with suppress(OSError):
            settings.port_file.unlink(missing_ok=True)


def run_server(settings: Settings, parts: Parts) -> int:
    """Set up logging and serve until a signal; returns exit code 0, or ends the process with it.

    Raises:
        ConfigError, BundleError, DeviceError: As `serve`.
    """
    set_up_logging(settings.log_level)
    if not asyncio.run(serve(settings, parts)):
        # Waiting for a thread that is deep in a library could take minutes.
        logging.shutdown()
        os._exit(0)
    return 0
