"""The device process: owns the device and runs the engine, told by messages.

The main thread runs the engine; a second one receives. Whatever happens to the serving process,
this one ends with it.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import logging
import os
import queue
import socket
import sys
import threading

from omruntime.buckets import Bucket
from omruntime.costs.warm_up import describe_run
from omruntime.device.faults import ALWAYS
from omruntime.engine import Engine
from omruntime.errors import BundleError, OmError, ShuttingDownError
from omruntime.settings import EngineSettings
from omruntime.worker.channel import Channel
from omruntime.worker.engine_loop import EngineLoop, Prepared
from omruntime.worker.isolation import end_with_parent, ignore_stop_signals
from omruntime.worker.log_lines import send_logs
from omruntime.worker.messages import (
    CarriedError,
    LoadFailed,
    LogFrom,
    Progress,
    Ready,
    Start,
    Stop,
    ToWorker,
)

logger = logging.getLogger(__name__)

# People wait for a restart; a card, whose runs prepare buckets, runs all of them in that time.
RESTART_WARM_UP_S = 2.0
EXIT_FAILED = 1
EXIT_ORPHANED = 3


def main(fd: int, parent_pid: int) -> None:
    """Serve the parent until it says stop or ends; ends the process.

    Args:
        fd: The inherited end of the socket pair.
        parent_pid: Who started this process.
    """
    ignore_stop_signals()
    end_with_parent(parent_pid)
    # Native crashes, and the SIGABRT that ends a hang, print every thread's stack.
    faulthandler.enable()
    os.set_inheritable(fd, False)
    channel = Channel(socket.socket(fileno=fd))
    start = channel.receive()
    if not isinstance(start, Start):
        sys.exit(EXIT_ORPHANED)
    send_logs(channel, start.log_level)
    try:
        sys.exit(DeviceProcess(channel, start).run())
    except OSError:
        logger.exception("the channel to the serving process failed")
        sys.exit(EXIT_ORPHANED)


class DeviceProcess:
    """Loads, then runs the engine's loop."""

    def __init__(self, channel: Channel, start: Start) -> None:
        self._channel = channel
        self._start = start
        self._commands: queue.SimpleQueue[ToWorker | Prepared] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def run(self) -> int:
        """Load, serve, release; returns the exit code.

        Raises:
            OSError: The serving process is gone.
        """
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        try:
            engine = self._open_and_warm_up()
        except Exception as error:
            if not isinstance(error, OmError):
                logger.exception("the device process failed while loading")
            self._channel.send(LoadFailed(CarriedError.of(error)))
            return EXIT_FAILED
        self._channel.send(Ready())
        loop = EngineLoop(engine, self._channel.send, self._commands)
        try:
            loop.run()
        except Exception:  # a bug; the serving process ends the requests and starts anew
            logger.exception("the engine's loop ended")
            return EXIT_FAILED
        loop.end_all()
        engine.close()
        return 0

    def _open_and_warm_up(self) -> Engine:
        engine = Engine.open(self._start.bundle, _settings_of(self._start), self._report_stage)
        try:
            self._require_same_bundle(engine)
            engine.warm_up(
                self._report_warm_up, RESTART_WARM_UP_S if self._start.is_restart else None
            )
        except BaseException:
            engine.close()
            raise
        return engine

    def _require_same_bundle(self, engine: Engine) -> None:
        if engine.manifest.digest() != self._start.manifest_digest:
            raise BundleError(
                f"the bundle in {self._start.bundle} is another one than when the server was "
                f"started; restart the server to serve it"
            )

    def _report_stage(self, line: str) -> None:
        self._channel.send(Progress(line, runs=False))

    def _report_warm_up(self, number: int, count: int, bucket: Bucket) -> None:
        if self._stopping.is_set():
            raise ShuttingDownError("stopped while warming up")
        self._channel.send(Progress(describe_run(number, count, bucket), runs=True))

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            assert isinstance(message, ToWorker)
            if isinstance(message, LogFrom):
                logging.getLogger().setLevel(message.level)
                continue
            if isinstance(message, Stop):
                self._stopping.set()
            self._commands.put(message)
        # The serving process is gone: nobody reads answers any more.
        os._exit(EXIT_ORPHANED)


def _settings_of(start: Start) -> EngineSettings:
    """The settings of this process: injected faults are for the first one alone."""
    faults = start.settings.inject_fault
    if faults is None or not start.is_restart or faults.startswith(ALWAYS):
        return start.settings
    return dataclasses.replace(start.settings, inject_fault=None)
