"""The native device knows a mask by what it hides."""

from __future__ import annotations

import numpy as np
import pytest

from omruntime.device.native.graph import Graph, Node
from omruntime.device.native.mask_window import find_window
from omruntime.errors import BundleError


def mask_graph(window: int, comparison: str = "Less", block_size: int = 16) -> Graph:
    """A mask over [cached, new] positions, as a step graph computes it, for groups of one head."""
    numbers = {
        "zero": 0, "one": 1, "window": window, "seen": np.float32(0), "hidden": np.float32(-1e9),
        "size": [block_size], "row": [1, -1], "column": [0, 1], "lifted": [0, 1, -1],
        "batch_axis": [0], "two_axis": [2],
    }  # fmt: skip
    int64 = ("size", "row", "column", "lifted", "batch_axis", "two_axis")
    constants = {
        name: np.array(value, np.int64 if name in int64 else getattr(value, "dtype", np.int32))
        for name, value in numbers.items()
    }

    def node(op: str, inputs: str, output: str, **attributes: object) -> Node:
        return Node(op, output, tuple(inputs.split()), (output,), attributes)

    nodes = [
        node("Shape", "block_tables", "blocks", start=1, end=2),
        node("Mul", "blocks size", "cached_size"),
        node("Squeeze", "cached_size batch_axis", "cached_count"),
        node("Cast", "cached_count", "cached_count_32", to=6),
        node("Range", "zero cached_count_32 one", "cached"),
        node("Reshape", "cached row", "cached_row"),
        node("Reshape", "past_lens column", "lens"),
        node(comparison, "cached_row lens", "is_past"),
        node("Reshape", "is_past lifted", "is_past_3d"),
        node("Unsqueeze", "positions two_axis", "positions_3d"),
        node("Sub", "positions_3d cached", "distance"),
        node("Less", "distance window", "is_near"),
        node("And", "is_past_3d is_near", "sees_cached"),
        node("Shape", "input_ids", "count", start=1, end=2),
        node("Squeeze", "count batch_axis", "tokens"),
        node("Cast", "tokens", "tokens_32", to=6),
        node("Range", "zero tokens_32 one", "new"),
        node("Reshape", "new column", "new_column"),
        node("Sub", "new_column new", "new_distance"),
        node("GreaterOrEqual", "new_distance zero", "is_before"),
        node("Less", "new_distance window", "is_near_new"),
        node("And", "is_before is_near_new", "sees_new"),
        node("Shape", "input_ids", "batch", start=0, end=1),
        node("Concat", "batch count count", "new_shape", axis=0),
        node("Expand", "sees_new new_shape", "sees_new_3d"),
        node("Concat", "sees_cached sees_new_3d", "sees", axis=2),
        node("Where", "sees seen hidden", "mask_3d"),
        node("Unsqueeze", "mask_3d batch_axis", "mask"),
    ]
    inputs = ("input_ids", "positions", "block_tables", "past_lens")
    return Graph(nodes, constants, inputs, ("mask",))


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("window", [2, 7, 64, 65, 512, 4096])
def test_a_window_of_any_length_is_found(window: int, shape: tuple[int, ...]) -> None:
    graph = mask_graph(window)
    graph.constants["window"] = graph.constants["window"].reshape(shape)
    # Another number, which only moves what it moves back.
    graph.constants["other"] = np.array(100, np.int32)
    graph.nodes[-1:] = [
        Node("Add", "more", ("positions", "other"), ("more",)),
        Node("Sub", "same", ("more", "other"), ("same",)),
        *graph.nodes[-1:],
    ]
    graph.nodes[9] = Node("Unsqueeze", "p3", ("same", "two_axis"), ("positions_3d",))
    assert find_window(graph, graph.producers(), "mask") == window


def test_a_number_that_is_no_window_is_none() -> None:
    graph = mask_graph(512)
    graph.nodes = [
        Node("Equal", n.name, (n.inputs[0], n.inputs[0]), n.outputs)
        if n.name.startswith("is_near")
        else n
        for n in graph.nodes
    ]
    assert find_window(graph, graph.producers(), "mask") == 0


def test_a_mask_that_hides_something_else_is_refused() -> None:
    """Here each row sees one cached position too many, that of the next token."""
    graph = mask_graph(512, comparison="LessOrEqual")
    with pytest.raises(BundleError, match="not that of causal attention"):
        find_window(graph, graph.producers(), "mask")


def test_a_mask_with_an_operator_that_is_unknown_is_refused() -> None:
    graph = mask_graph(512)
    graph.nodes[7] = Node("Celu", "is_past", ("cached_row", "lens"), ("is_past",))
    with pytest.raises(BundleError, match="not that of causal attention"):
        find_window(graph, graph.producers(), "mask")
