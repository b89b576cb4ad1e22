"""The text that weight formats are measured over.

It is the description of torch in its package's metadata (torch 2.13.0, which the exporter pins):
English prose with commands and code, the same wherever the exporter is installed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from omruntime.errors import ExportError

_PACKAGE = "torch"
_NUM_ROWS = 16
_NUM_CONTEXT = 64
_NUM_SCORED = 64
# Fewer than these tell nothing.
_LEAST_TOKENS = 4


@dataclass(frozen=True, slots=True)
class QualityText:
    """Windows of the text, side by side.

    Attributes:
        token_ids: int64 [rows, context + scored + 1].
        num_context: Tokens of each row that only lead in.
        source: What the text is, for the report.
    """

    token_ids: NDArray[np.int64]
    num_context: int
    source: str

    @property
    def num_scored(self) -> int:
        """Positions of a row whose next token is predicted."""
        return int(self.token_ids.shape[1]) - self.num_context - 1


def quality_text(
    tokenizer: PreTrainedTokenizerFast, vocab_size: int, max_model_len: int
) -> QualityText:
    """The text in a checkpoint's tokens, in windows that its buckets cover.

    Raises:
        ExportError: The checkpoint's context is too short to measure anything.
    """
    text = _description()
    encoded = tokenizer(text, add_special_tokens=False)["input_ids"]
    token_ids = np.array([i for i in encoded if i < vocab_size], np.int64)
    length = min(_NUM_CONTEXT + _NUM_SCORED + 1, max_model_len, len(token_ids))
    if length < _LEAST_TOKENS:
        raise ExportError(
            f"a weight format is measured over windows of at least {_LEAST_TOKENS} tokens, and "
            f"this checkpoint gives {length}; build it with --weights float32"
        )
    num_rows = min(_NUM_ROWS, len(token_ids) // length)
    digest = hashlib.sha256(text.encode()).hexdigest()
    version = importlib.metadata.version(_PACKAGE)
    return QualityText(
        token_ids=token_ids[: num_rows * length].reshape(num_rows, length),
        num_context=length // 2,
        source=f"the description of {_PACKAGE} {version}, sha256 {digest}",
    )


def _description() -> str:
    metadata = importlib.metadata.distribution(_PACKAGE).read_text("METADATA") or ""
    return metadata.partition("\n\n")[2]
