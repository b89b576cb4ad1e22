"""Where a step graph's time goes on the CPU: ONNX Runtime's own profile, sorted into parts."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import onnxruntime as ort

from omruntime.device import Program
from omruntime.device.cpu import CpuDevice, CpuProgram
from omruntime.manifest import ProgramSpec

# Attention's products have four dimensions, those of the linear layers two or three. The shapes of
# weights are not always recorded, so the left side decides.
_MATRIX_OPS = ("MatMul", "FusedMatMul", "Gemm")


class ProfilingCpuDevice(CpuDevice):
    """A CPU device whose sessions record every node's time; somewhat slower than the plain one."""

    def __init__(self, num_threads: int) -> None:
        super().__init__(num_threads)
        self._sessions: list[ort.InferenceSession] = []
        self._folder = tempfile.TemporaryDirectory()

    def load_program(self, spec: ProgramSpec, bundle: Path) -> Program:
        """Load with profiling switched on."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.num_threads
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name) / "profile")
        session = ort.InferenceSession(
            bundle / spec.path, options, providers=["CPUExecutionProvider"]
        )
        self._sessions.append(session)
        return CpuProgram(spec, session)

    def seconds_by_part(self) -> dict[str, float]:
        """Stop recording; the node times summed into parts."""
        seconds: Counter[str] = Counter()
        for session in self._sessions:
            for event in json.loads(Path(session.end_profiling()).read_text()):
                if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                    seconds[_part(event["args"])] += event["dur"] / 1e6
        return dict(seconds)


def _part(node: dict[str, Any]) -> str:
    operator = node["op_name"]
    shapes = [next(iter(entry.values())) for entry in node["input_type_shape"]]
    if operator == "Gather" and len(shapes[0]) == 4:
        return "gather KV blocks"
    if operator in _MATRIX_OPS:
        return "attention products" if len(shapes[0]) == 4 else "linear layers"
    if operator == "Softmax":
        return "attention products"
    return "norms, rotary, activations, moves"
