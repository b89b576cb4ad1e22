"""Why an answer in the terminal is not whole, in one line for standard error."""

from __future__ import annotations

from omruntime.sequence import FinishReason
from server.text import TextDelta

# An abort that nothing more is said of.
_ABORTED = "the server ended it, as a drain and its operator do; send it again"


def why_not_whole(last: TextDelta | None) -> str | None:
    """What ended an answer before its time; None where nothing did.

    Args:
        last: Its last delta; None: none came.
    """
    reason = None if last is None else last.finish_reason
    if reason in (FinishReason.STOP, FinishReason.LENGTH):
        return None
    if last is None or reason is None:
        return "the answer ended by no end"
    error = last.error or (_ABORTED if reason is FinishReason.ABORT else "")
    text = f": {error}" if error else ""
    return f"the answer ended by {reason.value}{text}".replace("\n", " ")
