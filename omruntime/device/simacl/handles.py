"""Handles: the raw addresses through which pyACL names its objects.

A handle is never given out twice, so that a stale one is told from a new one.

Source: hicann/runtime python/pyACL (handles are plain integers; using a dead one is undefined).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from omruntime.device.simacl.errors import Code, Refusal, UndefinedBehaviourError

_FIRST, _STRIDE = 0x5500_0000_0000, 0x40
T = TypeVar("T")


class HandleTable:
    """All live objects of one process, and the kinds of those that are gone."""

    def __init__(self) -> None:
        self._next = _FIRST
        self._live: dict[int, object] = {}
        self._destroyed: dict[int, str] = {}

    def add(self, thing: object) -> int:
        """A handle for a new object."""
        handle, self._next = self._next, self._next + _STRIDE
        self._live[handle] = thing
        return handle

    def get(self, kind: type[T], handle: int, what: str) -> T:
        """The live object of a handle.

        Raises:
            Refusal: The handle is null.
            UndefinedBehaviourError: Never given out, destroyed before, or of another kind.
        """
        if handle == 0:
            raise Refusal(Code.INVALID_PARAM, f"the {what} is null")
        thing = self._live.get(handle)
        if isinstance(thing, kind):
            return thing
        if handle in self._destroyed:
            raise UndefinedBehaviourError(f"{what} {handle:#x} was destroyed before")
        got = "never given out" if thing is None else f"a {type(thing).__name__}"
        raise UndefinedBehaviourError(f"{what} {handle:#x} is {got}")

    def remove(self, kind: type[T], handle: int, what: str) -> T:
        """Destroy a live object; errors as `get`."""
        thing = self.get(kind, handle, what)
        del self._live[handle]
        self._destroyed[handle] = kind.__name__
        return thing

    def all_of(self, kind: type[T]) -> Iterator[tuple[int, T]]:
        """The live objects of a kind."""
        for handle, thing in list(self._live.items()):
            if isinstance(thing, kind):
                yield handle, thing
