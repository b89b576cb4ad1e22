"""The `cpu` device: ONNX Runtime over host memory.

Owns everything that touches onnxruntime at run time. Memory is `host_memory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnxruntime as ort

from omruntime.buckets import Bucket
from omruntime.device.base import DeviceTensor, Program
from omruntime.device.host_memory import (
    HostMemoryDevice,
    require_bound,
    require_same_tensors,
    view,
)
from omruntime.element_type import BFLOAT16
from omruntime.errors import BundleError, ConfigError, DeviceError
from omruntime.manifest import ProgramSpec


class CpuDevice(HostMemoryDevice):
    """The host's cores, driven by ONNX Runtime."""

    name = "cpu"
    # One session of symbolic sizes: a first run takes no longer than the others.
    prepares_buckets = False

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """See `Device.load_program`.

        Raises:
            ConfigError: The program's types have no kernels in ONNX Runtime.
        """
        if any(tensor.dtype == BFLOAT16 for tensor in spec.inputs):
            raise ConfigError(
                "the bundle keeps its cache in bfloat16, which ONNX Runtime does not compute in on "
                "a CPU; serve it with --device openvino, or build it with --weights float32"
            )
        return CpuProgram(spec, _open_session(bundle / spec.path, self.num_threads))


class CpuProgram:
    """One ONNX Runtime session with symbolic dimensions that runs all its buckets."""

    def __init__(self, spec: ProgramSpec, session: ort.InferenceSession) -> None:
        require_same_tensors(
            spec,
            (tensor.name for tensor in session.get_inputs()),
            (tensor.name for tensor in session.get_outputs()),
        )
        self._spec = spec
        self._session: ort.InferenceSession | None = session
        self._bindings: dict[Bucket, ort.IOBinding] = {}
        self._run_options = ort.RunOptions()

    def bind(
        self,
        bucket: Bucket,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        """See `Program.bind`."""
        require_bound("cpu", self._spec.inputs, inputs)
        require_bound("cpu", self._spec.outputs, outputs)
        assert self._session is not None, "bind after unload"
        binding = self._session.io_binding()
        for name, tensor in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(view(tensor)))
        for name, tensor in outputs.items():
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(view(tensor)))
        self._bindings[bucket] = binding

    def run(self, bucket: Bucket) -> None:
        """See `Program.run`; done when it returns. Releases the GIL."""
        binding = self._bindings.get(bucket)
        if binding is None or self._session is None:
            raise DeviceError(f"cpu: {bucket} was never bound")
        try:
            self._session.run_with_iobinding(binding, self._run_options)
        except Exception as error:  # ONNX Runtime raises its own family, not one base class
            raise DeviceError(f"cpu: running {bucket} failed: {error}") from error

    def unload(self) -> None:
        """See `Program.unload`."""
        self._bindings.clear()
        self._session = None


def _open_session(path: Path, num_threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # The pool of worker threads stops spinning when a run ends, so that sampling,
    # detokenising and gRPC get the cores between two steps.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as in `CpuProgram.run`
        raise BundleError(f"ONNX Runtime cannot load {path.name}: {error}") from error
