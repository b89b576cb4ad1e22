"""The order in which a program's nodes are planned.

Views and parts of outputs go right behind what makes them, so that new keys and values are copied
out while they are in a cache, and the memory behind them is free again after their layer.
"""

from __future__ import annotations

from omruntime.device.native.graph import Graph, Node

PLACE = "Place"
_EARLY = ("Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze", PLACE)


def schedule(graph: Graph) -> None:
    """Order the nodes in place; what each takes stays before it."""
    for name in graph.outputs:
        _place_parts(graph, name)
    users = graph.users()
    given = {*graph.constants, *graph.inputs}
    missing = {id(node): sum(name not in given for name in node.inputs) for node in graph.nodes}
    placed: set[int] = set()
    ordered: list[Node] = []
    for node in graph.nodes:
        todo = [node]
        while todo:
            node = todo.pop()
            if id(node) in placed:
                continue
            placed.add(id(node))
            ordered.append(node)
            for user in (u for name in node.outputs for u in users.get(name, [])):
                missing[id(user)] -= 1
                if missing[id(user)] == 0 and user.op in _EARLY:
                    todo.append(user)
    graph.nodes = ordered


def _place_parts(graph: Graph, output: str) -> None:
    """Let the equal parts of an output be put in their places one by one.

    Each `Place` names the output, which part it is, and of how many.
    """
    producers = graph.producers()
    node = producers.get(output)
    gone = [node] if node is not None else []
    if node is not None and node.op == "Cast":
        # Narrowed part by part.
        node = producers.get(node.inputs[0])
        gone += [node] if node is not None else []
    if node is None or node.op != "Concat" or node.attributes["axis"] != 0:
        return
    count = len(node.inputs)
    places = [
        Node(
            PLACE,
            f"{node.name}.{index}",
            (name,),
            (f"{output}.{index}",),
            {"output": output, "index": index, "count": count},
        )
        for index, name in enumerate(node.inputs)
    ]
    ids = {id(each) for each in gone}
    graph.nodes = [each for each in graph.nodes if id(each) not in ids] + places
