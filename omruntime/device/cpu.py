"""The `cpu` device: ONNX Runtime over host memory.

Owns everything that touches onnxruntime at run time. Device memory is host memory, so copies
in and out are plain, and a fetched output is a view.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omruntime.buckets import Bucket
from omruntime.device.base import DeviceBuffer, DeviceTensor, MemoryInfo, MemoryItem, Program
from omruntime.errors import BundleError, DeviceError, OutOfDeviceMemoryError
from omruntime.manifest import ProgramSpec, TensorSpec


class HostBuffer:
    """A run of zeroed host memory; zeroed so that padding never reads NaN."""

    def __init__(self, nbytes: int) -> None:
        # Written, not just reserved: a pool that the machine cannot hold fails here and not under
        # load, and no request pays for the first touch of a page.
        self.bytes: NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        self.bytes.fill(0)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.bytes.nbytes


class CpuDevice:
    """The host's cores as a device."""

    name = "cpu"
    soc = "cpu"
    alignment = 1

    def __init__(self, num_threads: int = 0) -> None:
        self.num_threads = num_threads or len(os.sched_getaffinity(0))
        self._live: set[HostBuffer] = set()

    def alloc(self, nbytes: int) -> DeviceBuffer:
        """See `Device.alloc`; refuses what passes the memory that is free now."""
        free_bytes = self.memory_info().free_bytes
        if nbytes > free_bytes:
            raise OutOfDeviceMemoryError(
                f"cpu: {nbytes:,} bytes asked, {free_bytes:,} bytes free; lower --kv-memory-mib "
                f"or --num-blocks"
            )
        buffer = HostBuffer(nbytes)
        self._live.add(buffer)
        return buffer

    def reserved_bytes(self, nbytes: int) -> int:
        """See `Device.reserved_bytes`."""
        return nbytes

    def free(self, buffer: DeviceBuffer) -> None:
        """See `Device.free`."""
        if buffer not in self._live:
            raise DeviceError("cpu: free of a buffer that is not allocated here")
        self._live.discard(_host(buffer))

    def host_array(self, nbytes: int) -> NDArray[np.uint8]:
        """See `Device.host_array`."""
        return np.zeros(nbytes, np.uint8)

    def copy_in(self, target: DeviceTensor, source: NDArray[Any]) -> None:
        """See `Device.copy_in`; done when it returns."""
        view(target)[...] = source

    def copy_out(self, source: DeviceTensor) -> NDArray[Any]:
        """See `Device.copy_out`; a view."""
        return view(source)

    def copy_chunks(
        self,
        target: DeviceTensor,
        target_chunks: NDArray[np.int64],
        source: DeviceTensor,
        source_chunks: NDArray[np.int64],
        chunk_bytes: int,
    ) -> None:
        """See `Device.copy_chunks`; one vectorised copy."""
        # A row of void items copies as one memcpy instead of byte by byte.
        chunk = np.dtype((np.void, chunk_bytes))
        rows = _bytes(source).view(chunk)[source_chunks]
        _bytes(target).view(chunk)[target_chunks] = rows

    def clear(self, target: DeviceTensor) -> None:
        """See `Device.clear`; done when it returns."""
        _bytes(target).fill(0)

    def plan_programs(self, specs: Iterable[ProgramSpec], bundle: Path) -> tuple[MemoryItem, ...]:
        """See `Device.plan_programs`; ONNX Runtime does not say."""
        return ()

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """See `Device.load_program`."""
        return CpuProgram(spec, _open_session(bundle / spec.path, self.num_threads))

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def memory_info(self) -> MemoryInfo:
        """Memory of the machine that a new allocation can get, without swap."""
        sizes = {}
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            sizes[name] = int(rest.split()[0]) * 1024
        return MemoryInfo(sizes["MemAvailable"], sizes["MemTotal"])

    def close(self) -> None:
        """Forget all buffers."""
        self._live.clear()


class CpuProgram:
    """One ONNX Runtime session with symbolic dimensions that runs all its buckets."""

    def __init__(self, spec: ProgramSpec, session: ort.InferenceSession) -> None:
        _require_same_tensors(spec, session)
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
        _require_names(self._spec.inputs, inputs)
        _require_names(self._spec.outputs, outputs)
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


def view(tensor: DeviceTensor) -> NDArray[Any]:
    """The tensor's memory as an array of its shape and dtype."""
    return _bytes(tensor).view(tensor.dtype).reshape(tensor.shape)


def _bytes(tensor: DeviceTensor) -> NDArray[np.uint8]:
    window = _host(tensor.buffer).bytes[tensor.offset : tensor.offset + tensor.nbytes]
    if window.nbytes != tensor.nbytes:
        raise DeviceError(f"cpu: {tensor.nbytes} bytes at {tensor.offset} pass the buffer's end")
    return window


def _host(buffer: DeviceBuffer) -> HostBuffer:
    if not isinstance(buffer, HostBuffer):
        raise DeviceError(f"cpu: a {type(buffer).__name__} is not a buffer of this device")
    return buffer


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


def _require_same_tensors(spec: ProgramSpec, session: ort.InferenceSession) -> None:
    for kind, wanted, got in (
        ("inputs", spec.inputs, session.get_inputs()),
        ("outputs", spec.outputs, session.get_outputs()),
    ):
        wanted_names, got_names = [t.name for t in wanted], [t.name for t in got]
        if sorted(wanted_names) != sorted(got_names):
            raise BundleError(
                f"{spec.path}: the graph's {kind} are {got_names}, the manifest lists "
                f"{wanted_names}; build the bundle again"
            )


def _require_names(specs: tuple[TensorSpec, ...], tensors: Mapping[str, DeviceTensor]) -> None:
    wanted = {spec.name for spec in specs}
    if wanted != tensors.keys():
        raise DeviceError(f"cpu: bound {sorted(tensors)}, the program takes {sorted(wanted)}")
