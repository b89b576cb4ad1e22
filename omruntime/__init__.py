"""The runtime: token ids in, token ids out, over a bundle on a device.

`from omruntime import LLM, SamplingParams`. The names are resolved when they are first used, so
that the exporter can take a contract such as `omruntime.manifest` without loading the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omruntime.async_engine import AsyncEngine as AsyncEngine
    from omruntime.llm import LLM as LLM
    from omruntime.llm import TokenOutput as TokenOutput
    from omruntime.sampling_params import SamplingParams as SamplingParams
    from omruntime.sequence import FinishReason as FinishReason
    from omruntime.settings import EngineSettings as EngineSettings

_HOMES = {
    "AsyncEngine": "omruntime.async_engine",
    "EngineSettings": "omruntime.settings",
    "FinishReason": "omruntime.sequence",
    "LLM": "omruntime.llm",
    "SamplingParams": "omruntime.sampling_params",
    "TokenOutput": "omruntime.llm",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "EngineSettings",
    "FinishReason",
    "SamplingParams",
    "TokenOutput",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
