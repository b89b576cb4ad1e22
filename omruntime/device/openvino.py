"""The `openvino` device: the OpenVINO runtime over host memory.

Owns everything that touches openvino at run time. It reads the same step graphs as the `cpu`
device, and besides those whose cache is bfloat16. Memory is `host_memory.py`; how a graph is read
and compiled is `openvino_model.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import openvino as ov

from omruntime.buckets import Bucket
from omruntime.device.base import DeviceTensor, Program
from omruntime.device.host_memory import (
    HostMemoryDevice,
    require_bound,
    require_same_tensors,
    view,
)
from omruntime.device.openvino_model import compile_step, has_bfloat16, new_core
from omruntime.element_type import BFLOAT16
from omruntime.errors import BundleError, DeviceError
from omruntime.manifest import ProgramSpec, TensorSpec

logger = logging.getLogger(__name__)

_ELEMENT_TYPES = {
    "float32": ov.Type.f32,
    "int32": ov.Type.i32,
    BFLOAT16: ov.Type.bf16,
}


class OpenvinoDevice(HostMemoryDevice):
    """The host's cores, driven by OpenVINO."""

    name = "openvino"
    # Kernels are made for the sizes that come.
    prepares_buckets = True

    def __init__(self, num_threads: int = 0) -> None:
        super().__init__(num_threads)
        self._core = new_core()

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """See `Device.load_program`."""
        precision = _precision(spec)
        if precision == BFLOAT16 and not has_bfloat16(self._core):
            logger.warning(
                "this CPU has no bfloat16 instructions; the bundle runs in float32, slower than "
                "one built with --weights float32"
            )
        try:
            model = compile_step(self._core, bundle / spec.path, precision, self.num_threads)
        except RuntimeError as error:
            raise BundleError(f"OpenVINO cannot load {spec.path}: {error}") from error
        return OpenvinoProgram(spec, model)


class OpenvinoProgram:
    """One compiled model with symbolic dimensions, and a request for each of its buckets."""

    def __init__(self, spec: ProgramSpec, model: ov.CompiledModel) -> None:
        require_same_tensors(
            spec,
            (_name(port, spec.inputs) for port in model.inputs),
            (_name(port, spec.outputs) for port in model.outputs),
        )
        self._spec = spec
        self._model: ov.CompiledModel | None = model
        self._requests: dict[Bucket, ov.InferRequest] = {}

    def bind(
        self,
        bucket: Bucket,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        """See `Program.bind`; requests of one model share its weights and work memory."""
        require_bound("openvino", self._spec.inputs, inputs)
        require_bound("openvino", self._spec.outputs, outputs)
        assert self._model is not None, "bind after unload"
        request = self._model.create_infer_request()
        try:
            for name, tensor in (*inputs.items(), *outputs.items()):
                request.set_tensor(name, _shared(tensor))
        except RuntimeError as error:
            raise DeviceError(f"openvino: binding {bucket} failed: {error}") from error
        self._requests[bucket] = request

    def run(self, bucket: Bucket) -> None:
        """See `Program.run`; done when it returns. Releases the GIL."""
        request = self._requests.get(bucket)
        if request is None:
            raise DeviceError(f"openvino: {bucket} was never bound")
        try:
            # Unlike `infer`, which hands every output over as a new array.
            request.start_async()
            request.wait()
        except RuntimeError as error:
            raise DeviceError(f"openvino: running {bucket} failed: {error}") from error

    def unload(self) -> None:
        """See `Program.unload`."""
        self._requests.clear()
        self._model = None


def _name(port: ov.ConstOutput, specs: tuple[TensorSpec, ...]) -> str:
    """A port's name; one that an Identity gave another name has both."""
    wanted = port.get_names() & {spec.name for spec in specs}
    return str(min(wanted, default=port.get_any_name()))


def _precision(spec: ProgramSpec) -> str:
    """What to compute in: bfloat16 where the cache is, else float32."""
    return BFLOAT16 if any(t.dtype == BFLOAT16 for t in spec.inputs) else "float32"


def _shared(tensor: DeviceTensor) -> ov.Tensor:
    """The tensor's memory itself, not a copy."""
    return ov.Tensor(view(tensor), ov.Shape(tensor.shape), _ELEMENT_TYPES[tensor.dtype])
