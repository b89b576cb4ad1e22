"""Finds the attention of a step graph, so that one kernel reads the pool where it lies.

The graph gathers blocks, multiplies, masks, and multiplies again, as `export/paged_attention.py`
writes it. Of all that, queries, new keys and values, the pool and a few numbers go into the node
that is put in its place. What the mask hides is found out by `mask_window.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.device.native.graph import Graph, Node, scalar
from omruntime.device.native.mask_window import find_window
from omruntime.errors import BundleError

ATTENTION = "Attention"
_HEADS_FIRST = (1, 0, 2, 3)
_TURNED = (0, 1, 3, 2)


def fuse_attention(graph: Graph) -> None:
    """Put an attention node in the place of every softmax over cached positions.

    Inputs of the node: queries [batch, heads, tokens, head_dim]; new keys and values [kv_heads,
    batch, tokens, head_dim]; the pool's keys and values; block_tables, past_lens and positions.
    Output: [batch, tokens, kv_heads, heads of each, head_dim]. Numbers: scale, window, softcap.

    Raises:
        BundleError: A softmax over cached positions is not that of a step graph.
    """
    finder = _Finder(graph)
    for node in [n for n in graph.nodes if n.op == "Softmax"]:
        if finder.is_over_cache(node):
            found = finder.attention(node)
            graph.replace([], found.anchor, found.node)
    graph.drop_unused()


@dataclass(frozen=True, slots=True)
class _Found:
    node: Node
    anchor: Node


@dataclass(frozen=True, slots=True)
class _Scores:
    """Products of queries with cached and with new keys, before the mask."""

    queries: str
    cached_keys: str
    new_keys: str
    softcap: float


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producers = graph.producers()
        self._users = graph.users()
        self._windows: dict[str, int] = {}

    def is_over_cache(self, softmax: Node) -> bool:
        """Whether a softmax is attention's: its weights are split into cached and new ones."""
        users = self._users.get(softmax.outputs[0], [])
        return len(users) == 1 and users[0].op == "Split"

    def attention(self, softmax: Node) -> _Found:
        """What replaces a softmax and all that serves it alone."""
        added = self._made_by(softmax.inputs[0], "Add", softmax)
        scores = self._scores(added.inputs[0], softmax)
        cached_values, new_values, mixed = self._values(softmax)
        queries, scale = self._scaled(scores.queries, softmax)
        anchor = self._joined_heads(mixed)
        inputs = (
            queries,
            scores.new_keys,
            new_values,
            self._pool(scores.cached_keys, softmax),
            self._pool(cached_values, softmax),
            "block_tables",
            "past_lens",
            "positions",
        )
        window = self._window(added.inputs[1], inputs[3])
        numbers = {"scale": scale, "window": window, "softcap": scores.softcap}
        return _Found(Node(ATTENTION, softmax.name, inputs, anchor.outputs, numbers), anchor)

    def _scores(self, name: str, softmax: Node) -> _Scores:
        node, softcap = self._producers[name], 0.0
        if node.op == "Mul":
            cap, inner = self._factor(node, softmax)
            tanh = self._made_by(inner, "Tanh", softmax)
            softcap, name = self._divisor(tanh.inputs[0], softmax)
            self._require(softcap == cap, softmax, "a soft cap whose two numbers differ")
            node = self._producers[name]
        self._require(node.op == "Concat", softmax, f"scores of a {node.op}")
        cached, new = (self._made_by(each, "MatMul", softmax) for each in node.inputs)
        self._require(cached.inputs[0] == new.inputs[0], softmax, "two kinds of queries")
        return _Scores(
            cached.inputs[0],
            self._before_transpose(cached.inputs[1], _TURNED, softmax),
            self._before_transpose(new.inputs[1], _TURNED, softmax),
            softcap,
        )

    def _divisor(self, name: str, softmax: Node) -> tuple[float, str]:
        """X / number, or x * its reciprocal."""
        node = self._producers[name]
        if node.op == "Div":
            number = scalar(self._graph.constants.get(node.inputs[1]))
            self._require(number is not None, softmax, "a division by what is no constant")
            assert number is not None
            return number, node.inputs[0]
        factor, inner = self._factor(node, softmax)
        return 1.0 / factor, inner

    def _factor(self, node: Node, softmax: Node) -> tuple[float, str]:
        """The number and the other side of a product with a number."""
        self._require(node.op == "Mul", softmax, f"a {node.op} for a product with a number")
        for number, other in (node.inputs, node.inputs[::-1]):
            value = scalar(self._graph.constants.get(number))
            if value is not None:
                return value, other
        raise self._error(softmax, "a product without a number")

    def _scaled(self, name: str, softmax: Node) -> tuple[str, float]:
        """Queries [batch, heads, tokens, head_dim] before they were scaled and grouped."""
        name = self._before_transpose(name, _HEADS_FIRST, softmax)
        if self._producers[name].op == "Reshape":
            name = self._producers[name].inputs[0]
        node = self._producers[name]
        if node.op == "Mul" and any(
            scalar(self._graph.constants.get(each)) is not None for each in node.inputs
        ):
            scale, name = self._factor(node, softmax)
            return name, scale
        return name, 1.0

    def _values(self, softmax: Node) -> tuple[str, str, Node]:
        """Cached and new values, and the node that adds the two products."""
        (parts,) = self._users[softmax.outputs[0]]
        products = [self._only_user(name, "MatMul", softmax) for name in parts.outputs]
        mixed = self._only_user(products[0].outputs[0], "Add", softmax)
        return products[0].inputs[1], products[1].inputs[1], mixed

    def _joined_heads(self, mixed: Node) -> Node:
        """The node whose output is [batch, tokens, kv_heads, heads of each, head_dim]."""
        node = self._only_user(mixed.outputs[0], None, mixed)
        perm: tuple[int, ...] = (1, 2, 0, 3)
        if node.op == "Reshape":
            node, perm = self._only_user(node.outputs[0], None, mixed), (1, 3, 0, 2, 4)
        is_right = node.op == "Transpose" and node.attributes.get("perm") == perm
        self._require(is_right, mixed, "results in another order")
        return node

    def _pool(self, name: str, softmax: Node) -> str:
        """The pool that cached keys or values were gathered from."""
        node = self._made_by(name, "Reshape", softmax)
        node = self._producers[node.inputs[0]]
        if node.op == "Cast":
            node = self._producers[node.inputs[0]]
        is_pool = node.op == "Gather" and node.inputs[0] in self._graph.inputs
        self._require(is_pool, softmax, "keys that come from no pool")
        return node.inputs[0]

    def _window(self, mask: str, pool: str) -> int:
        """The window that a mask is of, 0 for none."""
        if mask not in self._windows:
            self._windows[mask] = find_window(self._graph, self._producers, mask)
        return self._windows[mask]

    def _before_transpose(self, name: str, perm: tuple[int, ...], softmax: Node) -> str:
        node = self._made_by(name, "Transpose", softmax)
        self._require(node.attributes.get("perm") == perm, softmax, "axes in another order")
        return node.inputs[0]

    def _made_by(self, name: str, op: str, softmax: Node) -> Node:
        node = self._producers.get(name)
        if node is None or node.op != op:
            raise self._error(softmax, f"{name} of {'no node' if node is None else node.op}")
        return node

    def _only_user(self, name: str, op: str | None, softmax: Node) -> Node:
        users = self._users.get(name, [])
        if len(users) != 1 or (op is not None and users[0].op != op):
            raise self._error(softmax, f"{name} for {[user.op for user in users]}")
        return users[0]

    def _require(self, is_right: bool, softmax: Node, what: str) -> None:
        if not is_right:
            raise self._error(softmax, what)

    def _error(self, softmax: Node, what: str) -> BundleError:
        return BundleError(
            f"node {softmax.name}: got {what}, wanted the attention of a step graph; the native "
            f"device has no kernel for it: serve this bundle with --device cpu"
        )
