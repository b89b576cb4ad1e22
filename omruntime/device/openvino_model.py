"""How OpenVINO reads and compiles a step graph.

Owns the operators that its ONNX reader lacks, and the compile settings.

Source: OpenVINO documentation, "Frontend Extensions", "CPU Device" and "Precision Control".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import openvino.properties as properties
import openvino.properties.device as device_properties
import openvino.properties.hint as hints
from openvino.frontend import NodeContext
from openvino.frontend.onnx import ConversionExtension

from omruntime.element_type import BFLOAT16

_CPU = "CPU"


def new_core() -> ov.Core:
    """OpenVINO, able to read every operator of a step graph."""
    core = ov.Core()
    core.add_extension(ConversionExtension("RotaryEmbedding", "com.microsoft", _rotary))
    return core


def has_bfloat16(core: ov.Core) -> bool:
    """Whether this CPU computes in bfloat16; else OpenVINO takes float32 in its place."""
    return "BF16" in core.get_property(_CPU, device_properties.capabilities())


def compile_step(core: ov.Core, path: Path, precision: str, num_threads: int) -> ov.CompiledModel:
    """Read and compile a step graph, its dimensions symbolic.

    A graph with int8 matrices computes in float32 whatever its cache is, and the inputs of its
    products stay as they are. OpenVINO by itself rounds them to int8 as well, and a single very
    large one, as models put on some tokens, then takes all the others of its group to 0.

    Args:
        precision: `float32` or `bfloat16`, of all that the graph does not type itself.

    Raises:
        RuntimeError: OpenVINO refuses the file.
    """
    model = core.read_model(path)
    has_int8 = any(n.get_type_name() == "MatMul" and _is_int8(n) for n in model.get_ops())
    is_bfloat16 = precision == BFLOAT16 and not has_int8
    settings = {
        hints.inference_precision(): ov.Type.bf16 if is_bfloat16 else ov.Type.f32,
        hints.performance_mode(): hints.PerformanceMode.LATENCY,
        hints.dynamic_quantization_group_size(): 0,
        properties.inference_num_threads(): num_threads,
        properties.num_streams(): 1,
    }
    return core.compile_model(model, _CPU, settings)


def _is_int8(product: ov.Node) -> bool:
    """Whether a product's right side is a widened constant of int8."""
    source = product.input_value(1).get_node()
    while source.get_type_name() in ("Multiply", "Convert", "Transpose"):
        source = source.input_value(0).get_node()
    return bool(source.get_output_element_type(0) == ov.Type.i8)


def _rotary(node: NodeContext) -> list[ov.Output]:
    """RotaryEmbedding over the whole head, halves apart: x * cos + (-x2, x1) * sin.

    Inputs: x [batch, heads, tokens, head_dim], position ids [batch, tokens], and tables of cos
    and sin [positions, head_dim / 2].

    Source: onnxruntime, docs/ContribOperators.md, com.microsoft.RotaryEmbedding.
    """
    x, ids, cos, sin = (node.get_input(index) for index in range(4))
    half = x.get_partial_shape()[3].get_length() // 2
    cos, sin = _rows(cos, ids), _rows(sin, ids)
    halves = ops.variadic_split(x, np.int64(-1), np.array([half, half], np.int64))
    first, second = halves.output(0), halves.output(1)
    turned = ops.concat([ops.multiply(second, np.float32(-1)), first], axis=-1)
    return [ops.add(ops.multiply(x, cos), ops.multiply(turned, sin)).output(0)]


def _rows(table: ov.Output, ids: ov.Output) -> ov.Node:
    """A table's rows for both halves of every head, [batch, 1, tokens, head_dim]."""
    rows = ops.unsqueeze(ops.gather(table, ids, np.int64(0)), np.array([1], np.int64))
    return ops.concat([rows, rows], axis=-1)
