"""Logging: the set-up, the request id in every line, one line for each finished request.

A line is `time LEVEL logger message key=value ...`. Prompts and answers are never logged. Line
breaks inside a message are escaped, so that no client can forge a line.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TextIO

from omruntime.sequence import FinishReason
from server.text import TextDelta

LEVELS = ("debug", "info", "warning", "error")

request_id_var: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that the current task serves; empty outside of requests."""

_logger = logging.getLogger(__name__)


class _RequestIdFilter(logging.Filter):
    """Puts the request id of the current task on each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        request_id = request_id_var.get()
        record.request_tail = f" request_id={request_id}" if request_id else ""
        return True


class _OneLineFormatter(logging.Formatter):
    """Escapes line breaks of the message; a traceback keeps its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


def set_up_logging(level: str, stream: TextIO | None = None) -> None:
    """Send all loggers to one stream, replacing earlier handlers.

    Args:
        level: One of `LEVELS`.
        stream: Default: standard error.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.addFilter(_RequestIdFilter())
    handler.setFormatter(
        _OneLineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s%(request_tail)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def log_finished(num_answers: int, ends: Sequence[TextDelta]) -> None:
    """Log the end of a request at INFO, one line; the request id comes from the context.

    Args:
        num_answers: How many answers were asked for; those without an end were aborted.
        ends: The terminal deltas.
    """
    reasons = [d.finish_reason.value for d in ends if d.finish_reason is not None]
    reasons += [FinishReason.ABORT.value] * (num_answers - len(ends))
    usages = [d.usage for d in ends if d.usage is not None]
    timings = [d.timings for d in ends if d.timings is not None]
    _logger.info(
        "request finished finish_reason=%s num_prompt_tokens=%d num_output_tokens=%d "
        "num_cached_tokens=%d queue_s=%.4f prefill_s=%.4f decode_s=%.4f",
        ",".join(reasons),
        max((u.num_prompt_tokens for u in usages), default=0),
        sum(u.num_output_tokens for u in usages),
        max((u.num_cached_tokens for u in usages), default=0),
        max((t.queue_s for t in timings), default=0.0),
        max((t.prefill_s for t in timings), default=0.0),
        max((t.decode_s for t in timings), default=0.0),
    )
