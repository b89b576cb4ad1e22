"""Prompt logprobs and what a reply holds, over a socket and through the text layer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import grpc
import pytest

from omruntime.errors import CallError, RequestError
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import Client
from server.client.arguments import CallOptions
from server.grpc_service import MAX_EVENT_TOKENS
from server.pb import inference_pb2 as pb
from server.pb import inference_pb2_grpc
from server.text import ChatMessage, OutputOptions, PromptToken
from tests.server.scored_script import (
    ANSWER,
    TOKENIZER,
    Scored,
    logprob_of,
    rank_of,
    scored_server,
)

PROMPT = TOKENIZER.encode_text("the cat")


@pytest.fixture(scope="module")
def scored() -> Iterator[Scored]:
    with scored_server() as running:
        yield running


@pytest.fixture
def client(scored: Scored) -> Iterator[Client]:
    with Client(scored.target) as opened:
        yield opened


def told_of(prompt: tuple[int, ...], k: int) -> tuple[PromptToken, ...]:
    """What the scripted model says of a whole prompt."""
    top = tuple((100 + i, -1.5 - i) for i in range(k))
    return (
        PromptToken(prompt[0]),
        *(PromptToken(t, logprob_of(t, p), rank_of(t), top) for p, t in enumerate(prompt) if p),
    )


@pytest.mark.parametrize("k", [0, 1, 20])
def test_they_come_before_the_answer_and_begin_with_a_token_that_has_none(
    client: Client, k: int
) -> None:
    params = SamplingParams(prompt_logprobs=k)
    deltas = list(client.stream(PROMPT, params))
    told = tuple(token for delta in deltas for token in delta.prompt_logprobs)
    assert told == told_of(PROMPT, k)
    first_token = next(i for i, delta in enumerate(deltas) if delta.token_ids)
    assert not any(delta.prompt_logprobs for delta in deltas[first_token + 1 :])
    (answer,) = client.generate(PROMPT, params).answers
    assert (answer.prompt_logprobs, answer.text) == (told_of(PROMPT, k), "the")


def test_the_first_token_has_neither_logprob_nor_rank_on_the_wire(scored: Scored) -> None:
    message = pb.GenerateRequest(
        prompt=pb.Prompt(text="the cat"), sampling_params=pb.SamplingParams(prompt_logprobs=2)
    )
    with grpc.insecure_channel(scored.target) as channel:
        (choice,) = inference_pb2_grpc.InferenceServiceStub(channel).Generate(message).choices  # type: ignore[no-untyped-call]
    first, second = choice.prompt_logprobs[:2]
    assert first.HasField("token_id")
    assert not first.HasField("logprob")
    assert not first.HasField("rank")
    assert second.HasField("logprob")
    assert (second.rank, len(second.top)) == (rank_of(PROMPT[1]), 2)


def test_of_several_answers_the_first_has_them(client: Client) -> None:
    answers = client.generate(PROMPT, SamplingParams(n=3, prompt_logprobs=0)).answers
    assert [a.prompt_logprobs for a in answers] == [told_of(PROMPT, 0), (), ()]
    assert [a.text for a in answers] == ["the"] * 3


def test_without_tokens_to_generate_they_are_all(client: Client) -> None:
    params = SamplingParams(max_new_tokens=0, prompt_logprobs=1)
    (answer,) = client.generate(PROMPT, params).answers
    assert (answer.text, answer.token_ids) == ("", ())
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.prompt_logprobs == told_of(PROMPT, 1)
    assert answer.usage is not None
    assert (answer.usage.num_prompt_tokens, answer.usage.num_output_tokens) == (len(PROMPT), 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1"),
        ({"max_new_tokens": 0}, "prompt_logprobs alone"),
        ({"max_new_tokens": 0, "prompt_logprobs": 0, "n": 2}, "n is 2"),
        ({"max_new_tokens": 0, "prompt_logprobs": 0, "min_new_tokens": 1}, "min_new_tokens"),
    ],
)
def test_wrong_wishes_are_refused_by_name(
    scored: Scored, fields: dict[str, int], words: str
) -> None:
    message = pb.GenerateRequest(
        prompt=pb.Prompt(text="the"), sampling_params=pb.SamplingParams(**fields)
    )
    with grpc.insecure_channel(scored.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError, match=words) as caught:
            stub.Generate(message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("final_only", [False, True])
def test_a_client_with_default_limits_reads_twenty_alternatives_of_a_long_prompt(
    final_only: bool,
) -> None:
    """BL-42: 4,000 tokens come in events far below 4 MiB, however they are asked for."""
    prompt = pb.Prompt(token_ids=pb.TokenIds(ids=PROMPT[:1] * 4000))
    params = pb.SamplingParams(prompt_logprobs=20)
    request = pb.GenerateStreamRequest(
        prompt=prompt, sampling_params=params, output=pb.OutputOptions(final_only=final_only)
    )
    with scored_server(max_model_len=20_000) as long, grpc.insecure_channel(long.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        events = list(stub.GenerateStream(request))
        assert sum(len(event.prompt_logprobs) for event in events) == 4000
        assert max(len(event.prompt_logprobs) for event in events) <= MAX_EVENT_TOKENS
        assert max(event.ByteSize() for event in events) < 1 << 20
        assert "".join(event.text for event in events) == "the"
        if final_only:
            return
        prompt.token_ids.ids.extend(PROMPT[:1] * 12_000)
        with pytest.raises(grpc.RpcError, match=r"4,194,304; use GenerateStream") as caught:
            stub.Generate(pb.GenerateRequest(prompt=prompt, sampling_params=params))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("n", [1, 2])
def test_echo_puts_the_prompts_text_before_each_answer(client: Client, n: int) -> None:
    options = CallOptions(output=OutputOptions(echo=True))
    chat = [ChatMessage("user", "Hi")]
    rendered = TOKENIZER.render_chat(chat, None)
    for prompt, text in (("the cat", "the cat"), (PROMPT, "the cat"), (chat, rendered)):
        answers = client.generate(prompt, SamplingParams(n=n), options).answers
        assert [a.text for a in answers] == [text + "the"] * n
        assert [a.token_ids for a in answers] == [(*ANSWER, 2)] * n
        deltas = list(client.stream(prompt, SamplingParams(n=n), options))
        for index in range(n):
            assert "".join(d.text for d in deltas if d.index == index) == text + "the"


def test_a_stop_string_is_not_looked_for_in_the_echo(client: Client) -> None:
    options = CallOptions(output=OutputOptions(echo=True))
    (answer,) = client.generate("a cat", SamplingParams(stop=("cat",)), options).answers
    assert answer.text == "a catthe"


def test_final_only_gives_each_answer_at_its_end(client: Client) -> None:
    options = CallOptions(output=OutputOptions(final_only=True))
    deltas = list(client.stream("the cat", SamplingParams(n=2, prompt_logprobs=0), options))
    assert sorted(delta.index for delta in deltas) == [0, 1]
    assert all(d.finish_reason is FinishReason.STOP and d.text == "the" for d in deltas)
    by_index = {delta.index: delta for delta in deltas}
    assert by_index[0].prompt_logprobs == told_of(PROMPT, 0)


@pytest.mark.parametrize("streamed", [False, True])
def test_text_or_token_ids_can_be_left_out(client: Client, streamed: bool) -> None:
    def ask(output: OutputOptions) -> tuple[str, tuple[int, ...], int]:
        options = CallOptions(output=output)
        if streamed:
            deltas = list(client.stream("the", SamplingParams(), options))
        else:
            deltas = list(client.generate("the", SamplingParams(), options).answers)
        usage = deltas[-1].usage
        assert usage is not None
        token_ids = tuple(i for delta in deltas for i in delta.token_ids)
        return "".join(delta.text for delta in deltas), token_ids, usage.num_output_tokens

    assert ask(OutputOptions(omit_text=True)) == ("", (*ANSWER, 2), 2)
    assert ask(OutputOptions(omit_token_ids=True)) == ("the", (), 2)
    assert ask(OutputOptions()) == ("the", (*ANSWER, 2), 2)


@pytest.mark.parametrize(
    ("params", "output", "name"),
    [
        (SamplingParams(stop=("x",)), OutputOptions(omit_text=True), "stop"),
        (SamplingParams(), OutputOptions(omit_text=True, echo=True), "echo"),
    ],
)
def test_text_that_is_needed_cannot_be_left_out(
    client: Client, params: SamplingParams, output: OutputOptions, name: str
) -> None:
    with pytest.raises(CallError, match=f"omit_text is set beside {name}") as caught:
        client.generate("the", params, CallOptions(output=output))
    assert caught.value.code == "INVALID_ARGUMENT"


def test_without_an_answer_the_prompt_may_reach_the_limit() -> None:
    """BL-30"""
    params = SamplingParams(max_new_tokens=0, prompt_logprobs=0)
    with scored_server(max_model_len=8) as short, Client(short.target) as client:
        (answer,) = client.generate(PROMPT[:1] * 8, params).answers
        assert len(answer.prompt_logprobs) == 8
        for prompt, wishes in ((PROMPT[:1] * 9, params), (PROMPT[:1] * 8, SamplingParams())):
            with pytest.raises(CallError, match="wanted at most"):
                client.generate(prompt, wishes)


def test_scores_sum_up_as_a_reader_would_sum_them(client: Client) -> None:
    scores = client.score("the cat", [" sat", " the"], 2)
    for continuation, score in zip((" sat", " the"), scores.scores, strict=True):
        whole = TOKENIZER.encode_text("the cat" + continuation)
        told = told_of(whole, 2)[len(PROMPT) :]
        assert score.tokens == told
        assert score.logprob == math.fsum(t.logprob for t in told if t.logprob is not None)
        assert score.is_greedy == all(t.rank == 1 for t in told)
        assert score.usage.num_prompt_tokens == len(whole)


def test_a_number_out_of_range_is_named_before_anything_is_sent() -> None:
    with Client("localhost:1") as nowhere, pytest.raises(RequestError, match="cannot be sent"):
        nowhere.score("a", ["b"], 1 << 40)
