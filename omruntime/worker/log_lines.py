"""Log records from the device process to the log of the serving process."""

from __future__ import annotations

import logging
from contextlib import suppress

from omruntime.worker.channel import Channel
from omruntime.worker.messages import LogLine


class ChannelHandler(logging.Handler):
    """Sends each record to the other end; a record that finds it gone is lost with everything."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._tracebacks = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; one that cannot be formatted goes to standard error, as in any log."""
        try:
            line = self._line_of(record)
        except Exception:
            self.handleError(record)
            return
        with suppress(OSError):
            self._channel.send(line)

    def _line_of(self, record: logging.LogRecord) -> LogLine:
        traceback = ""
        if record.exc_info:
            traceback = self._tracebacks.formatException(record.exc_info)
        return LogLine(record.name, record.levelno, record.getMessage(), traceback)


def send_logs(channel: Channel, level: int) -> None:
    """Send what this process logs from `level` on, and nothing to its standard error."""
    logging.basicConfig(level=level, handlers=[ChannelHandler(channel)], force=True)


def log_again(line: LogLine) -> None:
    """Put a received record into this process's log."""
    logger = logging.getLogger(line.logger)
    if logger.isEnabledFor(line.level):
        record = logger.makeRecord(line.logger, line.level, "", 0, "%s", (line.text,), None)
        record.exc_text = line.traceback or None
        logger.handle(record)
