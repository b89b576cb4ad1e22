"""Logging: the set-up, the request id in every line, one line for each finished request.

A line is `time LEVEL logger message key=value ...`. Prompts and answers are never logged. Line
breaks inside a message are escaped, so that no client can forge a line.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from typing import TextIO

from server.request_tally import RequestTally
from server.security.callers import caller_var

LEVELS = ("debug", "info", "warning", "error")

request_id_var: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that the current task serves; empty outside of requests."""

_logger = logging.getLogger(__name__)


class _RequestIdFilter(logging.Filter):
    """Puts the request id of the current task on each record, and whose key it came with."""

    def filter(self, record: logging.LogRecord) -> bool:
        request_id = request_id_var.get()
        caller = caller_var.get()
        tail = f" request_id={request_id}" if request_id else ""
        record.request_tail = tail if caller is None else f"{tail} key={caller.name}"
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


def log_level() -> str:
    """The level in force, one of `LEVELS`."""
    return logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()


def set_log_level(level: str) -> None:
    """Log from another level on."""
    logging.getLogger().setLevel(level.upper())


def log_finished(tally: RequestTally) -> None:
    """Log the end of a request at INFO, one line; the request id comes from the context.

    Durations are those of the answers that came to an end; without one there are none.
    """
    timings = [end.timings for end in tally.ends.values() if end.timings is not None]
    durations = "".join(
        f" {name}={max(getattr(t, name) for t in timings):.4f}"
        for name in ("queue_s", "prefill_s", "decode_s")
        if timings
    )
    _logger.info(
        "request finished finish_reason=%s num_prompt_tokens=%d num_output_tokens=%d "
        "num_cached_tokens=%d%s",
        ",".join(reason.value for reason in tally.reasons),
        tally.num_prompt_tokens,
        tally.num_output_tokens,
        tally.num_cached_tokens,
        durations,
    )
