"""`om-client bench` against a server on a real port: reports, exit codes, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omruntime.errors import OverloadedError
from omruntime.sequence import FinishReason
from server.terminal.bench.metrics import DEFINITIONS
from server.terminal.cli import main
from server.text import TextDelta, Usage
from tests.server.wire_fakes import FakeServer, end

Capture = pytest.CaptureFixture[str]
Bench = Callable[..., int]
TOKENS = [TextDelta(0, "a", (7,)), TextDelta(0, "b", (8,))]


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def server(shared: FakeServer) -> FakeServer:
    shared.generator.script = [*TOKENS, end(0, FinishReason.LENGTH, usage=Usage(12, 2, 4))]
    shared.generator.requests.clear()
    return shared


@pytest.fixture
def bench(server: FakeServer) -> Bench:
    def run(*flags: str) -> int:
        lengths = ("--random-input-len", "12", "--random-output-len", "2", "--num-prompts", "6")
        return main(["bench", "--target", server.target, *lengths, *flags])

    return run


def test_the_report_has_figures_and_what_they_mean(bench: Bench, capsys: Capture) -> None:
    assert bench("--max-concurrency", "2", "--goodput", "ttft:60000") == 0
    said = capsys.readouterr().out
    assert "model       org/toy (ToyForCausalLM, float32)" in said
    assert "closed loop, 2 users" in said
    assert "requests    6 ok, 0 rejected, 0 failed" in said
    assert "tokens      72 prompt (24 of them cached), 12 output, 1.00 in an event" in said
    assert "met ttft:60000 (ms): 100.0% of all sent" in said
    words = " ".join(said.split())
    for name, text in DEFINITIONS.items():
        assert f"{name} {text}" in words


def test_requests_are_as_asked_and_the_same_again(bench: Bench, server: FakeServer) -> None:
    assert bench("--seed", "3") == 0
    first = list(server.generator.requests)
    assert len(first) == 7
    warm_up = first[0].token_ids or ()
    assert len(warm_up) == 16
    # Or it would warm the prefix cache for the load.
    assert all((request.token_ids or ())[:4] != warm_up[:4] for request in first[1:])
    assert [len(request.token_ids or ()) for request in first[1:]] == [12] * 6
    params = first[-1].params
    assert (params.max_new_tokens, params.temperature, params.ignore_eos) == (2, 0.0, True)
    assert first[-1].output.omit_text
    server.generator.requests.clear()
    assert bench("--seed", "3", "--num-warmups", "0", "--no-ignore-eos") == 0
    again = list(server.generator.requests)
    assert [r.token_ids for r in again] == [r.token_ids for r in first[1:]]
    assert not again[0].params.ignore_eos


def test_an_open_loop_of_conversations_in_text(
    bench: Bench, server: FakeServer, capsys: Capture
) -> None:
    flags = ["--request-rate", "1000", "--burstiness", "0.5", "--turns", "2"]
    assert bench(*flags, "--prompt-kind", "text", "--num-warmups", "0") == 0
    assert "open loop, 1000 arrivals/s (gamma, burstiness 0.5)" in capsys.readouterr().out
    texts = [request.text or "" for request in server.generator.requests]
    assert len(texts) == 12
    later = [text for text in texts if len(text.split()) > 12]
    assert len(later) == 6
    assert all("ab" in text for text in later)


@pytest.mark.parametrize(
    ("flag", "least", "most"),
    [("--random-range-ratio=0.5", 6, 18), ("--lognormal-sigma=3", 1, 64)],
)
def test_lengths_are_drawn_and_fit_the_model(
    bench: Bench, server: FakeServer, flag: str, least: int, most: int
) -> None:
    """The server takes 128 tokens, half of which a lognormal prompt may have."""
    assert bench(flag, "--num-prompts", "40", "--max-concurrency", "40", "--num-warmups", "0") == 0
    lengths = [len(request.token_ids or ()) for request in server.generator.requests]
    assert len(set(lengths)) > 5
    assert least <= min(lengths) <= max(lengths) <= most
    assert max(lengths) - min(lengths) > (most - least) / 2


def test_shared_beginnings(bench: Bench, server: FakeServer) -> None:
    flags = ("--random-prefix-len", "9", "--num-prefixes", "2", "--prefix-fraction", "0.5")
    assert bench(*flags, "--num-prompts", "40", "--max-concurrency", "40") == 0
    ids = [request.token_ids or () for request in server.generator.requests[1:]]
    assert {len(each) for each in ids} == {12, 21}
    assert len({each[:9] for each in ids if len(each) == 21}) == 2


def test_json_has_everything(bench: Bench, capsys: Capture, tmp_path: Path) -> None:
    assert bench("--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["figures"]["num_ok"] == len(printed["requests"]) == 6
    assert printed["figures"]["ttft_ms"]["count"] == 6
    assert printed["definitions"] == DEFINITIONS
    assert printed["requests"][0]["num_cached_tokens"] == 4
    assert {"lag_p99_s", "late_p99_s", "loop_cpu", "warnings"} <= printed["client"].keys()
    assert bench("--json", str(tmp_path / "run.json")) == 0
    assert "requests/s" in capsys.readouterr().out
    assert json.loads((tmp_path / "run.json").read_text())["figures"]["num_ok"] == 6


def test_a_reader_that_leaves_costs_no_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("server.terminal.bench.command.report_lines", gone)
    assert bench("--html", str(tmp_path / "a.html"), "--json", str(tmp_path / "a.json")) == 130
    assert {path.name for path in tmp_path.iterdir()} == {"a.html", "a.json"}


def test_rejected_and_failed_requests_are_counted_and_end_with_one(
    bench: Bench, server: FakeServer, capsys: Capture
) -> None:
    server.generator.script = [OverloadedError("the queue is full", 1.0)]
    flags = ("--num-warmups", "0")
    assert bench(*flags) == 1
    said = capsys.readouterr().out
    assert "0 ok, 6 rejected, 0 failed" in said
    assert "6 x RESOURCE_EXHAUSTED: the queue is full" in said
    assert bench(*flags, "--allow-failures") == 0
    server.generator.script = [*TOKENS, end(0, FinishReason.ERROR, error="code 507899")]
    assert bench(*flags, "--turns", "2") == 1
    said = capsys.readouterr().out
    assert "0 ok, 0 rejected, 6 failed, 6 not sent behind those" in said
    assert "6 x ERROR: code 507899" in said


def test_a_failed_warm_up_ends_it(bench: Bench, server: FakeServer, capsys: Capture) -> None:
    server.generator.script = [OverloadedError("the queue is full", 1.0)]
    assert bench() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "RESOURCE_EXHAUSTED: the queue is full (of a warm-up request; nothing" in said.err


def test_short_answers_are_noted(bench: Bench, capsys: Capture) -> None:
    assert bench("--random-output-len", "9") == 0
    assert "6 of 6 answers are shorter than they could be" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--request-rate 0", "--request-rate is 0.0, wanted arrivals a second above 0"),
        ("--burstiness 2", "give a finite --request-rate too"),
        ("--request-rate 1 --burstiness nan", "--burstiness is nan, wanted a number above 0"),
        ("--max-concurrency 0", "--max-concurrency is 0, wanted at least 1"),
        ("--num-warmups -1", "--num-warmups is -1, wanted 0 or more"),
        ("--num-prompts 0", "--num-prompts is 0, wanted at least 1"),
        ("--random-input-len 0", "--random-input-len is 0, wanted at least 1"),
        ("--random-range-ratio 1", "--random-range-ratio is 1.0, wanted a number from 0, below"),
        ("--random-range-ratio 0.1 --lognormal-sigma 1", "give one"),
        ("--lognormal-sigma 0", "--lognormal-sigma is 0.0, wanted a number above 0"),
        ("--num-prefixes 2", "give --random-prefix-len too"),
        ("--random-prefix-len 4 --prefix-fraction 2", "--prefix-fraction is 2.0, wanted a share"),
        ("--think-time-s 1", "give --turns above 1 too"),
        ("--prompt-kind text --vocab-size 5", "give --prompt-kind ids too"),
        ("--timeout-s 0", "timeout_s is 0.0, wanted seconds above 0"),
        ("--base-url http://x", "--base-url is of --backend openai and openai-chat, got grpc"),
        ("--random-input-len 500", "has up to 502 tokens of prompts and answers, and the model"),
        ("--temperature -1", "temperature"),
        ("--goodput ttft", "wanted each time once"),
        ("--json no/such/folder.json", "there is no folder no/such"),
        ("--html /", "cannot write /: it is a folder"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_sent(
    bench: Bench, server: FakeServer, capsys: Capture, flags: str, told: str
) -> None:
    assert bench(*flags.split()) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert (said.out, server.generator.requests) == ("", [])


def test_no_server_is_told(capsys: Capture) -> None:
    assert main(["bench", "--target", "127.0.0.1:1"]) == 1
    assert "no server answers at 127.0.0.1:1" in capsys.readouterr().err
