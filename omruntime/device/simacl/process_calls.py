"""acl.init, acl.finalize, error texts and the name of the chip.

Source: hicann/runtime src/acl/aclrt_impl/acl.cpp.
"""

from __future__ import annotations

import json
from pathlib import Path

from omruntime.device.simacl.device_calls import tear_down
from omruntime.device.simacl.errors import Code, Refusal
from omruntime.device.simacl.leaks import note, note_process
from omruntime.device.simacl.state import Calls, State


def init(state: State, config_path: str = "") -> None:
    """See acl.init."""
    if config_path:
        try:
            json.loads(Path(config_path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Refusal(Code.INVALID_PARAM, f"config {config_path}: {error}") from error
    state.num_init += 1
    if state.num_init > 1:
        raise Refusal(Code.REPEAT_INITIALIZE, "acl is already initialized")


def finalize(state: State) -> None:
    """See acl.finalize; tears down whatever the count was."""
    if state.num_init == 0:
        raise Refusal(Code.REPEAT_FINALIZE, "acl is already finalized, or was never initialized")
    state.num_init = 0
    state.is_finalized = True
    for device in state.devices:
        if device.num_set:
            note(state, f"device {device.device_id} was not reset before acl.finalize")
            device.num_set = 0
        # A context may have been made on a device that was never set.
        tear_down(state, device)
    note_process(state)


def finalize_reference(state: State) -> int:
    """See acl.finalize_reference."""
    if state.num_init == 0:
        raise Refusal(Code.REPEAT_FINALIZE, "acl is already finalized, or was never initialized")
    if state.num_init == 1:
        finalize(state)
        return 0
    state.num_init -= 1
    return state.num_init


def get_recent_err_msg(state: State) -> str | None:
    """See acl.get_recent_err_msg: of the calling thread, cleared by reading."""
    text, state.thread.error_text = state.thread.error_text, None
    return text


def get_soc_name(state: State) -> str | None:
    """See acl.get_soc_name."""
    return state.card.soc


CALLS: Calls = {
    "init": init,
    "finalize": finalize,
    "finalize_reference": finalize_reference,
    "get_recent_err_msg": get_recent_err_msg,
    "get_soc_name": get_soc_name,
}
