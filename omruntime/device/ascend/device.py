"""AscendDevice: one Ascend chip behind the `Device` protocol, driven through pyACL.

Owns the programs that are loaded, and the memory that they share; the rest is `Chip`'s.

One thread at a time; it may change between calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from omruntime.device.ascend.acl_module import ExternalWeightSetter
from omruntime.device.ascend.chip import Chip
from omruntime.device.ascend.library import AclLibrary
from omruntime.device.ascend.loading import (
    LoadMemory,
    create_config,
    destroy_config,
    load_model,
    query_memory,
    require_kind,
)
from omruntime.device.ascend.memory import AscendBuffer
from omruntime.device.ascend.memory_plan import plan_programs
from omruntime.device.ascend.om_check import check_interface, with_known_outputs
from omruntime.device.ascend.om_interface import read_interface
from omruntime.device.ascend.program import AscendProgram
from omruntime.device.ascend.session import run_all
from omruntime.device.ascend.weights import SharedWeights
from omruntime.device.base import MemoryItem, Program
from omruntime.manifest import ProgramSpec

logger = logging.getLogger(__name__)


class AscendDevice(Chip):
    """One chip and the programs on it."""

    prepares_buckets = True
    runs_asynchronously = True

    def __init__(
        self,
        name: str,
        device_id: int,
        library: AclLibrary,
        set_external_weight: ExternalWeightSetter | None,
        *,
        is_simulated: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Open the chip.

        Args:
            name, device_id, library, timeout_ms: As `Chip` takes them.
            set_external_weight: None copies outside weights for each program.
            is_simulated: Whether the module is a simulator, which runs other programs.

        Raises:
            DeviceError: The driver refused; nothing stays open.
        """
        super().__init__(name, device_id, library, timeout_ms)
        self._is_simulated = is_simulated
        self._set_external_weight = set_external_weight
        self._weights = SharedWeights(self)
        self._programs: list[AscendProgram] = []
        self._work: AscendBuffer | None = None
        self._soc = self._acl.get_soc_name() or ""
        logger.info("device open name=%s soc=%s", name, self._soc)

    @property
    def soc(self) -> str:
        """See `Device.soc`; empty when the driver does not know."""
        return self._soc

    def plan_programs(self, specs: Iterable[ProgramSpec], bundle: Path) -> tuple[MemoryItem, ...]:
        """See `Device.plan_programs`; asks the driver, reserves nothing."""
        self.enter()
        paths = [(bundle / spec.path, len(spec.buckets)) for spec in specs]
        for path, _ in paths:
            require_kind(path, self._is_simulated, self._name)
        return plan_programs(self.driver, paths, is_shared=self._set_external_weight is not None)

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """See `Device.load_program`."""
        self.enter()
        path = bundle / spec.path
        require_kind(path, self._is_simulated, self._name)
        need = query_memory(self.driver, path)
        external = {} if self._set_external_weight is None else self._weights.of(path)
        work = self._work_memory(need.work_bytes)
        weight = self.alloc(need.weight_bytes) if need.weight_bytes else None
        try:
            program = self._load(spec, path, LoadMemory(work, weight, external))
        except BaseException:
            if weight is not None and not self._holds_lost_model:
                self.free(weight)
            raise
        self._programs.append(program)
        return program

    def _load(self, spec: ProgramSpec, path: Path, memory: LoadMemory) -> AscendProgram:
        handle = create_config(self.driver)
        try:
            model_id = load_model(self.driver, handle, path, memory, self._set_external_weight)
        except BaseException:
            destroy_config(self.driver, handle)
            raise
        try:
            destroy_config(self.driver, handle)
            interface = with_known_outputs(spec, read_interface(self.driver, model_id))
            check_interface(spec, interface)
        except BaseException:
            self.unload_model(model_id, None)
            raise
        return AscendProgram(self, spec, interface, model_id, memory.weight)

    def close(self) -> None:
        """See `Device.close`; what fails on the way does not keep the rest from being closed.

        Work that does not end keeps everything as it is: to unload a running model or to free
        its memory is undefined, so the driver does it when the process ends.

        Source: CANN runtime API reference, device management (order of the teardown), stream
        management (after a timeout the work goes on).

        Raises:
            DeviceError: Something failed, or work is still running.
        """
        tell_failure = self.settle()
        unloads = [program.unload for program in self._programs]
        run_all([tell_failure, *unloads, self._give_memory_back, self._session.close])

    def _work_memory(self, nbytes: int) -> AscendBuffer | None:
        """Scratch memory that programs share, as they run one after another on one stream.

        Source: CANN model API reference, aclmdlLoadFromFileWithMem.
        """
        if nbytes and (self._work is None or self._work.nbytes < nbytes):
            self._work = self.alloc(nbytes)
        return self._work if nbytes else None
