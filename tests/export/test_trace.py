"""The step graph as a file: contract names, one storage for tied weights, plain ONNX inside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import onnx
import pytest
import torch
from torch import fx

from export.emitters import EMITTERS
from export.facts import step_shape
from export.graphs import StepGraph
from export.step_shape import input_specs, output_specs
from export.trace import write_step_graph
from export.translate import Translator
from omruntime.errors import ExportError
from tests.export.tiny import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    model = tiny_model("llama", tie_word_embeddings=True)
    attention, rope = model.config._attn_implementation, model.model.rotary_emb.rope_type
    graph = StepGraph(model, step_shape(model, 16))
    write_step_graph(graph, folder / "step.onnx", folder / "step.weights")
    graph.release()
    # The wrapped model is given back as it was.
    assert model.config._attn_implementation == attention
    assert model.model.rotary_emb.rope_type == rope
    return folder


@pytest.fixture(scope="module")
def graph(folder: Path) -> onnx.GraphProto:
    return onnx.load(folder / "step.onnx", load_external_data=False).graph


def test_inputs_and_outputs_are_the_contract(graph: onnx.GraphProto) -> None:
    shape = step_shape(tiny_model("llama"), 16)
    for values, specs in (
        (graph.input, input_specs(shape)),
        (graph.output, output_specs(shape)),
    ):
        got = [
            (v.name, tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim))
            for v in values
        ]
        assert got == [(spec.name, spec.shape) for spec in specs]
    assert graph.input[5].name == "kv_pool.0.key"


def test_every_node_has_its_own_name(graph: onnx.GraphProto) -> None:
    counts = Counter(node.name for node in graph.node)
    assert set(counts.values()) == {1}
    assert "" not in counts
    assert any(name.startswith("model.layers.1.self_attn") for name in counts)


def test_tied_weights_are_stored_once(folder: Path, graph: onnx.GraphProto) -> None:
    """The embedding and the head share one initializer, and nothing folds a second copy."""
    wide = [t for t in graph.initializer if 300 in t.dims]
    assert len(wide) == 1
    users = {node.op_type for node in graph.node if wide[0].name in node.input}
    assert users == {"Gather", "Gemm"}
    parameters = sum(p.numel() for p in tiny_model("llama", tie_word_embeddings=True).parameters())
    padding = 4096 * len(graph.initializer)
    assert (folder / "step.weights").stat().st_size <= 4 * parameters + padding


def test_the_file_holds_no_trace_of_its_making(folder: Path) -> None:
    model = onnx.load(folder / "step.onnx", load_external_data=False)
    assert not model.metadata_props
    assert not model.functions
    assert not model.doc_string
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)
    for tensor in model.graph.initializer:
        keys = {entry.key for entry in tensor.external_data}
        assert keys in (set(), {"location", "offset", "length"})
    assert b"/home" not in (folder / "step.onnx").read_bytes()


def test_lowering_leaves_no_spelled_out_pattern(graph: onnx.GraphProto) -> None:
    """Norms, rotary embeddings and products of one input are single nodes."""
    counts = Counter(node.op_type for node in graph.node)
    assert counts["SimplifiedLayerNormalization"] == 5
    assert counts["RotaryEmbedding"] == 4
    assert counts["Pow"] == counts["Neg"] == counts["Slice"] == 0
    # For each layer: q, k and v; o; gate and up; down; and four products of attention.
    assert counts["MatMul"] == 2 * (4 + 4)


def test_an_unknown_operator_is_named(tmp_path: Path) -> None:
    model = tiny_model("llama", hidden_act="mish")
    graph = StepGraph(model, step_shape(model, 16))
    with pytest.raises(ExportError, match=r"does not translate: aten\.mish\.default"):
        write_step_graph(graph, tmp_path / "step.onnx", tmp_path / "step.weights")


def test_an_operator_used_in_an_unknown_way_is_named() -> None:
    node = fx.Graph().call_function(torch.ops.aten.ones.default, ([4],))
    with pytest.raises(ExportError, match=r"uses aten\.ones\.default of a symbolic .*aten_ops\.py"):
        EMITTERS["aten.ones.default"](cast("Translator", None), node)
