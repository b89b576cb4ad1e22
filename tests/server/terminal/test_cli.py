"""`om-client`: what it prints and how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from omruntime.errors import OverloadedError
from omruntime.scheduling.turn import Urgency
from omruntime.sequence import FinishReason
from omruntime.step import TokenLogprobs
from server.terminal.cli import main
from server.text import ChatMessage, TextDelta
from tests.server.certificates import Authority
from tests.server.key_files import add_key
from tests.server.scored_script import TOKENIZER, Scored, logprob_of, rank_of, scored_server
from tests.server.wire_fakes import FakeGenerator, FakeServer, end, settings_of

ROOT = Path(__file__).parents[3]
Capture = pytest.CaptureFixture[str]


def run_main(argv: Sequence[str]) -> int:
    """As the installed script: argparse ends by SystemExit."""
    try:
        return main(argv)
    except SystemExit as end_of_process:
        return int(end_of_process.code or 0)


def test_generate_streams_the_text(server: FakeServer, capsys: Capture) -> None:
    argv = ["generate", "--target", server.target, "--prompt", "x", "--temperature", "0"]
    assert main(argv) == 0
    assert capsys.readouterr().out == "Hi!\n"
    assert server.generator.requests[0].params.temperature == 0


def test_key_and_certificates_come_from_files_or_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    authority = Authority(tmp_path / "made")
    pair, own = authority.sign("server"), authority.sign("client")
    keys, key_file = tmp_path / "keys.json", tmp_path / "key"
    add_key(keys, "the-key-itself", "alice")
    key_file.write_text("the-key-itself\n")
    tls = {"tls_cert": pair.cert, "tls_key": pair.key, "tls_client_ca": authority.path}
    with FakeServer(settings_of(**tls, api_keys=keys)) as server:
        argv = ["generate", "--target", server.target, "--prompt", "x", "--tls-ca"]
        argv += [str(authority.path), "--tls-cert", str(own.cert), "--tls-key", str(own.key)]
        assert main([*argv, "--api-key-file", str(key_file)]) == 0
        monkeypatch.setenv("OMSERVE_API_KEY", "the-key-itself")
        assert main(argv) == 0
        assert capsys.readouterr().out == "Hi!\nHi!\n"
        monkeypatch.setenv("OMSERVE_API_KEY", "another")
        assert main(argv) == 1
        assert "UNAUTHENTICATED: " in (err := capsys.readouterr().err)
        assert "--api-key-file or OMSERVE_API_KEY" in err
        assert "another" not in err
        assert main([*argv, "--api-key-file", str(tmp_path / "absent")]) == 2
        assert "cannot read the API key from" in capsys.readouterr().err


def test_json_is_one_object_with_everything(server: FakeServer, capsys: Capture) -> None:
    argv = ["generate", "--target", server.target, "--prompt-ids", "5,17", "--json"]
    assert main([*argv, "--request-id", "r1"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "text": "Hi!",
        "token_ids": [7, 8],
        "finish_reason": "stop",
        "matched_stop": None,
        "usage": {"num_prompt_tokens": 3, "num_output_tokens": 2, "num_cached_tokens": 0},
        "timings": {
            "queue_s": 0.25,
            "prefill_s": 0.5,
            "decode_s": 1.0,
            "time_to_first_token_s": 0.75,
        },
        "request_id": "r1",
        "model": "org/toy",
    }
    assert server.generator.requests[0].token_ids == (5, 17)


def test_json_of_several_answers_with_logprobs(server: FakeServer, capsys: Capture) -> None:
    entry = TokenLogprobs(-0.5, ((7, -0.5),))
    server.generator.script = [
        TextDelta(0, "é", (7,), logprobs=(entry,)),
        end(0),
        TextDelta(1, "b", (8,), logprobs=(entry,)),
        end(1, FinishReason.LENGTH),
    ]
    argv = ["generate", "--target", server.target, "--prompt", "x", "--json"]
    assert main([*argv, "--n", "2", "--logprobs", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["text"] == "é"
    assert printed["logprobs"] == [{"logprob": -0.5, "top": [[7, -0.5]]}]
    assert [c["text"] for c in printed["choices"]] == ["é", "b"]
    assert [c["index"] for c in printed["choices"]] == [0, 1]


def test_several_answers_as_text(server: FakeServer, capsys: Capture) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), end(0), TextDelta(1, "b", (2,)), end(1)]
    assert main(["generate", "--target", server.target, "--prompt", "x", "--n", "2"]) == 0
    assert capsys.readouterr().out == "--- answer 0\na\n--- answer 1\nb\n"


def test_chat_messages_and_template_arguments(server: FakeServer) -> None:
    argv = ["generate", "--target", server.target, "--chat-message", "system: Be brief."]
    argv += ["--chat-message", "note: this is the user's", "--chat-message", "assistant:ok"]
    assert main([*argv, "--template-arguments", '{"enable_thinking": false}']) == 0
    request = server.generator.requests[0]
    assert request.messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "note: this is the user's"),
        ChatMessage("assistant", "ok"),
    )
    assert request.template_arguments == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["generate"], 2, "--prompt"),
        (["generate", "--prompt", "x", "--bogus"], 2, "--bogus"),
        (["generate", "--prompt", "x", "--max-tokens", "5"], 2, "did you mean --max-new-tokens?"),
        (["generate", "--prompt", "x", "--logprobs", "2"], 2, "add --json"),
        (["generate", "--prompt", "x", "--template-arguments", "{}"], 2, "--chat-message"),
        (["generate", "--prompt", "x", "--n", "many"], 2, "--n"),
        (["generate", "--prompt", "x", "--top-p", "2"], 2, "top_p is 2.0, wanted 0.0 to 1.0"),
        (["generate", "--prompt", "x", "--target", "localhost"], 2, "wanted host:port"),
        (["generate", "--prompt", "x", "--target", "127.0.0.1:1"], 1, "no server answers at 127."),
        (["generate", "--prompt", "x", "--template-arguments", "[]"], 2, "a JSON object"),
        (["chat", "--target", "127.0.0.1:1", "--n", "2"], 2, "one answer a turn"),
        (["chat", "--retries", "-1"], 2, "max_retries is -1, wanted at least 0"),
        (["generate", "--prompt", "x", "--allowed-token-ids", ""], 2, "got '', wanted token ids"),
        (["generate", "--promt", "x"], 2, "did you mean --prompt?"),
        (["generate", "--promt=x"], 2, "did you mean --prompt?"),
        (["--promt"], 2, "unrecognized arguments: --promt"),
        ([], 2, "no command is given, wanted one of generate, chat, score, bench"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    capsys: Capture, argv: list[str], code: int, words: str
) -> None:
    assert run_main(argv) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("om-client: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--request-id", "a b"], 2, "INVALID_ARGUMENT: request_id"),
        (["--model", "other"], 1, "NOT_FOUND: model 'other'"),
    ],
)
def test_refusals_of_the_server(
    server: FakeServer, capsys: Capture, flags: list[str], code: int, words: str
) -> None:
    for form in ([], ["--json"]):
        argv = ["generate", "--target", server.target, "--prompt", "x", *flags, *form]
        assert main(argv) == code
        assert words in capsys.readouterr().err


def test_an_answer_that_an_operator_ends(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    server.generator.script = [TextDelta(0, "Hi", (1,)), end(reason=FinishReason.ABORT)]
    assert main(["generate", "--target", server.target, "--prompt", "x"]) == 1
    assert "ended by abort: the server ended it" in capsys.readouterr().err
    assert chat(server, monkeypatch, "one\n") == 1
    assert "ended by abort: the server ended it" in capsys.readouterr().err


def test_an_answer_that_fails_on_the_way(server: FakeServer, capsys: Capture) -> None:
    server.generator.script = [
        TextDelta(0, "Hi", (1,)),
        end(reason=FinishReason.ERROR, error="code 507899"),
    ]
    assert main(["generate", "--target", server.target, "--prompt", "x"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "Hi\n"
    assert captured.err == "om-client: the answer ended by error: code 507899\n"


def chat(server: FakeServer, monkeypatch: pytest.MonkeyPatch, text: str, *flags: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return main(["chat", "--target", server.target, *flags])


def test_chat_keeps_the_history(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    lines = "one\n\ntwo\n/exit\nthree\n"
    assert chat(server, monkeypatch, lines, "--system", "Be brief.") == 0
    assert capsys.readouterr().out == "Hi!\nHi!\n"
    first, second = server.generator.requests
    assert first.messages == (ChatMessage("system", "Be brief."), ChatMessage("user", "one"))
    assert second.messages == (
        *first.messages,
        ChatMessage("assistant", "Hi!"),
        ChatMessage("user", "two"),
    )


def test_chat_from_a_pipe_ends_with_its_input_or_with_the_first_failure(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert chat(server, monkeypatch, "one") == 0
    server.generator.script = [OverloadedError("the queue is full")]
    assert chat(server, monkeypatch, "one\ntwo\n") == 1
    assert "RESOURCE_EXHAUSTED: the queue is full" in capsys.readouterr().err
    assert len(server.generator.requests) == 2


class Terminal(io.StringIO):
    """Standard input that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_chat_at_a_terminal_goes_on_after_a_failed_turn_and_forgets_it(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("one\ntwo\n"))
    server.generator.script = [OverloadedError("the queue is full")]
    assert main(["chat", "--target", server.target]) == 0
    assert [r.messages for r in server.generator.requests] == [
        (ChatMessage("user", "one"),),
        (ChatMessage("user", "two"),),
    ]
    assert capsys.readouterr().err.count("the queue is full") == 2


def start_client(server: FakeServer, *argv: str) -> subprocess.Popen[str]:
    # A shell's background jobs inherit SIGINT as ignored, and Python leaves that as it is. Undone
    # in the program and not by preexec_fn: that forks, and gRPC, whose threads a fork starts anew
    # in the child, aborts it when its files are closed before the program begins.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from server.terminal.cli import main; sys.exit(main())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv, "--target", server.target],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("command", [["chat"], ["generate", "--prompt", "x"]])
def test_ctrl_c_cancels_the_answer(server: FakeServer, command: list[str]) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    with start_client(server, *command) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if command == ["chat"]:
            process.stdin.write("hello\n")
            process.stdin.flush()
        assert process.stdout.read(1) == "a"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "Traceback" not in errors
        # Whatever is told next begins a line of its own.
        assert rest == "\n"
    server.await_that(lambda: server.generator.num_closed == 1)


def test_a_reader_that_is_gone_ends_it_without_a_traceback(server: FakeServer) -> None:
    server.generator.script = [*[TextDelta(0, "x" * 4096, (1,))] * 200, end()]
    with start_client(server, "generate", "--prompt", "x") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read() == ""


def test_a_terminal_without_unicode_gets_question_marks(server: FakeServer) -> None:
    server.generator.script = [TextDelta(0, "né", (1,)), end()]
    code = "import sys; from server.terminal.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", "--prompt", "x", "--target", server.target],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (0, b"n?\n")


@pytest.fixture(scope="module")
def scored() -> Iterator[Scored]:
    with scored_server() as running:
        yield running


def test_score_prints_a_line_for_each_continuation(scored: Scored, capsys: Capture) -> None:
    argv = ["score", "--target", scored.target, "--prompt", "a", "--urgency", "low"]
    assert main([*argv, "--continuation", " the", "--continuation-ids", "100,101"]) == 0
    (the,) = TOKENIZER.encode_text(" the")
    first = f"{logprob_of(the, 1):.6f} {'greedy' if rank_of(the) == 1 else '-'} "
    both = logprob_of(100, 1) + logprob_of(101, 2)
    assert capsys.readouterr().out == f'{first}" the"\n{both:.6f} - [100, 101]\n'
    assert scored.engine.submitted[-1].scheduling.urgency is Urgency.LOW


def test_score_as_json(scored: Scored, capsys: Capture) -> None:
    argv = ["score", "--target", scored.target, "--prompt-ids", "70", "--continuation-ids", "100"]
    assert main([*argv, "--top-logprobs", "1", "--request-id", "r", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["request_id"], printed["model"]) == ("r", "org/toy")
    token = {"token_id": 100, "logprob": logprob_of(100, 1), "rank": 1, "top": [[100, -1.5]]}
    (score,) = printed["scores"]
    assert score["tokens"] == [token]
    assert (score["logprob"], score["is_greedy"]) == (token["logprob"], True)
    assert score["usage"]["num_prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prompt", "a"], "no continuation"),
        (["--prompt", "a", "--continuation", "b", "--top-logprobs", "1"], "add --json"),
        (
            ["--prompt", "a", "--continuation", "b", "--template-arguments", "{}"],
            "--chat-message",
        ),
        (["--continuation", "b"], "required"),
        (["--prompt", "a", "--continuation", "b", "--temperature", "1"], "--temperature"),
        (["--prompt", "a", "--continuation", "b", "--queue-timeout-s", "0"], "queue_timeout_s"),
        (["--prompt", "a", "--continuation", "b", "--urgency", "top"], "invalid choice"),
    ],
)
def test_a_wrong_score_command_is_refused(flags: list[str], words: str, capsys: Capture) -> None:
    assert run_main(["score", "--target", "localhost:1", *flags]) == 2
    assert words in capsys.readouterr().err


def test_echo_and_prompt_logprobs(scored: Scored, capsys: Capture) -> None:
    argv = ["generate", "--target", scored.target, "--prompt", "a cat"]
    assert main([*argv, "--echo", "--bypass-prefix-cache"]) == 0
    assert capsys.readouterr().out == "a catthe\n"
    assert scored.engine.submitted[-1].bypasses_prefix_cache
    assert main([*argv, "--prompt-logprobs", "0", "--max-new-tokens", "0", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    told = [entry["token_id"] for entry in printed["prompt_logprobs"]]
    assert told == list(TOKENIZER.encode_text("a cat"))
    assert run_main([*argv, "--prompt-logprobs", "0"]) == 2
    assert "--prompt-logprobs is shown by" in capsys.readouterr().err


def test_retries_try_again_what_was_refused(server: FakeServer, capsys: Capture) -> None:
    server.generator.script = [OverloadedError("full", 0.001)]
    argv = ["generate", "--target", server.target, "--prompt", "x"]
    assert main([*argv, "--retries", "2"]) == 1
    assert len(server.generator.requests) == 3
    assert main(argv) == 1
    assert len(server.generator.requests) == 4
    assert "RESOURCE_EXHAUSTED: full" in capsys.readouterr().err
    assert main([*argv, "--retries", "-1"]) == 2
    assert "max_retries is -1" in capsys.readouterr().err
