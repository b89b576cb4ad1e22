"""An estimate of the work memory of a program, as atc would plan it.

Values live from the node that writes them to the last that reads them; the most bytes alive at
once are taken. Fusion and reuse in place would lower it, tiling and layouts raise it.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto

from atc_pipeline.simatc.node_types import ValueType

_ALIGNMENT = 512


def peak_bytes(graph: GraphProto, types: Mapping[str, ValueType]) -> int:
    """The most bytes of intermediate values that are alive at once."""
    last_use = {name: i for i, node in enumerate(graph.node) for name in node.input}
    outputs = {value.name for value in graph.output}
    ends: dict[int, int] = {}
    alive = most = 0
    for number, node in enumerate(graph.node):
        for name in node.output:
            size = _aligned(types[name].size_bytes) if name in types else 0
            alive += size
            if name not in outputs:
                end = last_use.get(name, number)
                ends[end] = ends.get(end, 0) + size
        most = max(most, alive)
        alive -= ends.pop(number, 0)
    return most


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
