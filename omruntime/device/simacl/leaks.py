"""Leaks: what is alive when what holds it ends."""

from __future__ import annotations

import logging

from omruntime.device.simacl.objects import Context, Event, SimulatedDevice, Stream
from omruntime.device.simacl.state import State

logger = logging.getLogger(__name__)


def note_device(state: State, device: SimulatedDevice) -> None:
    """Note everything that still lives on a device that is reset."""
    why = f"device {device.device_id} was reset"
    for what, owner in owned_by_contexts(state):
        if owner.device is device:
            note(state, f"{what}: {why}")
    for handle, context in state.handles.all_of(Context):
        if context.device is device and not context.is_primary:
            note(state, f"context {handle:#x}: {why}")
    for block in device.memory.blocks.values():
        if block.owner == "user":
            note(state, f"{block.size} bytes of device memory at {block.address:#x}: {why}")


def note_process(state: State) -> None:
    """Note everything that lives on no device."""
    for kind, count in _process_wide(state).items():
        note(state, f"{count} {kind} at acl.finalize")
    for block in state.addresses.host.pinned.values():
        note(state, f"{block.size} bytes of pinned host memory at acl.finalize")


def owned_by_contexts(state: State) -> list[tuple[str, Context]]:
    """Streams, events and models with the context they belong to."""
    owned = [(f"model {i}", m.context) for i, m in state.models.items()]
    owned += [(f"stream {h:#x}", s.context) for h, s in state.handles.all_of(Stream)]
    owned += [(f"event {h:#x}", e.context) for h, e in state.handles.all_of(Event)]
    return owned


def note(state: State, leak: str) -> None:
    """Keep and log a leak."""
    logger.error("simulated acl: leak: %s", leak)
    state.leaks.append(leak)


def _process_wide(state: State) -> dict[str, int]:
    """How many objects live that belong to no device, by kind."""
    counts: dict[str, int] = {}
    for _, thing in state.handles.all_of(object):
        if not isinstance(thing, Context | Stream | Event):
            kind = type(thing).__name__
            counts[kind] = counts.get(kind, 0) + 1
    return counts
