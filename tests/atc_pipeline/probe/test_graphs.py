"""The probes' graphs are what ATC's parser takes."""

from __future__ import annotations

import onnx
import pytest

from atc_pipeline.probe import graphs


@pytest.mark.parametrize(
    "make",
    [
        graphs.matmul_chain,
        graphs.gather_rows,
        graphs.rms_norm,
        graphs.rotary,
        graphs.float32_island,
        graphs.is_nan,
        graphs.scatter_nd,
    ],
)
def test_named_nodes_opset_18_and_no_foreign_domain(make: object) -> None:
    assert callable(make)
    graph = make()
    names = [node.name for node in graph.model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    opsets = {entry.domain: entry.version for entry in graph.model.opset_import}
    assert opsets.pop("") == 18
    assert opsets in ({}, {"npu": 1})
    assert tuple(i.name for i in graph.model.graph.input) == graph.input_names
    if not opsets:
        onnx.checker.check_model(graph.model, full_check=True)
