"""What the device process logs appears in the serving process's log as if it were its own."""

from __future__ import annotations

import logging
import socket
import sys

import pytest

from omruntime.worker.channel import Channel
from omruntime.worker.log_lines import ChannelHandler, log_again
from omruntime.worker.messages import LogLine


def sent(message: str, *arguments: object, exc_info: object = None) -> LogLine:
    """A record after its way through the channel."""
    ours, theirs = socket.socketpair()
    sender, receiver = Channel(ours), Channel(theirs)
    record = logging.LogRecord("omruntime.x", logging.ERROR, "", 0, message, arguments, exc_info)  # type: ignore[arg-type]
    ChannelHandler(sender).emit(record)
    line = receiver.receive()
    sender.close()
    receiver.close()
    assert isinstance(line, LogLine)
    return line


def test_a_line_keeps_logger_level_and_text(caplog: pytest.LogCaptureFixture) -> None:
    log_again(sent("a %s that is 100%%", "step"))
    assert caplog.record_tuples == [("omruntime.x", logging.ERROR, "a step that is 100%")]


def test_a_traceback_comes_along(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("the reason")
    except ValueError:
        log_again(sent("failed", exc_info=sys.exc_info()))
    assert "ValueError: the reason" in caplog.text
    assert "test_log_lines.py" in caplog.text


def test_a_line_below_the_level_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("omruntime.x").setLevel(logging.CRITICAL)
    log_again(sent("too low"))
    logging.getLogger("omruntime.x").setLevel(logging.NOTSET)
    assert not caplog.records


def test_a_wrong_log_call_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    record = logging.LogRecord("omruntime.x", logging.ERROR, "", 0, "%d", ("no number",), None)
    ChannelHandler(channel).emit(record)
    channel.close()
    theirs.close()
    assert "Logging error" in capsys.readouterr().err


def test_a_line_that_nobody_can_take_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.close()
    record = logging.LogRecord("omruntime.x", logging.ERROR, "", 0, "lost", (), None)
    ChannelHandler(channel).emit(record)
    channel.close()
