"""The native products against ONNX Runtime and OpenVINO: `python -m bench.native_linear`.

SmolLM2's shapes. Each shape is a stack of different matrices that no cache holds, as in a decode
step; all contenders run in turn and the best of many rounds counts. Beside the time stand bytes of
weights and arithmetic per second, to be read against what the machine can do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import openvino as ov
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from omruntime.native import Matrix, NativeProgram, ThreadPool

SHAPES = ((576, 576), (576, 192), (576, 1536), (1536, 576), (576, 49152))
ROWS = (1, 8, 32, 256)
# Several times the last level cache of this class of machine.
STACK_BYTES = 128 << 20
FORMATS = ("float32", "bfloat16", "int8")
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}

Run = Callable[[], object]


class Stack:
    """Different matrices of one shape."""

    def __init__(self, inputs: int, outputs: int) -> None:
        rng = np.random.default_rng(0)
        count = max(1, STACK_BYTES // (inputs * outputs * 4))
        self.matrices = [
            rng.standard_normal((inputs, outputs), dtype=np.float32) for _ in range(count)
        ]

    def native(self, weights: str, x: NDArray[np.float32], pool: ThreadPool) -> Run:
        """A program of all products."""
        program = NativeProgram()
        for matrix in self.matrices:
            y = np.empty((len(x), matrix.shape[1]), np.float32)
            program.append("linear", [x, _packed(matrix, weights), y, None, None])
        return lambda: program.run(pool)

    def onnx_runtime(self, x: NDArray[np.float32], num_threads: int) -> Run:
        """A session over the same products."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = num_threads
        session = ort.InferenceSession(
            self._model().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
        for index, matrix in enumerate(self.matrices):
            y = np.empty((len(x), matrix.shape[1]), np.float32)
            binding.bind_ortvalue_output(f"y{index}", ort.OrtValue.ortvalue_from_numpy(y))
        return lambda: session.run_with_iobinding(binding)

    def openvino(self, x: NDArray[np.float32], num_threads: int) -> Run:
        """The same in OpenVINO, float32."""
        core = ov.Core()
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": num_threads}
        model = core.read_model(self._model().SerializeToString())
        request = core.compile_model(model, "CPU", settings).create_infer_request()
        request.set_input_tensor(ov.Tensor(x, ov.Shape(x.shape)))

        def run() -> None:
            request.start_async()
            request.wait()

        return run

    def _model(self) -> onnx.ModelProto:
        count = range(len(self.matrices))
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in count],
            "products",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, len(self.matrices[0])])],
            [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in count],
            [numpy_helper.from_array(m, f"w{i}") for i, m in enumerate(self.matrices)],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _packed(matrix: NDArray[np.float32], weights: str) -> Matrix:
    if weights == "int8":
        scales = np.abs(matrix).max(0) / 127
        return Matrix(np.round(matrix / scales).astype(np.int8), scales)
    if weights == "bfloat16":
        return Matrix((matrix.view(np.uint32) >> 16).astype(np.uint16))
    return Matrix(matrix)


def main() -> int:
    """Run every shape and print the table."""
    parser = argparse.ArgumentParser(prog="bench.native_linear", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    options = parser.parse_args()
    pool = ThreadPool(options.num_threads)
    _say(
        "us of one product by ONNX Runtime, then how many times as fast the others are; "
        "GB of weights and GFLOP per second of the native ones"
    )
    for inputs, outputs in SHAPES:
        stack = Stack(inputs, outputs)
        for rows in options.rows:
            x = np.random.default_rng(1).standard_normal((rows, inputs)).astype(np.float32)
            runs = {"ort": stack.onnx_runtime(x, options.num_threads)}
            runs["openvino"] = stack.openvino(x, options.num_threads)
            runs |= {name: stack.native(name, x, pool) for name in FORMATS}
            best = _best_seconds(runs, options.rounds)
            _report(rows, stack, {k: v / len(stack.matrices) for k, v in best.items()})
    return 0


def _best_seconds(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def _report(rows: int, stack: Stack, best: dict[str, float]) -> None:
    inputs, outputs = stack.matrices[0].shape
    line = f"{inputs:>5} x {outputs:<6}{rows:>4} rows{best['ort'] * 1e6:>10.0f}"
    line += f"  openvino {best['ort'] / best['openvino']:>5.2f}"
    for name in FORMATS:
        gigabytes = inputs * outputs * _ITEM_BYTES[name] / best[name] / 1e9
        gigaflops = 2 * rows * inputs * outputs / best[name] / 1e9
        line += f"  {name} {best['ort'] / best[name]:>5.2f} ({gigabytes:.1f}, {gigaflops:.0f})"
    _say(line)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
