"""Score: where continuations begin, what they are worth, and how calls go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import pytest

from omruntime.errors import CallError, RequestError
from omruntime.outputs import TokenDelta
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason, Request
from server.client import AsyncClient, Client
from server.client.arguments import CallOptions
from server.score import MAX_SCORE_CHARS, ScoreRequest, score
from server.text import ChatMessage, ContinuationScore, PromptToken, TextDelta, TextRequest, Usage
from tests.server.scored_script import (
    TOKENIZER,
    Scored,
    logprob_of,
    rank_of,
    scored_server,
    scores_of,
)
from tests.server.scripted_engine import last

USAGE = Usage(0, 0, 0)


@pytest.fixture(scope="module")
def serving() -> Iterator[Scored]:
    with scored_server() as running:
        yield running


@pytest.fixture
def client(serving: Scored) -> Iterator[Client]:
    with Client(serving.target) as opened:
        yield opened


def value_of(context: Sequence[int], continuation: Sequence[int]) -> ContinuationScore:
    """By the scripted model."""
    places = list(enumerate(continuation, start=len(context)))
    tokens = tuple(PromptToken(t, logprob_of(t, p), rank_of(t)) for p, t in places)
    logprob = sum(logprob_of(t, p) for p, t in places)
    usage = Usage(len(context) + len(continuation), 0, 3)
    return ContinuationScore(logprob, all(t.rank == 1 for t in tokens), tokens, usage)


def test_texts_and_token_ids_of_every_kind(client: Client) -> None:
    context = TOKENIZER.encode_text("a cat")
    sat, the = TOKENIZER.encode_text(" sat"), TOKENIZER.encode_text(" the")
    wanted = (value_of(context, sat), value_of(context, the))
    for prompt in ("a cat", context):
        for continuations in ([" sat", " the"], [sat, the], [" sat", the]):
            assert client.score(prompt, continuations).scores == wanted


def test_a_chat_is_rendered_and_its_answer_scored(client: Client) -> None:
    messages = [ChatMessage("user", "Hi")]
    rendered = TOKENIZER.encode_text(TOKENIZER.render_chat(messages, None), False)
    (found,) = client.score(messages, ["the"]).scores
    assert found == value_of(rendered, TOKENIZER.encode_text("the"))


def test_a_border_inside_of_a_token_is_scored_with_it(client: Client) -> None:
    """ "t" and "he" are one token together; the prompt's own last token is not there any more."""
    (found,) = client.score("a t", ["he"]).scores
    assert TOKENIZER.encode_text("a the")[-1] == found.tokens[-1].token_id
    assert found == value_of(TOKENIZER.encode_text("a"), TOKENIZER.encode_text(" the"))


def test_only_the_continuation_is_scored(serving: Scored, client: Client) -> None:
    client.score("a long prompt", [" the"])
    request = serving.engine.submitted[-1]
    assert len(scores_of(request)) == 1
    assert request.params.max_new_tokens == 0
    assert request.score_from == len(TOKENIZER.encode_text("a long prompt"))


def test_ids_and_model_come_back(client: Client, serving: Scored) -> None:
    options = CallOptions(request_id="mine", model="org/toy")
    found = client.score("a", [" b", " c"], 0, options)
    assert (found.request_id, found.model) == ("mine", "org/toy")
    assert [r.request_id for r in serving.engine.submitted[-2:]] == ["mine/0", "mine/1"]


@pytest.mark.parametrize("k", [0, 5])
def test_alternatives_are_listed_when_asked(client: Client, k: int) -> None:
    (found,) = client.score("a", [" the"], k).scores
    assert [len(token.top) for token in found.tokens] == [k]


@pytest.mark.parametrize(
    ("prompt", "continuations", "top", "words"),
    [
        ("a", [], 0, "got 0 continuations"),
        ("a", ["b"] * 129, 0, "got 129 continuations"),
        ("a", ["b"], 21, "top_logprobs is 21"),
        ("a", ["b"], -1, "top_logprobs is -1"),
        ("a", ["b", ""], 0, "continuation 1 gives no token"),
        ("a", [()], 0, "continuation 0 gives no token"),
        ("", ["b"], 0, "the prompt gives no token"),
        ((), ["b"], 0, "the prompt gives no token"),
        ((5,), [(9999,)], 0, "9999"),
        ("a" * 600, ["b"], 0, "wanted at most"),
        ("a" * (MAX_SCORE_CHARS // 4), ["b"] * 4, 0, "fewer at once"),
    ],
)
def test_a_wrong_request_is_refused_by_name(
    client: Client, prompt: Any, continuations: list[Any], top: int, words: str
) -> None:
    with pytest.raises(CallError, match=words) as caught:
        client.score(prompt, continuations, top)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_one_text_is_no_list_of_continuations(client: Client) -> None:
    with pytest.raises(RequestError, match="put it into a list"):
        client.score("a", "b")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (last(FinishReason.ERROR, error="code 507899"), "INTERNAL"),
        (last(FinishReason.ABORT), "UNAVAILABLE"),
    ],
)
def test_a_part_that_fails_ends_the_others(end: TokenDelta, code: str) -> None:
    bad = TOKENIZER.encode_text("a bad")

    def script(request: Request) -> list[TokenDelta]:
        if request.prompt_token_ids == bad:
            return [TokenDelta(()), end]
        return [TokenDelta(())]  # goes on until it is cancelled

    with scored_server(script) as serving, Client(serving.target) as client:
        with pytest.raises(CallError) as caught:
            client.score("a", [" good", " bad", " fine"])
        assert caught.value.code == code
        serving.server.await_that(lambda: not serving.engine.live)
        # The others' ids are free again.
        assert serving.server.lifecycle.num_running == 0


def test_from_asyncio(serving: Scored) -> None:
    async def ask() -> tuple[ContinuationScore, ...]:
        async with AsyncClient(serving.target) as client:
            return (await client.score("a", [" the"])).scores

    assert asyncio.run(ask()) == (
        value_of(TOKENIZER.encode_text("a"), TOKENIZER.encode_text(" the")),
    )


def test_a_tokenizer_that_closes_its_texts_does_not_move_the_border() -> None:
    """The closing token of the prompt alone is not part of prompt and continuation."""

    class Closing:
        async def tokenize(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
            return (*map(ord, text), 2)

        async def render_chat(
            self, messages: Sequence[ChatMessage], arguments: Mapping[str, Any] | None
        ) -> str:
            raise NotImplementedError

    parts: list[TextRequest] = []

    async def stream(part: TextRequest) -> AsyncGenerator[TextDelta, None]:
        parts.append(part)
        yield TextDelta(0, "", (), finish_reason=FinishReason.LENGTH, usage=USAGE)

    request = ScoreRequest(TextRequest("r", SamplingParams(), text="ab"), ("cd",))
    asyncio.run(score(Closing(), stream, request))  # type: ignore[arg-type]
    assert parts[0].score_from == 2
