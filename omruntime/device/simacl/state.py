"""State: all that one simulated process holds.

Owns the tables and what each thread has current. The calls of the `acl` module stand in the
files beside and take the state as their first argument; `surface.py` binds them.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import SimpleQueue
from typing import TypeAlias

from omruntime.device.simacl.card import Delays, SimulatedCard
from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.handles import HandleTable
from omruntime.device.simacl.loaded_model import LoadedModel
from omruntime.device.simacl.memory import AddressSpace, DeviceMemory
from omruntime.device.simacl.objects import Context, Report, SimulatedDevice, Stream, Task
from omruntime.device.simacl.spans import Span

Calls: TypeAlias = "Mapping[str, Callable[..., object]]"
"""Functions by name; the first argument is the state, the others are as parsed."""


class _ThreadState(threading.local):
    """What acl keeps for each thread."""

    def __init__(self) -> None:
        self.context: int | None = None
        self.error_text: str | None = None
        self.is_in_callback = False


class State:
    """One process that uses acl.

    Attributes:
        num_init: `init` calls that count; 0 before the first and after `finalize`.
        leaks: What was alive when its device was reset or acl was finalized.
        faults: Codes and texts that the next calls of a function will fail with; the name
            `run` stands for the next piece of queued work.
        num_pageable_copies: `memcpy_async` calls that ran at once, for want of pinned memory.
        num_extra_copies: Outputs that were copied back to an input that they alias.
    """

    def __init__(self, card: SimulatedCard, delays: Delays) -> None:
        self.card = card
        self.delays = delays
        self.lock = threading.RLock()
        self.thread = _ThreadState()
        self.handles = HandleTable()
        self.num_init = 0
        self.is_finalized = False
        memories = [DeviceMemory(i, card.memory_bytes) for i in range(card.num_devices)]
        self.addresses = AddressSpace(memories)
        self.devices = [SimulatedDevice(m.device_id, m) for m in memories]
        self.models: dict[int, LoadedModel] = {}
        self.num_loads = 0
        self.reports: dict[int, SimpleQueue[Report]] = {}
        self.leaks: list[str] = []
        self.faults: defaultdict[str, deque[tuple[int, str]]] = defaultdict(deque)
        self.num_pageable_copies = 0
        self.num_extra_copies = 0

    def require_init(self, name: str) -> None:
        """Refuse runtime calls before `init`, which are unspecified.

        Raises:
            UndefinedBehaviourError: `init` was not called, or `finalize` was.
        """
        if self.num_init == 0:
            when = "after acl.finalize" if self.is_finalized else "before acl.init"
            raise UndefinedBehaviourError(f"acl.{name} {when}")

    def context(self) -> Context:
        """The calling thread's current context.

        Raises:
            Refusal: The thread has none.
            UndefinedBehaviourError: It was destroyed, or its device reset.
        """
        handle = self.thread.context
        if handle is None:
            raise Refusal(
                Code.RT_CONTEXT_NULL,
                "ctx is NULL: this thread called none of set_device, create_context, set_context",
            )
        return self.handles.get(Context, handle, "the current context")

    def device(self, device_id: int) -> SimulatedDevice:
        """A device by number.

        Raises:
            Refusal: There is none.
        """
        if not 0 <= device_id < len(self.devices):
            raise Refusal(
                Code.RT_INVALID_DEVICEID,
                f"device id {device_id} is not in 0..{len(self.devices) - 1}",
            )
        return self.devices[device_id]

    def streams(self) -> Iterator[Stream]:
        """All live streams, default ones included."""
        for _, context in self.handles.all_of(Context):
            yield context.default_stream
        for _, stream in self.handles.all_of(Stream):
            yield stream

    def pending(self) -> Iterator[Task]:
        """All work that was submitted and has not run."""
        for stream in self.streams():
            yield from stream.pending

    def require_idle(self, what: str, reads: Iterable[Span], writes: Iterable[Span]) -> None:
        """Refuse what is not ordered with queued work on the same memory.

        Raises:
            UndefinedBehaviourError: Queued work writes what is read, or touches what is written.
        """
        reads, writes = tuple(reads), tuple(writes)
        for task in self.pending():
            read_early = any(w.overlaps(span) for w in task.writes for span in reads)
            if read_early or any(task.touches(span) for span in writes):
                raise UndefinedBehaviourError(
                    f"{what} while {task.what} is queued on the same memory; synchronize first"
                )

    def submit(self, queue: Stream, task: Task) -> None:
        """Queue work that touches memory.

        Raises:
            UndefinedBehaviourError: Another stream has work on the same memory, and no event
                orders the two.
        """
        for stream in self.streams():
            if stream is queue:
                continue
            num_ordered = max(0, queue.behind.get(stream, 0) - stream.num_completed)
            for other in list(stream.pending)[num_ordered:]:
                if task.conflicts(other):
                    raise UndefinedBehaviourError(
                        f"{task.what} and {other.what} use the same memory on two streams, and "
                        f"no event orders them"
                    )
        queue.submit(task)

    def note_write(self, span: Span, what: str) -> None:
        """Note that memory changed; weights that it held are gone."""
        for model in self.models.values():
            model.is_work_written |= span.overlaps(model.work)
            if any(span.overlaps(weights) for weights in model.weight_spans):
                model.weights_destroyed_by = what
