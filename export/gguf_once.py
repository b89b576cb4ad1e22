"""A GGUF file that transformers opens three times is parsed once.

For config, weights and tokenizer alike it reads the whole header, a hundred Python calls for each
token of the vocabulary: 20 s for one of 262,144 tokens. Which parts are read stays its business.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import gguf


@contextmanager
def parse_gguf_once() -> Iterator[None]:
    """Inside of the `with`, opening a path again gives the reader that was there first.

    transformers takes the class from the package at each call. Not for two threads at once.
    """
    original = gguf.GGUFReader
    gguf.GGUFReader = cache(original)
    try:
        yield
    finally:
        gguf.GGUFReader = original
