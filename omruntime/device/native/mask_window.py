"""What an attention mask hides: found out by computing it, not read off its nodes.

The mask of a made step must be that of causal attention, with or without a window; otherwise the
graph is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from omruntime.device.native.folding import evaluate
from omruntime.device.native.graph import Array, Graph, Node
from omruntime.errors import BundleError

NO_WINDOW = 0
# A made step is about this long. A longer window would leave no mark on it, so that a larger
# number is replaced by a short one while the mask is computed.
_LONGEST_TRIED = 64
_SHORT = 5


def find_window(graph: Graph, producers: Mapping[str, Node], mask: str) -> int:
    """The window of a mask [1, batch, group * tokens, cached + new], 0 for none.

    Raises:
        BundleError: It hides something else than causal attention does.
    """
    numbers = set(_whole_numbers(graph, producers, mask))
    # None comes last, when every number, a window's too, must make no difference.
    for window, shortened in (*((n, {n}) for n in sorted(numbers)), (NO_WINDOW, numbers)):
        step = _MadeStep(_short(window))
        known = _with_short(graph.constants, shortened)
        got = evaluate(mask, producers, {**known, **step.inputs})
        if got is not None and step.is_hidden_by(got):
            return window
    raise BundleError(
        f"the mask {mask} is not that of causal attention, with or without a window; the native "
        f"device has no kernel for it: serve this bundle with --device cpu"
    )


def _with_short(constants: Mapping[str, Array], numbers: set[int]) -> dict[str, Array]:
    """All constants, these numbers among them shortened."""
    return {
        name: np.full_like(array, _short(array.item()))
        if _is_number(array) and array.item() in numbers
        else array
        for name, array in constants.items()
    }


def _short(number: int) -> int:
    return _SHORT if number > _LONGEST_TRIED else number


def _whole_numbers(graph: Graph, producers: Mapping[str, Node], name: str) -> Iterator[int]:
    """Every whole number above 1 that a value depends on."""
    array = graph.constants.get(name)
    if array is not None and _is_number(array) and array > 1:
        yield array.item()
    node = producers.get(name)
    for each in node.inputs if node is not None else ():
        yield from _whole_numbers(graph, producers, each)


def _is_number(array: Array) -> bool:
    """Whether a constant is one whole number."""
    return array.size == 1 and array.dtype.kind == "i"


class _MadeStep:
    """A step of two rows, one with a long past, that any window leaves its mark on."""

    def __init__(self, window: int) -> None:
        self._window = window or 10**9
        self._tokens = min(window, _LONGEST_TRIED) + 3
        self._num_blocks = _LONGEST_TRIED
        self._past_lens = np.array([self._num_blocks - 2, 1], np.int32)
        new = np.arange(self._tokens, dtype=np.int32)
        self._positions = self._past_lens[:, None] + new
        self.inputs: dict[str, Array] = {
            "input_ids": np.zeros((2, self._tokens), np.int32),
            "positions": self._positions,
            "block_tables": np.zeros((2, self._num_blocks), np.int32),
            "past_lens": self._past_lens,
        }

    def is_hidden_by(self, mask: Array) -> bool:
        """Whether a mask [1, batch, group * tokens, cached + new] is 0 exactly where one sees."""
        rows, total = mask.shape[2], mask.shape[3]
        if mask.shape[:2] != (1, 2) or rows % self._tokens or total <= self._tokens:
            return False
        cached, new = np.arange(total - self._tokens), np.arange(self._tokens)
        token = new[:, None]
        sees_cached = (cached < self._past_lens[:, None, None]) & (
            self._positions[:, :, None] - cached < self._window
        )
        sees_new = (token >= new) & (token - new < self._window)
        sees_new = np.broadcast_to(sees_new, (2, *sees_new.shape))
        sees = np.tile(
            np.concatenate([sees_cached, sees_new], axis=2), (1, rows // self._tokens, 1)
        )
        return bool(((mask[0] == 0) == sees).all() and (mask[0][~sees] < -1e3).all())
