"""Everything that speaks to the outside: gRPC, the text layer, `om-serve` and `om-client`.

`from server import LLM` runs a bundle in this process. The names are resolved when they are
first used, so that the command lines start without loading the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.llm import LLM as LLM
    from server.llm import RequestOutput as RequestOutput
    from server.text import ChatMessage as ChatMessage
    from server.text import TextDelta as TextDelta

_HOMES = {
    "LLM": "server.llm",
    "ChatMessage": "server.text",
    "RequestOutput": "server.llm",
    "TextDelta": "server.text",
}

__all__ = ["LLM", "ChatMessage", "RequestOutput", "TextDelta"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
