"""Detokenizer: token ids one by one -> text that is final.

The pieces joined equal one decode of all ids byte for byte, whatever the tokenizer's decoder:
text goes out only where no later token can change it. (`tokenizers.decoders.DecodeStream` has
no end of stream, so it loses what it holds back, and its window grows while it does.)
"""

from __future__ import annotations

import re
from typing import Protocol

_REPLACEMENT = "\ufffd"
# A byte of a character outside the vocabulary, in tokenizers with byte fallback.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Enough tokens to hold the end of any character, of which each gives at least one byte.
_TAIL_TOKENS = 8


class Decoder(Protocol):
    """What the detokenizer needs of a `Tokenizer`."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        """The text of ids."""

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it."""

    def is_special(self, token_id: int) -> bool:
        """Whether skipping special tokens leaves the id out."""


class Detokenizer:
    """The text of one answer in the making.

    Two runs of tokens are kept: those held back, and before them the last ones that went out,
    because a decoder treats the first token of a text in its own way (a leading space).
    """

    def __init__(self, decoder: Decoder, skip_special_tokens: bool) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._sent: list[int] = []
        self._sent_text = ""
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that has become final, often none."""
        token = self._decoder.token(token_id)
        if token is None or (self._skip_special_tokens and self._decoder.is_special(token_id)):
            return ""
        self._held.append(token_id)
        # Byte tokens that follow each other are one unit: a wrong byte spoils all of them.
        if _BYTE_TOKEN.fullmatch(token):
            return ""
        if len(self._held) > _TAIL_TOKENS and not self._is_complete(
            self._decode(self._held[-_TAIL_TOKENS:])
        ):
            return ""
        text = self._decode(self._sent + self._held)
        return self._release(text) if self._is_complete(text) else ""

    def flush(self) -> str:
        """End the answer; returns what was held back."""
        return self._release(self._decode(self._sent + self._held)) if self._held else ""

    def _release(self, text: str) -> str:
        """Send what is held; `text` is what `_sent` and `_held` decode to together."""
        new_text = text[len(self._sent_text) :]
        held_text = self._decode(self._held)
        if not held_text:
            # A lone space, which a decoder strips from the front, would not show what follows it.
            self._held = [*self._sent, *self._held][-_TAIL_TOKENS:]
            held_text = self._decode(self._held)
        self._sent, self._sent_text, self._held = self._held, held_text, []
        return new_text

    def _is_complete(self, text: str) -> bool:
        """Whether a text ends with a character that is whole."""
        return not text.endswith(_REPLACEMENT)

    def _decode(self, token_ids: list[int]) -> str:
        return self._decoder.decode(token_ids, self._skip_special_tokens)
