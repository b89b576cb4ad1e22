"""Facts that stand in a model's operators: inputs, outputs, gears, outside weights.

Owns which operators and attributes tell them. They count where the flat description of the file
is silent, as in older files.

Source: hicann/ge inc/graph_metadef/graph/debug/ge_attr_define.h (attribute names);
compiler/graph/passes/multi_batch/multi_batch_clone_pass.cc (gears).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from atc_pipeline.om_inspect.facts import ExternalWeight, GearFacts, GraphFacts, TensorFacts
from omruntime.errors import BundleError
from omruntime.om_file.attributes import Attributes, AttrValue
from omruntime.om_file.model_def import ModelDef, Op, OpTensor

_GEAR_KINDS = {1: "batch", 2: "image", 3: "dims"}
_DECODED_IN_MAIN = frozenset({"Data", "NetOutput", "Case"})
# Real models stay far below; the bound keeps a hostile file from filling the memory.
_MAX_KEPT = 100_000


def read_graph_facts(model: ModelDef) -> GraphFacts:
    """Walk all operators once.

    Raises:
        BundleError: Malformed, or beyond the bounds of the reader.
    """
    op_counts: dict[str, int] = {}
    found: list[Op] = []
    for graph_index, graph in enumerate(model.graphs):
        for op_type, message in graph.op_messages():
            op_counts[op_type] = op_counts.get(op_type, 0) + 1
            is_wanted = graph_index == 0 and op_type in _DECODED_IN_MAIN
            if is_wanted or op_type == "FileConstant":
                found.append(graph.decode(message))
            if max(len(op_counts), len(found)) > _MAX_KEPT:
                raise BundleError(f"MODEL_DEF: got more than {_MAX_KEPT} kinds of operators")
    outputs = next((op for op in found if op.type == "NetOutput"), None)
    return GraphFacts(
        num_graphs=len(model.graphs),
        inputs=tuple(_inputs(op for op in found if op.type == "Data")),
        outputs=tuple(_outputs(model, outputs)) if outputs else (),
        gears=next((g for op in found if op.type == "Case" and (g := _gears(op))), None),
        op_counts=op_counts,
        external_weights=tuple(_external_weight(op) for op in found if op.type == "FileConstant"),
    )


def _inputs(ops: Iterable[Op]) -> Iterator[TensorFacts]:
    """Data operators by their index; a gear input shows its -1 in an attribute."""
    for op in sorted(ops, key=lambda op: _integer(op.attributes, "index")):
        desc = op.input_descs[0] if op.input_descs else OpTensor()
        origin = _integers(op.attributes.get("_mbatch_origin_input_dims"))
        yield TensorFacts(
            op.name, desc.dtype_name, origin or desc.dims, desc.layout, desc.size_bytes
        )


def _outputs(model: ModelDef, op: Op) -> Iterator[TensorFacts]:
    names = [str(name) for name in model.items("attr_model_out_nodes_name")]
    if len(names) != len(op.input_descs):
        sources = zip(op.src_names, op.src_indexes, strict=False)
        names = [f"output_{i}_{node}_{index}" for i, (node, index) in enumerate(sources)]
    names += [f"output_{i}" for i in range(len(names), len(op.input_descs))]
    for name, desc in zip(names, op.input_descs, strict=False):
        yield TensorFacts(name, desc.dtype_name, desc.dims, desc.layout, desc.size_bytes)


def _gears(op: Op) -> GearFacts | None:
    """The gears of a Case that atc made; None for another Case."""
    num_gears = _integer(op.attributes, "batch_num")
    if not 0 < num_gears <= _MAX_KEPT:
        return None
    kind = _integer(op.attributes, "mbatch_dynamic_type")
    order = op.attributes.get("user_designate_shape_order", ())
    return GearFacts(
        kind=_GEAR_KINDS.get(kind, f"type {kind}"),
        values=tuple(
            _integers(op.attributes.get(f"_pred_value_{i}"))
            for i in range(num_gears)
            if f"_pred_value_{i}" in op.attributes
        ),
        input_order=tuple(map(str, order)) if isinstance(order, tuple) else (),
    )


def _external_weight(op: Op) -> ExternalWeight:
    location = op.attributes.get("location") or op.attributes.get("file_path") or ""
    offset = _integer(op.attributes, "offset")
    return ExternalWeight(str(location), offset, _integer(op.attributes, "length"))


def _integer(attributes: Attributes, name: str) -> int:
    value = attributes.get(name)
    return value if type(value) is int else 0


def _integers(value: AttrValue | None) -> tuple[int, ...]:
    items = value if isinstance(value, tuple) else ()
    return tuple(item for item in items if type(item) is int)
