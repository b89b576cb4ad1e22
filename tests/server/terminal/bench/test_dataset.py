"""Recorded requests: what lines may hold, and which are refused by their number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.terminal.cli import main
from server.text import TextDelta, Usage
from tests.server.wire_fakes import FakeServer, end

Capture = pytest.CaptureFixture[str]
SHAREGPT = [
    {"from": "gpt", "value": "what was cut off"},
    {"from": "human", "value": "Hi. "},
    {"from": "gpt", "value": "Hello"},
    {"from": "human", "value": " Bye."},
    {"from": "gpt", "value": "So long"},
]


def bench(server: FakeServer, path: Path, lines: list[object], *flags: str) -> int:
    """Run over a file with these lines, without a warm-up."""
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    server.generator.script = [TextDelta(0, "ab", (7, 8)), end(usage=Usage(3, 2, 0))]
    common = ["bench", "--target", server.target, "--num-warmups", "0"]
    return main([*common, "--dataset-path", str(path), *flags])


def test_lines_are_sent_at_their_arrival(
    server: FakeServer, tmp_path: Path, capsys: Capture
) -> None:
    lines: list[object] = [
        {"prompt_ids": [5, 6], "output_len": 2, "arrival_s": 0.02},
        {"prompt": "text", "output_len": 3, "arrival_s": 0},
        {"input_len": 4, "output_len": 5, "arrival_s": 0.01},
    ]
    assert bench(server, tmp_path / "f", lines) == 0
    text, made, ids = server.generator.requests
    assert (text.text, ids.token_ids, len(made.token_ids or ())) == ("text", (5, 6), 4)
    assert [r.params.max_new_tokens for r in (text, made, ids)] == [3, 5, 2]
    assert not text.params.ignore_eos
    assert "open loop, arrivals of the file" in capsys.readouterr().out
    assert bench(server, tmp_path / "f", lines, "--request-rate", "inf", "--ignore-eos") == 0
    assert "open loop, all at once" in capsys.readouterr().out
    assert server.generator.requests[-1].params.ignore_eos


def test_conversations_of_sharegpt_have_the_lengths_of_their_answers(
    server: FakeServer, tmp_path: Path, capsys: Capture
) -> None:
    lines: list[object] = [{"id": "x", "conversations": SHAREGPT}]
    assert bench(server, tmp_path / "f", lines) == 0
    requests = server.generator.requests
    assert [r.text for r in requests] == ["Hi. ", "Hi. ab Bye."]
    assert [r.params.max_new_tokens for r in requests] == [5, 7]  # its tokenizer has letters
    assert "closed loop, 1 user" in capsys.readouterr().out
    assert bench(server, tmp_path / "f", lines, "--sharegpt-output-len", "4") == 0
    assert requests[-1].params.max_new_tokens == 4


RIGHT = {"prompt": "x", "output_len": 1}


@pytest.mark.parametrize(
    ("lines", "flags", "told"),
    [
        ([RIGHT, {"prompt": "x"}], "", "line 2 of {} is"),
        ([{"prompt": "x", "input_len": 1, "output_len": 1}], "", "wanted an object with one of"),
        ([{"prompt_ids": [1.5], "output_len": 1}], "", "line 1 of {} is"),
        ([{"input_len": True, "output_len": 1}], "", "line 1 of {} is"),
        ([RIGHT | {"arrival_s": -1}], "", "arrival_s (0 or more)"),
        ([["list"]], "", "line 1 of {} is"),
        ([{"conversations": [{"from": "human", "value": "x"}] * 2}], "", "line 1 of {} is"),
        ([{"conversations": []}], "", "line 1 of {} is"),
        ([RIGHT, RIGHT | {"arrival_s": 1}], "", "has arrival_s on 1 of 2 lines"),
        ([RIGHT], "--num-prompts 2", "has 1 requests, and --num-prompts is 2"),
        ([RIGHT], "--num-prompts 0", "--num-prompts is 0, wanted at least 1"),
        ([RIGHT], "--turns 2", "--turns is of made-up prompts and has no effect on --dataset-path"),
        ([{"input_len": 500, "output_len": 1}], "", "the model takes 128"),
        ([{"conversations": SHAREGPT}], "--sharegpt-output-len 0", "wanted at least 1"),
        ([], "", "has no lines, wanted one for each request"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_sent(
    server: FakeServer,
    tmp_path: Path,
    capsys: Capture,
    lines: list[object],
    flags: str,
    told: str,
) -> None:
    path = tmp_path / "f"
    assert bench(server, path, lines, *flags.split()) == 2
    assert told.format(path) in capsys.readouterr().err
    assert server.generator.requests == []


def test_files_that_cannot_be_read_are_refused(
    server: FakeServer, tmp_path: Path, capsys: Capture
) -> None:
    common = ["bench", "--target", server.target]
    assert main([*common, "--dataset-path", str(tmp_path / "none")]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert main([*common, "--sharegpt-output-len", "3"]) == 2
    assert "give --dataset-path too" in capsys.readouterr().err
