"""`om-client top`: the figures, a frame that fits, a line when piped, and a clean end."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from server.pb import control_pb2 as pb
from server.terminal.cli import main
from server.terminal.top_figures import FigureHistory, quantile
from server.terminal.top_view import duration, frame, spark
from tests.server.wire_fakes import FakeServer

ROOT = Path(__file__).parents[3]
SIZES = ((80, 24), (200, 60), (40, 10), (20, 3))
Capture = pytest.CaptureFixture[str]


def snapshot(
    uptime_s: float, tokens: int, gaps: tuple[int, ...] = (0, 0, 0)
) -> pb.WatchLoadResponse:
    histogram = pb.DurationHistogram(bounds_s=(0.1, 0.2), counts=gaps, sum_s=1.0)
    return pb.WatchLoadResponse(
        uptime_s=uptime_s,
        state=pb.SERVER_STATE_SERVING,
        load=pb.GetLoadResponse(
            num_running=2,
            num_waiting=98,
            num_referenced_blocks=10,
            num_total_blocks=40,
            num_free_cached_blocks=20,
            num_finished={"stop": 7},
        ),
        num_generated_tokens=tokens,
        num_computed_tokens=tokens,
        num_padded_tokens=tokens // 4,
        time_to_first_token=histogram,
        inter_token=histogram,
        details=pb.LoadDetails(
            answers=[
                pb.LiveAnswer(request_id=f"r{i}\x1b[2J", is_running=i < 2, num_prompt_tokens=5)
                for i in range(100)
            ],
            buckets=[pb.BucketUse(phase=pb.PHASE_DECODE, batch=8, tokens=1, num_steps=3)],
        ),
    )


def test_rates_are_of_the_latest_two_and_quantiles_of_the_latest_seconds() -> None:
    history = FigureHistory()
    assert history.push(snapshot(10, 1000)).generated is None
    assert history.push(snapshot(12, 1100, (4, 4, 0))).generated == 50
    figures = history.push(snapshot(16, 1100, (4, 8, 0)))
    assert (figures.generated, figures.padding) == (0, 0.2)
    assert figures.next_token_s == (pytest.approx(0.125), pytest.approx(0.1925))
    # 30 s later nothing of before is in the window but the last look.
    assert history.push(snapshot(46, 1100, (4, 8, 0))).next_token_s is None


def test_a_server_that_was_started_anew_begins_at_zero() -> None:
    history = FigureHistory()
    history.push(snapshot(500, 9000, (9, 9, 9)))
    figures = history.push(snapshot(1, 10, (1, 0, 0)))
    assert (figures.generated, figures.next_token_s, figures.padding) == (None, None, None)
    assert history.push(snapshot(2, 30, (2, 0, 0))).generated == 20


@pytest.mark.parametrize(
    ("counts", "share", "wanted"),
    [((10, 0, 0), 0.5, 0.05), ((0, 10, 0), 0.5, 0.15), ((0, 0, 10), 0.5, 0.2), ((5, 5, 0), 1, 0.2)],
)
def test_quantiles(counts: tuple[int, ...], share: float, wanted: float) -> None:
    assert quantile((0.1, 0.2), counts, share) == pytest.approx(wanted)


@pytest.mark.parametrize("size", SIZES)
def test_a_frame_fits_and_obeys_nobody(size: tuple[int, int]) -> None:
    history, width_and_height = FigureHistory(), size
    for seconds in range(30):
        now = snapshot(seconds, seconds * seconds)
        history.push(now)
    lines = frame(history, now, width_and_height).split("\n")
    assert len(lines) <= size[1]
    assert max(map(len, lines)) <= size[0]
    assert "\x1b" not in "".join(lines)


def test_a_frame_says_first_that_a_simulation_gives_its_times() -> None:
    history, now = FigureHistory(), snapshot(1, 1)
    history.push(now)
    assert "SIMULATION" not in frame(history, now, (80, 24))
    now.is_simulated = True
    assert "a SIMULATION" in frame(history, now, (80, 24)).split("\n")[0]


def test_a_frame_tells_what_it_has_no_room_for() -> None:
    history = FigureHistory()
    history.push(snapshot(1, 1))
    lines = frame(history, snapshot(1, 1), (80, 24)).split("\n")
    assert lines[0] == "omserve serving, up 1 s"
    assert lines[1].startswith("answers     2 running, 98 waiting; since start 7 ended")
    (heading,) = (line for line in lines if line.startswith("ANSWER"))
    shown = [line for line in lines if line.startswith("r")]
    assert heading.startswith(f"ANSWER ({len(shown)} of 100)")
    assert shown[0].split()[1] == "prefill"
    assert lines[-1].startswith("decode 8 x 1, past 0")


def test_sparks_and_durations() -> None:
    assert spark([None, 0.0, 4.0, 8.0], 10) == " ▁▅█"
    assert spark([1.0, 2.0, 4.0], 2) == "▅█"
    assert spark([0.0, 0.0], 5) == "▁▁"
    assert [duration(s) for s in (0.25, 5, 300, 9000, 1e6)] == [
        "250 ms",
        "5 s",
        "5 min",
        "2 h",
        "12 d",
    ]


def test_piped_it_is_a_line_for_each_look(server: FakeServer, capsys: Capture) -> None:
    argv = ["top", "--target", server.target, "--interval-s", "0.25"]
    assert main([*argv, "--count", "2"]) == 0
    first, second = (
        dict(pair.split("=") for pair in line.split())
        for line in capsys.readouterr().out.splitlines()
    )
    assert (first["running"], first["blocks_held"], first["state"]) == ("1", "4", "serving")
    assert first["simulated"] == "false"
    assert (first["generated_per_s"], second["generated_per_s"]) == ("-", "0.0")
    assert main([*argv, "--count", "0"]) == 2
    assert main([*argv[:3], "--interval-s", "0"]) == 2
    assert "INVALID_ARGUMENT" in capsys.readouterr().err


def test_at_a_terminal_ctrl_c_gives_the_screen_back(server: FakeServer) -> None:
    # A shell's background jobs inherit SIGINT as ignored, and Python leaves that as it is.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from server.terminal.cli import main; sys.exit(main())"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "top", "--target", server.target],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    with process:
        seen = read_until(ours, b"BUCKET")
        assert seen.startswith(b"\x1b[?1049h")
        assert b"omserve serving" in seen
        process.send_signal(signal.SIGINT)
        assert read_until(ours, b"\x1b[?1049l").endswith(b"\x1b[?25h\x1b[?1049l")
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(ours)


def read_until(fd: int, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        seen += os.read(fd, 4096)
    return seen
