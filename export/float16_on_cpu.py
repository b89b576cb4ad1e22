"""float16 arithmetic for ONNX Runtime on a CPU: each node in float32, its result rounded.

ONNX Runtime has float16 kernels for few operators, and around the others it drops the rounding
between one and the next. With every rounding as a Cast of its own the graph computes what a
device would: float16 in, sums in float32, one rounding, infinity where float16 ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import NodeProto, TensorProto, helper

# They give bits that they were given, and have kernels for every type.
_MOVES = frozenset(
    {
        "Concat",
        "Expand",
        "Gather",
        "GatherElements",
        "Identity",
        "Reshape",
        "Shape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
        "Cast",
        "CastLike",
    }
)
_SMALL_BYTES = 1024


def round_in_float32(model: onnx.ModelProto) -> None:
    """Rewrite a model's float16 arithmetic in place.

    Weights may be in files of their own; a Cast, which ONNX Runtime folds as it loads the model,
    widens them.
    """
    graph = model.graph
    widening = _Widening(_float16_values(model))
    nodes = [rewritten for node in graph.node for rewritten in widening.nodes(node)]
    del graph.node[:]
    graph.node.extend(nodes)


class _Widening:
    def __init__(self, halves: set[str]) -> None:
        self._halves = halves
        self._wide: dict[str, str] = {}

    def nodes(self, node: NodeProto) -> Iterator[NodeProto]:
        """The node as it is, or between Casts."""
        touched = self._halves.intersection((*node.input, *node.output))
        if node.op_type in _MOVES or not touched:
            yield node
            return
        wide = NodeProto()
        wide.CopyFrom(node)
        for index, name in enumerate(node.input):
            if name in self._halves:
                if name not in self._wide:
                    self._wide[name] = f"{name}/float32"
                    yield _cast(name, self._wide[name], TensorProto.FLOAT)
                wide.input[index] = self._wide[name]
        rounded = [i for i, name in enumerate(node.output) if name in self._halves]
        for index in rounded:
            wide.output[index] = f"{node.output[index]}/unrounded"
        yield wide
        for index in rounded:
            yield _cast(wide.output[index], node.output[index], TensorProto.FLOAT16)


def _cast(source: str, target: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}/Cast", to=kind)


def _float16_values(model: onnx.ModelProto) -> set[str]:
    graph = onnx.shape_inference.infer_shapes(_without_weights(model)).graph
    types: Mapping[str, int] = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.value_info, *graph.input, *graph.output)
    }
    found = {name for name, kind in types.items() if kind == TensorProto.FLOAT16}
    constants = {t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT16}
    return found | constants


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the bytes of large tensors, which no type depends on."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph, source = light.graph, model.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    for tensor in source.initializer:
        if len(tensor.raw_data) <= _SMALL_BYTES:
            graph.initializer.append(tensor)
        else:
            kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            graph.initializer.append(kept)
    return light
