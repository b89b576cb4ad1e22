"""The `native` device: omserve's own kernels over host memory.

A step graph is read (`onnx_file.py`), its patterns become single kernels (`fusion.py`,
`attention_pattern.py`), and each bucket becomes a flat program over fixed memory (`plan.py`,
`emitters.py`). The kernels are `omruntime/native`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from omruntime.buckets import Bucket
from omruntime.device.base import DeviceTensor, Program
from omruntime.device.host_memory import (
    HostMemoryDevice,
    require_bound,
    require_same_tensors,
    view,
)
from omruntime.device.native.attention_pattern import fuse_attention
from omruntime.device.native.emitters import emit, require_kernels
from omruntime.device.native.fusion import fuse
from omruntime.device.native.graph import Array, Graph
from omruntime.device.native.onnx_file import read_onnx
from omruntime.device.native.plan import Plan
from omruntime.device.native.schedule import schedule
from omruntime.device.native.work_memory import WorkMemory
from omruntime.errors import BundleError, DeviceError
from omruntime.manifest import ProgramSpec
from omruntime.native import NativeProgram, ThreadPool


class NativeDevice(HostMemoryDevice):
    """The host's cores, driven by omserve's own kernels."""

    name = "native"
    # A first run takes some hundredths of a second longer, while its program is made.
    prepares_buckets = False

    def __init__(self, num_threads: int = 0) -> None:
        """Start the threads.

        Raises:
            ConfigError: The kernels were not compiled.
        """
        super().__init__(num_threads)
        self._pool = ThreadPool(self.num_threads)

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """See `Device.load_program`.

        Raises:
            BundleError: The graph has an operator without a kernel; the message names it.
        """
        graph = read_onnx(bundle / spec.path)
        require_same_tensors(spec, graph.inputs, graph.outputs)
        fuse_attention(graph)
        fuse(graph)
        # The matrices are packed; of the file only rows of an embedding are read from here on.
        graph.release_pages()
        schedule(graph)
        require_kernels(graph.nodes)
        return NativeStep(spec, graph, self._pool)

    def close(self) -> None:
        """See `Device.close`."""
        super().close()
        self._pool.close()


class NativeStep:
    """A step graph, and the program of each bucket that has run.

    Programs are made at their first run: a server has dozens of buckets, and making all of them
    would be most of its start.
    """

    def __init__(self, spec: ProgramSpec, graph: Graph, pool: ThreadPool) -> None:
        self._spec = spec
        self._graph: Graph | None = graph
        self._pool = pool
        self._memory = WorkMemory()
        self._bound: dict[Bucket, dict[str, Array]] = {}
        self._programs: dict[Bucket, NativeProgram] = {}

    def bind(
        self,
        bucket: Bucket,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        """See `Program.bind`."""
        require_bound("native", self._spec.inputs, inputs)
        require_bound("native", self._spec.outputs, outputs)
        assert self._graph is not None, "bind after unload"
        tensors = (*inputs.items(), *outputs.items())
        self._programs.pop(bucket, None)
        self._bound[bucket] = {name: view(tensor) for name, tensor in tensors}

    def run(self, bucket: Bucket) -> None:
        """See `Program.run`; done when it returns. Releases the GIL while kernels run.

        Raises:
            BundleError: Shapes in the graph do not fit the bucket.
        """
        program = self._programs.get(bucket) or self._planned(bucket)
        program.run(self._pool)

    def unload(self) -> None:
        """See `Program.unload`."""
        self._programs.clear()
        self._bound.clear()
        self._graph = None

    def _planned(self, bucket: Bucket) -> NativeProgram:
        if bucket not in self._bound or self._graph is None:
            raise DeviceError(f"native: {bucket} was never bound")
        plan = Plan(self._graph, self._memory, self._bound[bucket])
        for node in self._graph.nodes:
            try:
                emit(plan, node)
            except ValueError as error:  # as NumPy says that shapes do not fit
                raise BundleError(f"native: {bucket}, node {node.name}: {error}") from error
        self._programs[bucket] = plan.program
        return plan.program
