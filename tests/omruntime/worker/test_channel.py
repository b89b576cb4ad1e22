"""Whole messages or none, whatever the other end does."""

from __future__ import annotations

import socket
import threading

import pytest

from omruntime.worker.channel import Channel
from omruntime.worker.messages import LogLine, Progress


def channels() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def test_messages_arrive_in_order_and_the_end_after_them() -> None:
    first, second = channels()
    sent = [Progress(str(i), runs=bool(i % 2)) for i in range(100)]
    for message in sent:
        first.send(message)
    first.close()
    assert [second.receive() for _ in sent] == sent
    assert second.receive() is None
    second.close()


def test_a_message_larger_than_any_buffer_arrives() -> None:
    first, second = channels()
    line = LogLine("name", 10, "x" * 5_000_000, "")
    sender = threading.Thread(target=first.send, args=(line,))
    sender.start()
    assert second.receive() == line
    sender.join()
    first.close()
    second.close()


@pytest.mark.parametrize("num_bytes", [1, 3, 4, 7])
def test_an_end_within_a_message_is_an_end(num_bytes: int) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.sendall((b"\0\0\0\x20" + b"x" * 20)[:num_bytes])
    theirs.close()
    assert channel.receive() is None
    channel.close()


def test_ending_gives_out_what_has_arrived_although_somebody_holds_the_other_end() -> None:
    """A helper that a driver forked may hold the socket of a process that is long dead."""
    first, second = channels()
    second.send(Progress("last words", runs=False))
    first.end()
    assert first.receive() == Progress("last words", runs=False)
    assert first.receive() is None
    with pytest.raises(OSError, match="pipe"):
        first.send(Progress("nobody reads", runs=False))
    first.close()
    second.close()


def test_ending_frees_a_sender_that_waits() -> None:
    first, second = channels()
    failed = threading.Event()

    def send() -> None:
        try:
            first.send(LogLine("name", 10, "x" * 5_000_000, ""))
        except OSError:
            failed.set()

    sender = threading.Thread(target=send)
    sender.start()
    first.end()
    sender.join(60)
    assert failed.is_set()
    first.close()
    second.close()
