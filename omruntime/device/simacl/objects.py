"""Devices, contexts, streams, events and queued work: what they are, not what calls do.

Work is only noted when it is submitted and runs when a program waits for it, so that whatever
does not wait sees stale memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from omruntime.device.simacl.memory import DeviceMemory
from omruntime.device.simacl.spans import Span, any_overlap


@dataclass(eq=False, slots=True)
class SimulatedDevice:
    """One chip.

    Attributes:
        num_set: `set_device` calls not yet undone.
        primary: The context that `set_device` retains; None while the device is not set.
        num_recorded_events: Event resources in use; an event takes one when it is recorded.
    """

    device_id: int
    memory: DeviceMemory
    num_set: int = 0
    primary: int | None = None
    num_streams: int = 0
    num_recorded_events: int = 0


@dataclass(eq=False, slots=True)
class Context:
    """What streams, events and loaded models belong to."""

    device: SimulatedDevice
    is_primary: bool
    default_stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        """Make the default stream."""
        self.default_stream = Stream(self)


@dataclass(eq=False, slots=True)
class Task:
    """One piece of work on a stream.

    Attributes:
        what: For messages.
        reads, writes: The memory it touches.
        model_id, datasets, work: Of a run: its model, dataset handles and work memory.
        delay_s: What is left of the time that it takes.
        holds_lock: Whether nobody else may change the state meanwhile.
    """

    what: str
    run: Callable[[], None]
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()
    model_id: int | None = None
    datasets: tuple[int, ...] = ()
    work: Span | None = None
    delay_s: float = 0.0
    holds_lock: bool = True

    def touches(self, span: Span) -> bool:
        """Whether it reads or writes any of the memory."""
        return any(span.overlaps(own) for own in (*self.reads, *self.writes))

    def conflicts(self, other: Task) -> bool:
        """Whether the order of the two decides what the memory holds."""
        return any_overlap(self.writes, (*other.reads, *other.writes)) or any_overlap(
            self.reads, other.writes
        )


@dataclass(eq=False, slots=True)
class Stream:
    """Work in order.

    Attributes:
        num_submitted, num_completed: Pieces of work since it was made.
        waits_at_once: Whether synchronizing it returns without waiting (PERSISTENT,
            DEVICE_USE_ONLY).
        report_thread: The thread that runs its callbacks.
        error: Code and text of the last failed work that no synchronize has reported.
        behind: Up to which position of other streams their work runs before what is submitted
            next, for it waits for their events.
    """

    context: Context
    pending: deque[Task] = field(default_factory=deque)
    num_submitted: int = 0
    num_completed: int = 0
    waits_at_once: bool = False
    report_thread: int | None = None
    error: tuple[int, str] | None = None
    behind: dict[Stream, int] = field(default_factory=dict)

    def submit(self, task: Task) -> None:
        """Queue a piece of work."""
        self.pending.append(task)
        self.num_submitted += 1

    def wait_behind(self, positions: Mapping[Stream, int]) -> None:
        """Note that what is submitted next runs behind these positions of streams."""
        for stream, position in positions.items():
            self.behind[stream] = max(position, self.behind.get(stream, 0))


@dataclass(eq=False, slots=True)
class Report:
    """One callback that is due."""

    call: Callable[[], None]
    is_done: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False, slots=True)
class Event:
    """A mark in a stream.

    Attributes:
        stream, position: Where it was recorded last; None before.
        behind: What ran before it then: positions by stream, its own stream included.
        can_reset: Whether `reset_event` takes it.
        has_time: Whether `event_elapsed_time` takes it.
    """

    context: Context
    can_reset: bool = False
    has_time: bool = True
    stream: Stream | None = None
    position: int = 0
    behind: Mapping[Stream, int] = field(default_factory=dict)
    reached_at: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the stream has come past the mark."""
        return self.stream is None or self.stream.num_completed >= self.position
