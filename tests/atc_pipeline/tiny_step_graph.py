"""A step graph of a dozen nodes with the inputs and outputs of a real one, and its draft."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from atc_pipeline.bundle import BuildRecord, write_manifest
from atc_pipeline.draft import DRAFT_NAME, GRAPH_PATH, GRAPH_WEIGHTS_PATH, read_draft
from export.result import PARITY_REPORT_PATH, ExportResult
from omruntime.manifest import Manifest, TensorSpec
from tests.atc_pipeline.fake_ascend import (
    ASCEND_MODEL,
    HEAD_DIM,
    KV,
    PLANES,
    PROGRAM,
    SOC,
)
from tests.atc_pipeline.fake_export import fake_export

_TYPES = {
    "int32": TensorProto.INT32,
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
}
_WIDTH = PLANES * HEAD_DIM
RECORD = BuildRecord(SOC, "tiny", profile="ascend310p")


def write_graph(path: Path) -> None:
    """Write the graph and, beside it, its weights."""
    # 131 rows of 128 values: large enough to lie outside of the ONNX file.
    table = np.random.default_rng(0).standard_normal((131, _WIDTH)).astype(np.float16)
    constants = {
        "embedding": table,
        "head": np.ascontiguousarray(table.T),
        "kv_shape": np.array([-1, PLANES, HEAD_DIM], np.int64),
        "axes": np.array([1, 2, 3], np.int64),
        "one": np.array([1], np.int64),
    }
    # The pool's values reach the logits with the weight of the past, so no input is idle.
    nodes = [
        _node("Gather", ["embedding", "input_ids"], "embedded"),
        _node("Reshape", ["embedded", "kv_shape"], "new_kv"),
        _node("Gather", ["kv_pool", "block_tables"], "past"),
        _node("Cast", ["past"], "past_wide", to=TensorProto.FLOAT),
        _node("ReduceSum", ["past_wide", "axes"], "past_sum", keepdims=0),
        _node("Add", ["past_lens", "last_index"], "lengths"),
        _node("ReduceSum", ["positions", "one"], "position_sum", keepdims=0),
        _node("Add", ["lengths", "position_sum"], "counts"),
        _node("Cast", ["counts"], "counts_wide", to=TensorProto.FLOAT),
        _node("Add", ["past_sum", "counts_wide"], "scalars"),
        _node("Unsqueeze", ["scalars", "one"], "columns"),
        _node("ReduceMean", ["embedded", "one"], "hidden", keepdims=0),
        _node("MatMul", ["hidden", "head"], "scores"),
        _node("Cast", ["scores"], "scores_wide", to=TensorProto.FLOAT),
        _node("Add", ["scores_wide", "columns"], "logits"),
    ]
    graph = helper.make_graph(
        nodes,
        "step",
        [_info(spec) for spec in PROGRAM.inputs],
        [_info(spec) for spec in PROGRAM.outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save_model(
        model,
        path,
        save_as_external_data=True,
        location=Path(GRAPH_WEIGHTS_PATH).name,
        size_threshold=1024,
    )


def tiny_ascend_export(folder: Path, progress: Callable[[str], None]) -> ExportResult:
    """As `fake_export`, with a graph that a compiler can read."""
    result = fake_export(folder, progress)
    (folder / GRAPH_WEIGHTS_PATH).unlink()
    write_graph(folder / GRAPH_PATH)
    return dataclasses.replace(result, model=ASCEND_MODEL, kv=KV, program=PROGRAM)


def write_draft(folder: Path) -> Manifest:
    """Export into a new folder and write the draft."""
    folder.mkdir(parents=True)
    result = tiny_ascend_export(folder, lambda stage: None)
    write_manifest(folder, result, RECORD, name=DRAFT_NAME)
    assert (folder / PARITY_REPORT_PATH).exists()
    return read_draft(folder)


def _node(kind: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], name=f"/{output}", **attributes)


def _info(spec: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(spec.name, _TYPES[spec.dtype], list(spec.shape))
