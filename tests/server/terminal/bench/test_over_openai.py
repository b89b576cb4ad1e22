"""Load over OpenAI's routes: our own gateway, and events of other servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence

import pytest

from omruntime.errors import CallError
from server.client import ClientSecurity
from server.terminal.bench.records import Outcome, Record, TokenCounts
from server.terminal.bench.runner import run_load
from server.terminal.bench.targets.over_openai import OpenAiTarget
from server.terminal.bench.targets.target import AskOptions, TargetFacts
from server.terminal.bench.workload import Conversation, Turn
from server.terminal.cli import main
from tests.server.http.serving import Serving, saying
from tests.server.terminal.bench.raw_http import chunked, raw_server, with_length
from tests.server.tiny_tokenizers import CHAT_TEMPLATE

MODELS = with_length(b'{"data": [{"id": "m", "max_model_len": 99}]}')
OPTIONS = AskOptions()
FULL = with_length(b'{"error": {"message": "full"}}', "429 x")
TALK = Conversation((Turn("one", None, 2), Turn("two", None, 2)))


@pytest.fixture(scope="module")
def gateway() -> Iterator[Serving]:
    with saying("abc", CHAT_TEMPLATE) as running:
        yield running


def bench(gateway: Serving, *flags: str) -> int:
    lengths = ("--num-prompts", "3", "--random-input-len", "5", "--random-output-len", "2")
    return main(["bench", "--base-url", gateway.url, *lengths, *flags])


@pytest.mark.parametrize(
    "flags",
    [
        ("--backend", "openai", "--turns", "2"),
        ("--backend", "openai", "--prompt-kind", "ids", "--vocab-size", "9"),
        ("--backend", "openai-chat", "--turns", "2", "--request-rate", "inf"),
    ],
)
def test_our_own_gateway_is_loaded(
    gateway: Serving, capsys: pytest.CaptureFixture[str], flags: Sequence[str]
) -> None:
    gateway.engine.submitted.clear()
    assert bench(gateway, *flags, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    count = 6 if "--turns" in flags else 3
    assert printed["figures"]["num_ok"] == count
    assert printed["figures"]["num_output_tokens"] == 2 * count
    assert printed["figures"]["num_prompt_tokens"] > 0
    assert printed["figures"]["ttft_ms"]["count"] == count
    assert printed["run"]["model"] == "org/tiny"
    params = gateway.engine.submitted[-1].params
    assert (params.max_new_tokens, params.ignore_eos, params.temperature) == (2, True, 0.0)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--backend openai-chat --prompt-kind ids", "messages of a chat are text"),
        ("--backend openai --prompt-kind ids", "does not tell the model's vocabulary"),
        ("--backend openai --prompt-kind ids --turns 2", "ids cannot go on from"),
        ("--backend openai --random-input-len 5000", "the model takes"),
        ("--backend grpc", "got grpc"),
        ("--backend openai --model none", "HTTP 404: "),
    ],
)
def test_what_the_route_cannot_do_is_refused(
    gateway: Serving, capsys: pytest.CaptureFixture[str], flags: str, told: str
) -> None:
    assert bench(gateway, *flags.split()) in (1, 2)
    assert told in capsys.readouterr().err


def test_an_address_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--backend", "openai"]) == 2
    assert "--backend openai needs --base-url" in capsys.readouterr().err


def loaded(
    *replies: Sequence[bytes], is_chat: bool = False, options: AskOptions = OPTIONS
) -> tuple[TargetFacts, list[Record], list[dict[str, object]]]:
    """The facts, the records of one conversation of two turns, and the bodies sent."""

    async def run() -> tuple[TargetFacts, list[Record], list[dict[str, object]]]:
        async with raw_server(MODELS, *replies) as server:
            security = ClientSecurity(api_key="secret")
            target = OpenAiTarget(server.url, security, options, is_chat)
            try:
                facts = await target.facts()
                records = await run_load(target, [TALK], 1)
            finally:
                await target.close()
            return facts, records, [json.loads(body) for body in server.bodies[1:]]

    return asyncio.run(run())


def event(**fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def test_chat_events_of_other_servers_are_understood() -> None:
    """A first event with a role alone is no token; a thought is; usage comes behind the end."""
    answer = chunked(
        event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
        event(choices=[{"delta": {"reasoning_content": "so"}}]),
        event(choices=[{"delta": {"content": "A"}}]),
        event(choices=[{"delta": {}, "finish_reason": "length"}]),
        event(
            choices=[],
            usage={
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
        ),
        b"data: [DONE]\n\n",
    )
    facts, records, bodies = loaded(answer, answer, is_chat=True)
    assert facts.max_model_len == 99
    assert [len(record.events) for record in records] == [2, 2]
    assert [record.counts for record in records] == [TokenCounts(9, 4, 8)] * 2
    assert [record.outcome for record in records] == [Outcome.OK] * 2
    assert bodies[1]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "soA"},
        {"role": "user", "content": "two"},
    ]
    assert bodies[0]["model"] == "m"
    assert bodies[0]["stream_options"] == {"include_usage": True}


def test_text_of_completions_goes_on_and_ignore_eos_can_be_left_out() -> None:
    answer = chunked(event(choices=[{"text": "A", "finish_reason": "stop"}], usage=None))
    _, records, bodies = loaded(answer, answer, options=AskOptions(ignore_eos=False))
    assert [body["prompt"] for body in bodies] == ["one", "oneAtwo"]
    assert all("ignore_eos" not in body for body in bodies)
    assert [record.num_tokens for record in records] == [1, 1]


@pytest.mark.parametrize(
    ("reply", "outcome", "error"),
    [
        (
            with_length(b'{"error": {"message": "full"}}', "429 x"),
            Outcome.REJECTED,
            "HTTP 429: full",
        ),
        (with_length(b"", "503 x"), Outcome.FAILED, "HTTP 503: no reason is given"),
        (chunked(event(error={"message": "boom"})), Outcome.FAILED, 'ERROR: {"message": "boom"}'),
        (chunked(b"data: nonsense\n"), Outcome.FAILED, "EVENT: got the event 'nonsense'"),
        (chunked(b"data: [DONE]\n"), Outcome.FAILED, "NO END: "),
        (
            chunked(event(choices=[{"text": "", "finish_reason": "abort"}])),
            Outcome.FAILED,
            "ABORT: not whole",
        ),
    ],
)
def test_failures_are_told_apart(reply: Sequence[bytes], outcome: Outcome, error: str) -> None:
    _, (record,), _ = loaded(reply)
    assert record.outcome is outcome
    assert record.error.startswith(error)


def test_a_server_without_counts_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    answer = chunked(event(choices=[{"text": "A", "finish_reason": "length"}]))

    async def run() -> int:
        async with raw_server(MODELS, answer) as server:
            argv = ["bench", "--backend", "openai", "--base-url", server.url, "--num-prompts", "1"]
            return await asyncio.to_thread(
                main, [*argv, "--num-warmups", "0", "--random-input-len", "9"]
            )

    assert asyncio.run(run()) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the server gave no token counts (usage) of 1 answers" in said
    assert "1 of 1 answers are shorter than they could be; the server may not know" in said


def test_an_answer_that_takes_too_long_has_failed() -> None:
    _, (record,), _ = loaded(chunked()[:1], options=AskOptions(timeout_s=0.05))
    assert record.error == "TIMEOUT: no whole answer in 0.05 s"


def test_a_list_of_no_models_needs_a_name() -> None:
    async def run() -> None:
        async with raw_server(with_length(b"[]")) as server:
            target = OpenAiTarget(server.url, ClientSecurity(), AskOptions(), False)
            try:
                await target.facts()
            finally:
                await target.close()

    with pytest.raises(Exception, match="lists no models; give --model") as raised:
        asyncio.run(run())
    assert not isinstance(raised.value, CallError)
