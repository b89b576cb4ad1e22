"""Simulation: one simulated process with its card; what tests and the sim device hold."""

from __future__ import annotations

from omruntime.device.simacl import model_calls
from omruntime.device.simacl.card import Delays, SimulatedCard
from omruntime.device.simacl.errors import Refusal
from omruntime.device.simacl.state import State
from omruntime.device.simacl.surface import AclNamespace, make_module


class Simulation:
    """A process in which `module` stands for the extension module `acl`."""

    def __init__(self, card: SimulatedCard | None = None, delays: Delays | None = None) -> None:
        self.card = card or SimulatedCard()
        self._state = State(self.card, delays or Delays())
        self.module: AclNamespace = make_module(self._state)

    @property
    def leaks(self) -> tuple[str, ...]:
        """What was alive when its device was reset or acl was finalized."""
        return tuple(self._state.leaks)

    @property
    def is_finalized(self) -> bool:
        """Whether `acl.finalize` was the last of init and finalize."""
        return self._state.is_finalized and self._state.num_init == 0

    @property
    def num_pageable_copies(self) -> int:
        """`memcpy_async` calls that ran at once, for want of pinned memory."""
        return self._state.num_pageable_copies

    @property
    def num_extra_copies(self) -> int:
        """Outputs that were copied back to an input that they alias."""
        return self._state.num_extra_copies

    @property
    def used_bytes(self) -> tuple[int, ...]:
        """Memory taken on each device."""
        return tuple(device.memory.used_bytes for device in self._state.devices)

    @property
    def pinned_bytes(self) -> int:
        """Pinned host memory that is allocated."""
        return sum(block.size for block in self._state.addresses.host.pinned.values())

    def fail_next(self, name: str, code: int, text: str = "injected") -> None:
        """Make the next call of a function fail; `run` is the next piece of queued work."""
        self._state.faults[name].append((code, text))

    def set_external_weight_address(
        self, config_handle: int, file_name: str, address: int, size: int
    ) -> int:
        """Stands for the C function aclmdlSetExternalWeightAddress; returns its code."""
        try:
            model_calls.set_external_weight_address(
                self._state, config_handle, file_name, address, size
            )
        except Refusal as refusal:
            self._state.thread.error_text = f"{refusal.code}: {refusal.text}"
            return refusal.code
        return 0
