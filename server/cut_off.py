"""The error of an answer that was cut off, for callers that get a whole one or none."""

from __future__ import annotations

from omruntime.errors import DeviceError, OmError, OverloadedError, RequestError
from omruntime.sequence import FinishReason
from server.text import TextDelta


def cut_off(delta: TextDelta) -> OmError | None:
    """Why the answer of this delta is not whole; None where it is, goes on, or was aborted."""
    name = f"answer {delta.index}"
    if delta.finish_reason is FinishReason.ERROR and delta.is_refusal:
        return RequestError(f"{name} failed: {delta.error}")
    if delta.finish_reason is FinishReason.ERROR:
        return DeviceError(f"{name} failed: {delta.error}")
    if delta.finish_reason is FinishReason.ABORT and delta.error:
        return OverloadedError(f"{name} was ended: {delta.error}; send it later")
    return None
