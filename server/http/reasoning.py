"""Reasoning: whether the answers of a model begin with a thought, and whether a prompt opens one.

Found by rendering the bundle's chat template, unless the operator says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from omruntime.errors import PreconditionError, RequestError
from server.http.think_splitter import CLOSE, OPEN
from server.seams import TextGeneratorLike
from server.text import ChatMessage

logger = logging.getLogger(__name__)

_PROBE = "omserve_probe"
_ASK = (ChatMessage("user", "x"),)
_HISTORY = (*_ASK, ChatMessage("assistant", f"{OPEN}{_PROBE}{CLOSE}x"), *_ASK)
_DIRECT = {"enable_thinking": False}


class Beginning(Enum):
    """How the prompt of a model that thinks leaves off.

    OPEN: inside of a thought. CLOSED: behind one, so that none shall come. FREE: the model decides.
    """

    OPEN = "open"
    CLOSED = "closed"
    FREE = "free"


class Reasoning:
    """Of one served model.

    Attributes:
        is_hidden: Whether it thinks and texts do not show where, as far as was asked for.
    """

    def __init__(self, parser: str) -> None:
        """Begin.

        Args:
            parser: One of `settings.REASONING_PARSERS`.
        """
        self.is_hidden = False
        self._is_demanded = parser == "think"
        self._thinks = False if parser == "none" else None

    async def beginning(
        self,
        generator: TextGeneratorLike,
        messages: Sequence[ChatMessage],
        arguments: Mapping[str, Any] | None,
    ) -> Beginning | None:
        """How the prompt of a conversation leaves off; None when the model does not think.

        Raises:
            PreconditionError, RequestError: As `render_chat`, or the operator has demanded what
                the tokenizer does not allow.
        """
        if self._thinks is None:
            self._thinks = await self._find(generator)
        if not self._thinks:
            return None
        return _beginning(await generator.render_chat(messages, arguments))

    async def _find(self, generator: TextGeneratorLike) -> bool:
        """Whether answers begin with a thought that can be told from the rest."""
        if not (self._is_demanded or await _shows_thoughts(generator)):
            return False
        if await _is_in_texts(generator, CLOSE):
            return True
        reason = (
            f"{CLOSE} is a special token of this bundle's tokenizer, which texts leave out, so "
            f"thoughts cannot be told from answers"
        )
        if self._is_demanded:
            raise PreconditionError(f"{reason}; start om-serve with --reasoning-parser none")
        self.is_hidden = True
        logger.warning("thoughts stay in the content: %s", reason)
        return False


async def _shows_thoughts(generator: TextGeneratorLike) -> bool:
    """Whether the template opens a thought, can close one, or takes one out of the history."""
    asked, direct, history = [
        await _rendered(generator, messages, arguments)
        for messages, arguments in ((_ASK, None), (_ASK, _DIRECT), (_HISTORY, None))
    ]
    is_cut = bool(history) and _PROBE not in history
    is_opened = _beginning(asked) is Beginning.OPEN
    return is_opened or CLOSE in direct or is_cut


async def _is_in_texts(generator: TextGeneratorLike, tag: str) -> bool:
    token_ids = await generator.tokenize(tag, False)
    return tag in await generator.detokenize(token_ids, True)


async def _rendered(
    generator: TextGeneratorLike,
    messages: Sequence[ChatMessage],
    arguments: Mapping[str, Any] | None,
) -> str:
    try:
        return await generator.render_chat(messages, arguments)
    except RequestError:
        return ""


def _beginning(prompt: str) -> Beginning:
    """By the prompt's last words; what users write stands further up."""
    prompt = prompt.rstrip()
    if prompt.endswith(OPEN):
        return Beginning.OPEN
    return Beginning.CLOSED if prompt.endswith(CLOSE) else Beginning.FREE
