"""What is simulated: the card and how slow it is."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """The hardware.

    Attributes:
        num_devices: Chips on the card; 2 on a 300I Duo.
        memory_bytes: Memory of each chip.
        max_streams, max_events: Of each chip.
        num_threads: Threads of the library that runs the programs.

    Source: CANN runtime API reference, stream and event management (1024 streams, 1023 events
    on 310P).
    """

    soc: str = "Ascend310P3"
    num_devices: int = 1
    memory_bytes: int = GIB
    max_streams: int = 1024
    max_events: int = 1023
    num_threads: int = 1


class Pause(Protocol):
    """Lets a call take its time; a test may pass its own."""

    def __call__(self, seconds: float, holds_gil: bool) -> None:
        """Return after `seconds`; other Python threads stand still when `holds_gil`."""
        ...


def pause(seconds: float, holds_gil: bool) -> None:
    """Sleep, with or without the GIL."""
    if seconds <= 0:
        return
    if holds_gil:
        # PyDLL keeps the GIL during the call, as pyACL's wrappers do.
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    else:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds that calls take, beyond what the simulation itself costs.

    Attributes:
        call_s: By a call's name, such as `mdl.load_from_file`; the GIL is held unless the real
            call releases it.
        copy_s: To run one copy: with the GIL for `memcpy`, without it at a synchronize.
        execute_s: To run a program: with the GIL in `execute`, without it at a synchronize.
    """

    call_s: Mapping[str, float] = field(default_factory=dict)
    copy_s: float = 0.0
    execute_s: float = 0.0
    pause: Pause = pause
