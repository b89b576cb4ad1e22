"""Fault injection: a device that fails when it is told to, for tests of what follows.

A step is what appends to the KV pool, so warm-up runs do not count; steps, runs of warm-up and
allocations are numbered from 1 in each process. Faults are `KIND@NUMBER` or `KIND=VALUE@NUMBER`,
with commas between them:

    error@3          step 3 fails with a DeviceError
    slow=2.5@3       step 3 takes 2.5 s more
    hang@3           step 3 never ends, and holds Python's global lock as a driver may
    kill@3           step 3 kills the process by SIGKILL
    exit=7@3         step 3 ends the process with exit code 7
    nan@3            the keys and values that step 3 appends are NaN
    clock=3600@3     from step 3 on the process's clocks are 3600 s ahead (or behind)
    no-memory@2      allocation 2 is refused

With a `w` before the number, as in `kill@w3`, the fault comes with a run of warm-up instead: error,
slow, hang, kill and exit alone.

After a restart the new device process has none of them, unless the text begins with `always:`.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omruntime.device.base import (
    Device,
    DeviceBuffer,
    DeviceTensor,
    MemoryInfo,
    MemoryItem,
    Program,
)
from omruntime.errors import ConfigError, DeviceError, OutOfDeviceMemoryError
from omruntime.manifest import ProgramSpec

logger = logging.getLogger(__name__)

ALWAYS = "always:"


class FaultKind(Enum):
    """What can be made to go wrong."""

    ERROR = "error"
    SLOW = "slow"
    HANG = "hang"
    KILL = "kill"
    EXIT = "exit"
    NAN = "nan"
    CLOCK = "clock"
    NO_MEMORY = "no-memory"


_IN_WARM_UP = {FaultKind.ERROR, FaultKind.SLOW, FaultKind.HANG, FaultKind.KILL, FaultKind.EXIT}
_WITH_VALUE = {FaultKind.SLOW, FaultKind.EXIT, FaultKind.CLOCK}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        number: Of the step, or of the allocation, from 1.
        value: Seconds or exit code; 0 where the kind has none.
        in_warm_up: Whether `number` counts runs of warm-up.
    """

    kind: FaultKind
    number: int
    value: float = 0.0
    in_warm_up: bool = False


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read a list of faults.

    Raises:
        ConfigError: It is none; the message says what was wanted.
    """
    return tuple(_parse(part) for part in text.removeprefix(ALWAYS).split(","))


def _parse(text: str) -> Fault:
    what, at, number = text.strip().partition("@")
    name, equals, value = what.partition("=")
    try:
        kind = FaultKind(name)
        in_warm_up = number.startswith("w")
        count = int(number.removeprefix("w"))
        fault = Fault(kind, count, float(value) if equals else 0.0, in_warm_up)
        if in_warm_up and kind not in _IN_WARM_UP:
            raise ValueError
        if bool(equals) != (kind in _WITH_VALUE) or not at or fault.number < 1:
            raise ValueError
        if not math.isfinite(fault.value) or (kind is FaultKind.SLOW and fault.value < 0):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"inject_fault has {text!r}, wanted one of error@N, slow=SECONDS@N, hang@N, kill@N, "
            f"exit=CODE@N, nan@N, clock=SECONDS@N, no-memory@N with N from 1, or wN in warm-up"
        ) from None
    return fault


class FaultyDevice:
    """Another device with faults; all else is that device's."""

    def __init__(self, device: Device, faults: tuple[Fault, ...]) -> None:
        self._device = device
        self._faults = faults
        self._num_steps = 0
        self._num_allocs = 0
        self._num_warm_up_runs = 0
        self._has_appended = False
        self._error: DeviceError | None = None
        logger.warning("FAULTS ARE INJECTED into %s: %s", device.name, faults)

    @property
    def name(self) -> str:
        """See `Device.name`."""
        return self._device.name

    @property
    def soc(self) -> str:
        """See `Device.soc`."""
        return self._device.soc

    @property
    def alignment(self) -> int:
        """See `Device.alignment`."""
        return self._device.alignment

    @property
    def prepares_buckets(self) -> bool:
        """See `Device.prepares_buckets`."""
        return self._device.prepares_buckets

    @property
    def runs_asynchronously(self) -> bool:
        """See `Device.runs_asynchronously`."""
        return self._device.runs_asynchronously

    def alloc(self, nbytes: int) -> DeviceBuffer:
        """See `Device.alloc`."""
        self._num_allocs += 1
        if Fault(FaultKind.NO_MEMORY, self._num_allocs) in self._faults:
            raise OutOfDeviceMemoryError(
                f"injected: {self.name} refuses allocation {self._num_allocs} of {nbytes} bytes"
            )
        return self._device.alloc(nbytes)

    def reserved_bytes(self, nbytes: int) -> int:
        """See `Device.reserved_bytes`."""
        return self._device.reserved_bytes(nbytes)

    def free(self, buffer: DeviceBuffer) -> None:
        """See `Device.free`."""
        self._device.free(buffer)

    def host_array(self, nbytes: int) -> NDArray[np.uint8]:
        """See `Device.host_array`."""
        return self._device.host_array(nbytes)

    def copy_in(self, target: DeviceTensor, source: NDArray[Any]) -> None:
        """See `Device.copy_in`."""
        self._device.copy_in(target, source)

    def copy_out(self, source: DeviceTensor) -> NDArray[Any]:
        """See `Device.copy_out`."""
        return self._device.copy_out(source)

    def copy_chunks(
        self,
        target: DeviceTensor,
        target_chunks: NDArray[np.int64],
        source: DeviceTensor,
        source_chunks: NDArray[np.int64],
        chunk_bytes: int,
    ) -> None:
        """See `Device.copy_chunks`; a copy between two buffers is a step's append."""
        if target.buffer is not source.buffer:
            self._num_steps += 1
            self._has_appended = True
            self._inject_all(self._num_steps, source)
        self._device.copy_chunks(target, target_chunks, source, source_chunks, chunk_bytes)

    def clear(self, target: DeviceTensor) -> None:
        """See `Device.clear`."""
        self._device.clear(target)

    def plan_programs(self, specs: Iterable[ProgramSpec], bundle: Path) -> tuple[MemoryItem, ...]:
        """See `Device.plan_programs`."""
        return self._device.plan_programs(specs, bundle)

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """See `Device.load_program`."""
        return self._device.load_program(spec, bundle)

    def synchronize(self) -> None:
        """See `Device.synchronize`; a wait for what appended nothing is a run of warm-up."""
        self._device.synchronize()
        if not self._has_appended:
            self._num_warm_up_runs += 1
            self._inject_all(self._num_warm_up_runs, None)
        self._has_appended = False
        error, self._error = self._error, None
        if error is not None:
            raise error

    def memory_info(self) -> MemoryInfo:
        """See `Device.memory_info`."""
        return self._device.memory_info()

    def close(self) -> None:
        """See `Device.close`."""
        self._device.close()

    def _inject_all(self, number: int, new_kv: DeviceTensor | None) -> None:
        """Inject what is due with a step, or without `new_kv` with a run of warm-up."""
        for fault in self._faults:
            if fault.kind is FaultKind.NO_MEMORY or fault.number != number:
                continue
            if fault.in_warm_up == (new_kv is None):
                self._inject(fault, new_kv)

    def _inject(self, fault: Fault, new_kv: DeviceTensor | None) -> None:
        logger.warning("injecting %s", fault)
        match fault.kind:
            case FaultKind.ERROR:
                # As with a card: what was queued fails when it is waited for.
                self._error = DeviceError(f"injected: {self.name} failed in step {fault.number}")
            case FaultKind.SLOW:
                time.sleep(fault.value)
            case FaultKind.HANG:
                _hang()
            case FaultKind.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.EXIT:
                os._exit(int(fault.value))
            case FaultKind.NAN:
                assert new_kv is not None, "a run of warm-up appends nothing"
                self._device.copy_in(new_kv, np.full(new_kv.shape, np.nan, new_kv.dtype))
                self._device.synchronize()
            case FaultKind.CLOCK:
                _shift_clocks(fault.value)


def _hang() -> None:
    library = ctypes.PyDLL(None)  # keeps the global lock during calls
    while True:
        library.sleep(1000)


def _shift_clocks(by_s: float) -> None:
    for name in ("monotonic", "time"):
        real = getattr(time, name)
        setattr(time, name, lambda real=real: real() + by_s)


def with_faults(device: Device, text: str | None) -> Device:
    """A device with the faults that the settings ask for; itself without any."""
    return device if text is None else FaultyDevice(device, parse_faults(text))
