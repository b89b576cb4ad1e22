"""The `acl` module as Python code sees it: names, argument parsing, return shapes.

Everything comes from the table in `signatures.py`; a name that the table has and the simulator
does not raises by name when it is called. No constants, as in the real module.
"""

from __future__ import annotations

from collections.abc import Mapping

from omruntime.device.simacl import (
    callback_calls,
    copy_calls,
    dataset_calls,
    desc_calls,
    device_calls,
    event_calls,
    execute_calls,
    memory_calls,
    model_calls,
    process_calls,
    stream_calls,
    util_calls,
)
from omruntime.device.simacl.errors import Code, NotSimulatedError, Refusal, UndefinedBehaviourError
from omruntime.device.simacl.signatures import Signature, load_signatures
from omruntime.device.simacl.state import Calls, State

IMPLEMENTATIONS: Calls = {
    **process_calls.CALLS,
    **device_calls.CALLS,
    **memory_calls.CALLS,
    **copy_calls.CALLS,
    **stream_calls.CALLS,
    **event_calls.CALLS,
    **callback_calls.CALLS,
    **model_calls.CALLS,
    **desc_calls.CALLS,
    **dataset_calls.CALLS,
    **execute_calls.CALLS,
    **util_calls.CALLS,
}
_BEFORE_INIT = {"init", "finalize", "finalize_reference", "get_recent_err_msg"}
# These take the lock themselves: they wait, or more than one thread may be inside.
_UNLOCKED = {"mdl.execute"}


class AclFunction:
    """One function of the module."""

    def __init__(self, state: State, signature: Signature) -> None:
        self._state = state
        self._signature = signature
        self._implementation = IMPLEMENTATIONS.get(signature.name)
        self._is_locked = not signature.releases_gil and signature.name not in _UNLOCKED
        self.__name__ = signature.name.rpartition(".")[2]

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Parse, run, and answer in the function's own shape."""
        values = self._signature.parse(args, kwargs)
        if self._is_locked:
            with self._state.lock:
                return self._answer(values)
        return self._answer(values)

    def _answer(self, values: list[object]) -> object:
        state, name = self._state, self._signature.name
        try:
            self._require_usable()
            faults = state.faults.get(name)
            if faults:
                raise Refusal(*faults.popleft())
            if name in state.delays.call_s:
                state.delays.pause(state.delays.call_s[name], not self._signature.releases_gil)
            assert self._implementation is not None
            result = self._implementation(state, *values)
        except Refusal as refusal:
            # What set it before is gone, as each failure brings its own text.
            state.thread.error_text = f"{refusal.code}: {refusal.text}"
            return self._signature.pack_failure(refusal.code)
        return self._signature.pack(self._as_tuple(result))

    def _require_usable(self) -> None:
        state, name = self._state, self._signature.name
        if self._signature.is_unsupported:
            raise Refusal(Code.RT_FEATURE_NOT_SUPPORT, f"{name} is not supported on 310P")
        if self._implementation is None:
            raise NotSimulatedError(f"acl.{name} is not simulated")
        if name in _BEFORE_INIT or name.startswith("util."):
            return
        if name.startswith("mdl.") and state.num_init == 0:
            raise Refusal(Code.GE_EXEC_NOT_INIT, "acl.init was not called")
        state.require_init(name)
        if state.thread.is_in_callback and name in callback_calls.REFUSED_IN_CALLBACKS:
            raise UndefinedBehaviourError(f"acl.{name} inside of a callback may deadlock")

    def _as_tuple(self, result: object) -> tuple[object, ...]:
        num_values = len(self._signature.returns) - self._signature.has_status
        if num_values == 0:
            return ()
        return result if num_values > 1 and isinstance(result, tuple) else (result,)


class AclNamespace:
    """`acl`, `acl.rt`, `acl.mdl` and so on: functions and further namespaces as attributes."""

    def __init__(self, attributes: Mapping[str, object]) -> None:
        self.__dict__.update(attributes)


def make_module(state: State) -> AclNamespace:
    """The module over one simulated process."""
    parts: dict[str, dict[str, object]] = {}
    for name, signature in load_signatures().items():
        part, _, function = name.rpartition(".")
        parts.setdefault(part, {})[function] = AclFunction(state, signature)
    top = parts.pop("")
    return AclNamespace({**top, **{name: AclNamespace(part) for name, part in parts.items()}})
