"""Names of nodes, values, inputs and outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from tests.atc_pipeline.lint.graphs import FLOAT16, INT32, constant, found, lint, model, node, value


def test_unnamed_nodes_are_shown_by_their_output(tmp_path: Path) -> None:
    report = lint(tmp_path, model([helper.make_node("Neg", ["rows"], ["y"])]))
    assert found(report) == {("unnamed-node", "<unnamed, writes 'y'>")}
    assert not report.errors


def test_duplicate_node_names(tmp_path: Path) -> None:
    nodes = [node("Neg", ["rows"], ["y"], name="n"), node("Abs", ["rows"], ["z"], name="n")]
    report = lint(tmp_path, model(nodes))
    assert found(report) == {("duplicate-node-name", "n")}
    assert report.errors[0].op_type == "Abs"


def test_empty_output_names(tmp_path: Path) -> None:
    nodes = [node("Split", ["rows"], ["", "y"], name="halves", axis=2, num_outputs=2)]
    assert found(lint(tmp_path, model(nodes))) == {("empty-output", "halves")}


def test_an_input_left_out_in_the_middle_is_fine_and_at_the_end_is_not(tmp_path: Path) -> None:
    limit = [value("high", FLOAT16)]
    assert not lint(tmp_path, model([node("Clip", ["rows", "", "high"], ["y"])], limit)).findings
    report = lint(tmp_path, model([node("Clip", ["rows", "high", ""], ["y"])], limit))
    assert found(report) == {("trailing-empty-input", "n_y")}


def test_values_that_nothing_writes(tmp_path: Path) -> None:
    graph = model([node("Neg", ["nowhere"], ["y"])], outputs=[value("lost", FLOAT16, 1)])
    assert found(lint(tmp_path, graph)) == {("undefined-value", "n_y"), ("undefined-value", "lost")}


def test_values_that_are_written_twice(tmp_path: Path) -> None:
    twice = [node("Neg", ["rows"], ["y"]), node("Abs", ["rows"], ["y"], name="again")]
    over_an_input = [node("Neg", ["rows"], ["input_ids"])]
    for nodes, name in ((twice, "y"), (over_an_input, "input_ids")):
        assert ("value-written-twice", name) in found(lint(tmp_path, model(nodes)))
    branches = {
        side: helper.make_graph(
            [node("Neg", ["rows"], ["r"], name=side)], side, [], [value("r", FLOAT16)]
        )
        for side in ("then_branch", "else_branch")
    }
    choice = model([node("If", ["c"], ["y"], **branches)], weights=[constant("c", np.array(True))])
    assert ("value-written-twice", "r") not in found(lint(tmp_path, choice))


def test_a_graph_without_inputs_or_outputs(tmp_path: Path) -> None:
    graph = model([])
    del graph.graph.input[:]
    report = lint(tmp_path, graph)
    assert ("no-inputs-or-outputs", "") in found(report)
    assert "the graph has no inputs; ATC would give E16001" in report.to_text()
    del graph.graph.output[:]
    assert "no inputs and no outputs" in lint(tmp_path, graph).to_text()


def test_names_of_inputs_and_outputs_that_the_runtime_cannot_report(tmp_path: Path) -> None:
    for length, wanted in ((127, set()), (128, {("long-name", "i" * 128)})):
        assert found(lint(tmp_path, model([], [value("i" * length, INT32, 1)]))) == wanted
    # node:0:output counts.
    for length, wanted in ((62, set()), (63, {("long-name", "o" * 63)})):
        name = "o" * length
        graph = model(
            [node("Neg", ["rows"], [name], name="n" * 62)],
            outputs=[value(name, FLOAT16, "batch", "tokens", 64)],
        )
        assert found(lint(tmp_path, graph)) == wanted
