"""acl.rt.malloc and its kin, get_mem_info.

Source: CANN pyACL reference, memory management; hicann/runtime src/acl/aclrt_impl/memory.cpp.
"""

from __future__ import annotations

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.memory import reserved_bytes
from omruntime.device.simacl.spans import Span
from omruntime.device.simacl.state import Calls, State

_DDR, _HBM = 0, 1


def malloc(state: State, size: int, policy: int) -> int:
    """See acl.rt.malloc."""
    return _allocate(state, "malloc", size, reserved_bytes(size, policy))


def malloc_align32(state: State, size: int, policy: int) -> int:
    """See acl.rt.malloc_align32."""
    return _allocate(state, "malloc_align32", size, reserved_bytes(size, policy, extra=0))


def _allocate(state: State, name: str, size: int, reserved: int) -> int:
    return state.context().device.memory.allocate(size, reserved)


def free(state: State, address: int) -> None:
    """See acl.rt.free: needs no context, waits for nothing."""
    if address == 0:
        raise Refusal(Code.INVALID_PARAM, "free of a null pointer")
    memory = state.addresses.device_of(address)
    block = None if memory is None else memory.blocks.get(address)
    if memory is None or block is None or block.owner != "user":
        raise Refusal(
            Code.RT_PARAM_INVALID, f"free of {address:#x}: not the base of a live malloc block"
        )
    _require_unused(state, "free", block.span)
    for model_id, model in state.models.items():
        if any(block.span.overlaps(span) for span in model.user_spans):
            raise UndefinedBehaviourError(
                f"free of memory that model {model_id} was loaded into; unload it first"
            )
    memory.give_back(address)


def malloc_host(state: State, size: int) -> int:
    """See acl.rt.malloc_host."""
    state.context()
    return state.addresses.host.allocate(size)


def free_host(state: State, address: int) -> None:
    """See acl.rt.free_host."""
    if address == 0:
        raise Refusal(Code.INVALID_PARAM, "free_host of a null pointer")
    block = state.addresses.host.pinned.get(address)
    if block is None:
        raise Refusal(
            Code.RT_PARAM_INVALID,
            f"free_host of {address:#x}: not the base of a live malloc_host block",
        )
    _require_unused(state, "free_host", block.span)
    state.addresses.host.give_back(address)


def _require_unused(state: State, name: str, span: Span) -> None:
    for task in state.pending():
        if task.touches(span):
            raise UndefinedBehaviourError(
                f"{name} of memory that {task.what} uses, which is queued; synchronize first"
            )


def get_mem_info(state: State, attr: int) -> tuple[int, int]:
    """See acl.rt.get_mem_info; 310P has DDR alone and answers for HBM with it."""
    memory = state.context().device.memory
    if attr not in (_DDR, _HBM):
        return 0, 0
    return memory.total_bytes - memory.used_bytes, memory.total_bytes


CALLS: Calls = {
    "rt.malloc": malloc,
    "rt.malloc_align32": malloc_align32,
    "rt.malloc_cached": malloc,
    "rt.free": free,
    "rt.malloc_host": malloc_host,
    "rt.free_host": free_host,
    "rt.get_mem_info": get_mem_info,
}
