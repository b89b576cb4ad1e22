"""AscendProgram: one loaded OM and the datasets of its buckets.

Each bucket has datasets and a gear buffer of its own, made once: the gear is set when a bucket
is bound and never in a step, and addresses stay the same from step to step.

Source: CANN pyACL reference, acl.mdl.execute_async, acl.mdl.set_input_dynamic_dims; hicann/ge
davinci_model.cc (arguments are refreshed only when an address changed),
runtime/v1/executor/ge_executor.cc (SetDynamicDims writes the gear buffer synchronously).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from omruntime.buckets import Bucket
from omruntime.device.ascend.chip import Chip
from omruntime.device.ascend.memory import AscendBuffer, address_of
from omruntime.device.ascend.om_check import bucket_dims
from omruntime.device.ascend.om_interface import OmInterface
from omruntime.device.ascend.session import run_all
from omruntime.device.base import DeviceTensor
from omruntime.errors import BundleError, DeviceError
from omruntime.manifest import ProgramSpec

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Binding:
    """One bucket's handles, as far as they are made: the datasets are inputs and outputs."""

    datasets: list[int] = field(default_factory=list)
    data_buffers: list[int] = field(default_factory=list)
    gear: AscendBuffer | None = None


class AscendProgram:
    """A loaded OM; made by `AscendDevice.load_program`."""

    def __init__(
        self,
        chip: Chip,
        spec: ProgramSpec,
        interface: OmInterface,
        model_id: int,
        weight: AscendBuffer | None,
    ) -> None:
        self._chip = chip
        self._driver = chip.driver
        self._acl = chip.driver.acl
        self._spec = spec
        self._interface = interface
        self._model_id: int | None = model_id
        self._weight = weight
        self._bindings: dict[Bucket, _Binding] = {}

    def bind(
        self,
        bucket: Bucket,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        """See `Program.bind`."""
        self._require_names([t.name for t in self._spec.inputs], inputs)
        self._require_names([t.name for t in self._spec.outputs], outputs)
        dims = bucket_dims(self._spec, self._interface, bucket)
        self._require_shapes(dims, inputs)
        binding, before = _Binding(), self._bindings.get(bucket)
        try:
            self._make(binding, inputs, outputs)
            if binding.gear is not None:
                gear = [dim for shape in dims.values() for dim in shape]
                self._set_gear(binding.datasets[0], gear)
            if before is not None:
                self._chip.synchronize()
        except BaseException:
            run_all(self._closing_steps(binding))
            raise
        self._bindings[bucket] = binding
        if before is not None:
            run_all(self._closing_steps(before))

    def run(self, bucket: Bucket) -> None:
        """See `Program.run`; submits and returns."""
        binding = self._bindings.get(bucket)
        if binding is None or self._model_id is None:
            raise DeviceError(f"{self._chip.name}: {bucket} was never bound")
        self._chip.enter()
        inputs, outputs = binding.datasets
        code = self._acl.mdl.execute_async(self._model_id, inputs, outputs, self._chip.stream)
        self._driver.check("acl.mdl.execute_async", code)
        self._chip.note_queued()

    def unload(self) -> None:
        """See `Program.unload`; waits for what is queued."""
        if self._model_id is None:
            return
        tell_failure = self._chip.settle()
        model_id, self._model_id = self._model_id, None
        bindings, self._bindings = self._bindings, {}
        unload = partial(self._chip.unload_model, model_id, self._weight)
        steps: list[Callable[[], None]] = [tell_failure, unload]
        for binding in bindings.values():
            steps += self._closing_steps(binding)
        run_all(steps)

    def _closing_steps(self, binding: _Binding) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = []
        if binding.gear is not None:
            steps.append(partial(self._chip.free, binding.gear))
        for buffer in binding.data_buffers:
            steps.append(partial(self._destroy_data_buffer, buffer))
        for dataset in binding.datasets:
            steps.append(partial(self._destroy_dataset, dataset))
        return steps

    def _destroy_data_buffer(self, buffer: int) -> None:
        code = self._acl.destroy_data_buffer(buffer)
        self._driver.check("acl.destroy_data_buffer", code)

    def _destroy_dataset(self, dataset: int) -> None:
        code = self._acl.mdl.destroy_dataset(dataset)
        self._driver.check("acl.mdl.destroy_dataset", code)

    def _gear_buffer(self) -> AscendBuffer | None:
        if self._interface.gear_index is None:
            return None
        return self._chip.alloc(self._interface.gear_bytes)

    def _set_gear(self, dataset: int, dims: list[int]) -> None:
        """All dims of all inputs, in the order of --input_shape."""
        assert self._model_id is not None
        assert self._interface.gear_index is not None
        code = self._acl.mdl.set_input_dynamic_dims(
            self._model_id,
            dataset,
            self._interface.gear_index,
            {"name": "", "dimCount": len(dims), "dims": dims},
        )
        self._driver.check("acl.mdl.set_input_dynamic_dims", code)

    def _make(
        self,
        binding: _Binding,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        """Fill a binding, each handle as soon as it is made."""
        binding.gear = self._gear_buffer()
        windows = [inputs.get(t.name, binding.gear) for t in self._interface.inputs]
        self._add_dataset(binding, windows)
        self._add_dataset(binding, [outputs[t.name] for t in self._interface.outputs])

    def _add_dataset(
        self, binding: _Binding, windows: Sequence[DeviceTensor | AscendBuffer | None]
    ) -> None:
        """A dataset over windows."""
        dataset = self._driver.require("acl.mdl.create_dataset", self._acl.mdl.create_dataset())
        binding.datasets.append(dataset)
        for window in windows:
            assert window is not None
            address, nbytes = self._place(window)
            buffer = self._driver.require(
                "acl.create_data_buffer", self._acl.create_data_buffer(address, nbytes)
            )
            binding.data_buffers.append(buffer)
            _, code = self._acl.mdl.add_dataset_buffer(dataset, buffer)
            self._driver.check("acl.mdl.add_dataset_buffer", code)

    def _place(self, window: DeviceTensor | AscendBuffer) -> tuple[int, int]:
        if isinstance(window, AscendBuffer):
            return window.address, window.nbytes
        return address_of(window, self._chip.name), window.nbytes

    def _require_names(self, wanted: list[str], tensors: Mapping[str, DeviceTensor]) -> None:
        if set(wanted) != tensors.keys():
            raise DeviceError(
                f"{self._chip.name}: bound {sorted(tensors)}, the program takes {sorted(wanted)}"
            )

    def _require_shapes(
        self, dims: Mapping[str, tuple[int, ...]], inputs: Mapping[str, DeviceTensor]
    ) -> None:
        for name, shape in dims.items():
            if inputs[name].shape != shape:
                raise BundleError(
                    f"{self._spec.path}: {name} was compiled as {list(shape)}, bound is "
                    f"{list(inputs[name].shape)}; the pool has the size that the OM was compiled "
                    f"for, build the bundle again"
                )
