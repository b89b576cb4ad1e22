"""Reading lengths: the three formats, and rows that are refused with their line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_pipeline.plan.lengths import RequestLength, read_lengths
from omruntime.errors import ConfigError
from omruntime.sequence import FinishReason
from server.logs import log_finished, request_id_var, set_up_logging
from server.request_tally import RequestTally
from server.text import TextDelta
from tests.server.wire_fakes import end


def words(text: str) -> int:
    return len(text.split())


def read(folder: Path, name: str, text: str) -> list[tuple[int, int, int]]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    found = read_lengths(path, words)
    return [(r.prompt_tokens, r.output_tokens, r.cached_tokens) for r in found]


@pytest.mark.parametrize(
    "text",
    [
        "5,2\n7,0\n",
        "prompt_tokens,output_tokens\n5,2\n7,0\n",
        "\ufeffprompt_tokens,output_tokens\r\n5,2\r\n\r\n7,0\r\n",
        "id, output_tokens, prompt_tokens\na, 2, 5\nb, 0, 7\n",
    ],
)
def test_csv(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, "x.csv", text) == [(5, 2, 0), (7, 0, 0)]


@pytest.mark.parametrize(
    ("text", "line", "words_"),
    [
        ("5,2\n7\n", 2, "1 columns"),
        ("5,2,3\n", 1, "3 columns"),
        ("5,two\n", 1, "'two'"),
        ("5,2\n\n0,1\n", 3, "'0'.*1 to 999999999"),
        ("prompt,output\n5,2\n", 1, "header prompt,output, wanted prompt_tokens,output_tokens"),
        ("5,-1\n", 1, "'-1'"),
        ("5,1.5\n", 1, "'1.5'"),
        ("5,9999999999\n", 1, "'9999999999'.*0 to 999999999"),
        ("5,\u0661\n", 1, "wanted a count"),
        ("5,2\n" + "7" * 200_000 + ",2\n", 2, "not CSV"),
    ],
)
def test_csv_rows_that_are_refused(tmp_path: Path, text: str, line: int, words_: str) -> None:
    with pytest.raises(ConfigError, match=rf"x.csv, line {line}: .*{words_}"):
        read(tmp_path, "x.csv", text)


def test_each_answer_of_a_conversation_is_a_request_over_all_before(tmp_path: Path) -> None:
    sharegpt = {
        "id": "1",
        "conversations": [
            {"from": "system", "value": "be brief"},
            {"from": "human", "value": "how are you"},
            {"from": "gpt", "value": "fine"},
            {"from": "human", "value": "good"},
            {"from": "gpt", "value": "yes it is"},
        ],
    }
    messages = {
        "messages": [
            {"role": "user", "content": "a b"},
            {"role": "assistant", "content": "c"},
        ]
    }
    answer_only = {"conversations": [{"from": "gpt", "value": "nobody asked"}]}
    text = json.dumps([sharegpt, messages, answer_only])
    assert read(tmp_path, "x.json", text) == [(5, 1, 0), (7, 3, 0), (2, 1, 0)]


@pytest.mark.parametrize(
    ("text", "line", "words_"),
    [
        ('{"conversations": []}', 1, "a list of conversations"),
        ("[\n1\n]", 2, "wanted an object"),
        (
            '[\n{"conversations": []},\n{"other": 1}]',
            3,
            "wanted an object .*messages.*'conversations'",
        ),
        ('[\n\n{"conversations": 3}]', 3, "wanted a list"),
        ('[{"conversations": [{"from": "gpt"}]}]', 1, r"conversations\[0\]"),
        ('[{"conversations": [{"from": 1, "value": "x"}]}]', 1, r"conversations\[0\]"),
        ('[{"conversations": [7]}]', 1, r"conversations\[0\]"),
        ('[{"messages": [{"role": "user", "content": "\\ud800"}]}]', 1, "half of a surrogate"),
        ('[\n{"conversations": []}\n{}]', 3, "neither"),
        ('[\n{"conversations": [}]', 2, "not JSON"),
        ('[\n{"conversations": []},\n', 3, "not JSON"),
        ("[" * 100_000, 1, "not JSON"),
    ],
)
def test_conversations_that_are_refused(tmp_path: Path, text: str, line: int, words_: str) -> None:
    with pytest.raises(ConfigError, match=rf"x.json, line {line}: .*{words_}"):
        read(tmp_path, "x.json", text)


@pytest.fixture
def server_log() -> Iterator[io.StringIO]:
    """What the server's own logging writes."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    stream = io.StringIO()
    set_up_logging("info", stream)
    yield stream
    root.handlers, root.level = handlers, level


def test_the_servers_own_lines(tmp_path: Path, server_log: io.StringIO) -> None:
    logging.getLogger("server.app").info("serving on 127.0.0.1:50051")
    request_id_var.set("r1")
    tally = RequestTally(3)
    tally.count(TextDelta(1, "ab", (5, 6), num_prompt_tokens=4))
    tally.count(end(0, FinishReason.LENGTH))
    log_finished(tally)
    # Nobody saw its prompt, so it says nothing about lengths.
    log_finished(RequestTally(1))
    request_id_var.set("")
    assert "num_prompt_tokens=4 num_output_tokens=4" in server_log.getvalue()
    assert server_log.getvalue().count("request finished") == 2
    found = read(tmp_path, "om-serve.log", server_log.getvalue())
    assert [(prompt, output) for prompt, output, _ in found] == [(4, 2), (4, 1), (4, 1)]


LINE = (
    "2026-11-30 01:02:03,456 INFO server.logs request finished finish_reason={reasons} "
    "num_prompt_tokens={prompt} num_output_tokens={output} num_cached_tokens={cached} "
    "queue_s=0.0000 prefill_s=0.5000 decode_s=0.1000 request_id=r1\n"
)


def test_answers_of_one_request_share_its_prompt(tmp_path: Path) -> None:
    line = LINE.format(reasons="stop,length,stop", prompt=100, output=11, cached=32)
    found = read(tmp_path, "om-serve.log", "other line\n" + line)
    assert found == [(100, 4, 32), (100, 4, 99), (100, 3, 99)]


def test_a_wholly_cached_prompt_still_computes_its_last_token(tmp_path: Path) -> None:
    line = LINE.format(reasons="stop", prompt=64, output=1, cached=64)
    assert read(tmp_path, "om-serve.log", line) == [(64, 1, 63)]


@pytest.mark.parametrize(
    ("old", "new"),
    [("num_output_tokens=", "tokens="), ("num_prompt_tokens=9", "num_prompt_tokens=x")],
)
def test_log_lines_that_are_refused(tmp_path: Path, old: str, new: str) -> None:
    line = LINE.format(reasons="stop", prompt=9, output=1, cached=0)
    with pytest.raises(ConfigError, match=r"om-serve.log, line 2.*wanted"):
        read(tmp_path, "om-serve.log", line + line.replace(old, new))


@pytest.mark.parametrize("name", ["x.csv", "x.log", "x.json"])
def test_files_without_requests_or_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no request in it"):
        read(tmp_path, name, "[]" if name.endswith("json") else "")
    with pytest.raises(ConfigError, match="cannot read"):
        read_lengths(tmp_path / "absent" / name, words)
    (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read"):
        read_lengths(tmp_path / name, words)


@given(text=st.text(max_size=60), name=st.sampled_from(["x.csv", "x.json", "x.log"]))
def test_any_text_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = read_lengths(path, words)
    except ConfigError:
        return
    assert all(isinstance(r, RequestLength) and r.prompt_tokens > 0 for r in found)
