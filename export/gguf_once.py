"""A GGUF file that transformers opens three times is parsed once, and in a third of the time.

For config, weights and tokenizer alike it reads the whole header, a hundred Python calls for each
token of the vocabulary: 20 s for one of 262,144 tokens. And for each module of the model it makes
the table of the architecture's tensor names anew: 8 s for 30 layers, twice. Which parts are read
stays its business.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

import gguf
import numpy as np


class _PlainReader(gguf.GGUFReader):  # type: ignore[misc]  # gguf has no types
    """Reads through a plain array: each slice of a `numpy.memmap` costs several times as much."""

    def __setattr__(self, name: str, value: object) -> None:
        plain = value.view(np.ndarray) if isinstance(value, np.memmap) else value
        super().__setattr__(name, plain)


@contextmanager
def parse_gguf_once() -> Iterator[None]:
    """Inside of the `with`, opening a path again gives the reader that was there first.

    transformers takes both names from the package at each call. Not for two threads at once.
    """
    with (
        patch.object(gguf, "GGUFReader", cache(_PlainReader)),
        patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        yield
