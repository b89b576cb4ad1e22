from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omruntime.sequence import FinishReason
from server.client import Client
from server.client.arguments import CallOptions
from server.logs import log_finished, request_id_var, set_up_logging
from server.request_tally import RequestTally
from server.text import TextDelta
from tests.server.wire_fakes import FakeServer, end


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """The log, while it is set up at INFO."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    stream = io.StringIO()
    set_up_logging("info", stream)
    yield stream
    root.handlers, root.level = handlers, level


def test_one_line_for_each_finished_request_and_never_the_prompt(output: io.StringIO) -> None:
    with FakeServer() as server, Client(server.target) as client:
        client.generate("my secret prompt", options=CallOptions(request_id="r1"))
        server.await_that(lambda: "request finished" in output.getvalue())
    (line,) = [x for x in output.getvalue().splitlines() if "request finished" in x]
    for part in (
        " INFO ",
        "request_id=r1",
        "finish_reason=stop",
        "num_output_tokens=2",
        "prefill_s=0.5000",
    ):
        assert part in line
    assert "secret" not in output.getvalue()
    assert "Hi!" not in output.getvalue()


def test_answers_whose_reader_left_count_as_aborted_with_what_was_taken(
    output: io.StringIO,
) -> None:
    tally = RequestTally(3)
    tally.count(TextDelta(1, "ab", (5, 6), num_prompt_tokens=4))
    tally.count(end(0, FinishReason.LENGTH))
    log_finished(tally)
    assert "finish_reason=length,abort,abort num_prompt_tokens=4 num_output_tokens=4" in (
        output.getvalue()
    )
    assert "queue_s=0.2500" in output.getvalue()


def test_durations_are_left_out_when_no_answer_ended(output: io.StringIO) -> None:
    tally = RequestTally(1)
    tally.count(TextDelta(0, "a", (5,), num_prompt_tokens=4))
    log_finished(tally)
    assert "finish_reason=abort num_prompt_tokens=4 num_output_tokens=1" in output.getvalue()
    assert "queue_s" not in output.getvalue()


def test_a_message_cannot_forge_a_line_and_a_traceback_keeps_its_own(output: io.StringIO) -> None:
    """BL-44: what a client sends stays within its line."""
    logging.getLogger("x").info("got %s", "a\r\n2026-01-01 INFO forged")
    assert output.getvalue().count("\n") == 1
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "\nTraceback" in output.getvalue()


def test_the_request_id_is_absent_outside_of_requests(output: io.StringIO) -> None:
    logging.getLogger("x").info("plain")
    token = request_id_var.set("r2")
    logging.getLogger("x").info("inside")
    request_id_var.reset(token)
    first, second = output.getvalue().splitlines()
    assert "request_id" not in first
    assert second.endswith("inside request_id=r2")


def test_the_level_is_kept(output: io.StringIO) -> None:
    set_up_logging("warning", output)
    logging.getLogger("x").info("quiet")
    assert output.getvalue() == ""


def test_a_full_disk_under_the_log_stops_nobody() -> None:
    """Each line that cannot be written is lost; a whole process, as its end flushes as well."""
    program = (
        "import logging\n"
        "from server.logs import set_up_logging\n"
        "set_up_logging('info')\n"
        "for i in range(1000): logging.getLogger('x').info('line %d', i)\n"
        "print('alive', flush=True)\n"
    )
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, timeout=60
        )
    assert ended.stdout == b"alive\n"
    assert ended.returncode == 0
