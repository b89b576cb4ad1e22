"""acl.rt.memcpy, memset and their asynchronous forms.

Source: hicann/runtime src/acl/aclrt_impl/memory.cpp (aclrtMemcpyImpl, MemcpyKindTranslate),
src/runtime/api/impl/api_error.cc (MemCopySync, MemcpyAsync); CANN pyACL reference,
acl.rt.memcpy_async (both addresses aligned to 64 bytes).
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.memory import ALIGNMENT, Bytes, Place, Region, fill_poison
from omruntime.device.simacl.objects import Stream, Task
from omruntime.device.simacl.running import find_stream, run_until
from omruntime.device.simacl.state import Calls, State

logger = logging.getLogger(__name__)

_H2H, _H2D, _D2H, _D2D, _DEFAULT, _BUFFERED_H2D = range(6)
_SIDES = {  # whether source and target lie on the device
    _H2H: (False, False),
    _H2D: (False, True),
    _D2H: (True, False),
    _D2D: (True, True),
    _BUFFERED_H2D: (False, True),
}


@dataclass(frozen=True, slots=True)
class _Copy:
    """A checked copy."""

    source: Region
    target: Region
    name: str

    @property
    def what(self) -> str:
        """For messages."""
        return f"a copy {self.source.span} -> {self.target.span}"


def memcpy(state: State, dst: int, dest_max: int, src: int, count: int, kind: int) -> None:
    """See acl.rt.memcpy: at once, and ordered with no stream."""
    copy = _check(state, "memcpy", (dst, dest_max, src, count, kind))
    if dst == src:
        return
    state.delays.pause(state.delays.copy_s, True)
    _run_now(state, copy)


def memcpy_async(
    state: State, dst: int, dest_max: int, src: int, count: int, kind: int, stream: int
) -> None:
    """See acl.rt.memcpy_async: queued, unless a side is pageable host memory."""
    copy = _check(state, "memcpy_async", (dst, dest_max, src, count, kind))
    queue = find_stream(state, stream)
    places = {copy.source.place, copy.target.place}
    if Place.DEVICE not in places:
        raise Refusal(Code.RT_FEATURE_NOT_SUPPORT, "memcpy_async from host to host")
    if dst % ALIGNMENT or src % ALIGNMENT:
        raise UndefinedBehaviourError(
            f"memcpy_async from {src:#x} to {dst:#x}: both must be aligned to {ALIGNMENT} bytes"
        )
    for side in (copy.source, copy.target):
        _require_device_of(queue, side, copy.what)
    if Place.PAGEABLE in places:
        _flag_pageable(state)
        run_until(state, queue, queue.num_submitted)
        _run_now(state, copy)
        return
    state.submit(queue, _queued(state, copy, kind))


def memset(state: State, address: int, max_count: int, value: int, count: int) -> None:
    """See acl.rt.memset."""
    region = _check_memset(state, "memset", address, max_count, count)
    state.require_idle("memset", (), (region.span,))
    region.content.fill(value & 0xFF)
    state.note_write(region.span, "a memset")


def memset_async(
    state: State, address: int, max_count: int, value: int, count: int, stream: int
) -> None:
    """See acl.rt.memset_async."""
    region = _check_memset(state, "memset_async", address, max_count, count)
    queue = find_stream(state, stream)
    if region.place is not Place.DEVICE:
        raise UndefinedBehaviourError("memset_async of host memory")
    _require_device_of(queue, region, "a memset")

    def run() -> None:
        region.content.fill(value & 0xFF)
        state.note_write(region.span, "a memset")

    state.submit(queue, Task(f"a memset of {region.span}", run, writes=(region.span,)))


def _require_device_of(queue: Stream, region: Region, what: str) -> None:
    if region.device_id not in (None, queue.context.device.device_id):
        raise UndefinedBehaviourError(f"{what} on a stream of another device")


def _check(state: State, name: str, arguments: tuple[int, int, int, int, int]) -> _Copy:
    dst, dest_max, src, count, kind = arguments
    if dst == 0 or src == 0:
        raise Refusal(Code.INVALID_PARAM, f"{name}: a null pointer")
    if not _H2H <= kind <= _BUFFERED_H2D:
        raise Refusal(Code.INVALID_PARAM, f"{name}: kind {kind} is not one of 0..5")
    state.context()
    if count > dest_max:
        raise Refusal(Code.RT_PARAM_INVALID, f"{name}: count {count} > dest_max {dest_max}")
    if count == 0:
        raise Refusal(Code.RT_PARAM_INVALID, f"{name}: count is 0")
    source = state.addresses.region(src, count, f"{name}, source")
    target = state.addresses.region(dst, count, f"{name}, target")
    on_device = (source.place is Place.DEVICE, target.place is Place.DEVICE)
    if kind != _DEFAULT and on_device != _SIDES[kind]:
        raise UndefinedBehaviourError(
            f"{name}: kind {kind} contradicts the addresses, which are {source.place.value} and "
            f"{target.place.value} memory"
        )
    if dst != src and source.span.overlaps(target.span):
        raise UndefinedBehaviourError(f"{name}: source and target overlap")
    if all(on_device) and source.device_id != target.device_id:
        raise Refusal(Code.RT_PARAM_INVALID, f"{name}: peer access between devices is not enabled")
    return _Copy(source, target, name)


def _run_now(state: State, copy: _Copy) -> None:
    state.require_idle(copy.what, (copy.source.span,), (copy.target.span,))
    copy.target.content[...] = copy.source.content
    state.note_write(copy.target.span, copy.what)


def _queued(state: State, copy: _Copy, kind: int) -> Task:
    """The copy as work that checks that nobody touched the host's side meanwhile."""
    source, target = copy.source, copy.target
    data: Bytes = source.content.copy() if kind == _BUFFERED_H2D else source.content
    if target.place is Place.PINNED:
        fill_poison(target.content)  # what a program sees that reads before it waits
    host = target.content if target.place is Place.PINNED else data
    is_watched = Place.PINNED in (source.place, target.place)
    before = zlib.crc32(host.data) if is_watched else 0

    def run() -> None:
        if is_watched and zlib.crc32(host.data) != before:
            raise UndefinedBehaviourError(
                f"the host memory of {copy.what} changed before the copy ran; synchronize first"
            )
        target.content[...] = data
        state.note_write(target.span, copy.what)

    reads = () if kind == _BUFFERED_H2D else (source.span,)
    return Task(copy.what, run, reads, (target.span,), delay_s=state.delays.copy_s)


def _flag_pageable(state: State) -> None:
    state.num_pageable_copies += 1
    if state.num_pageable_copies == 1:
        logger.warning(
            "simulated acl: memcpy_async with pageable host memory runs synchronously; use "
            "acl.rt.malloc_host"
        )


def _check_memset(state: State, name: str, address: int, max_count: int, count: int) -> Region:
    if address == 0:
        raise Refusal(Code.INVALID_PARAM, f"{name}: a null pointer")
    state.context()
    if count > max_count or count == 0:
        raise Refusal(Code.RT_PARAM_INVALID, f"{name}: count {count}, max_count {max_count}")
    region = state.addresses.region(address, count, name)
    if region.place is Place.PAGEABLE:
        raise UndefinedBehaviourError(f"{name}: host memory that acl did not allocate")
    return region


CALLS: Calls = {
    "rt.memcpy": memcpy,
    "rt.memcpy_async": memcpy_async,
    "rt.memset": memset,
    "rt.memset_async": memset_async,
}
