"""SmolLM2 over gRPC: text, stop strings, sampling parameters and refusals.

Expected ids and texts were checked with transformers on the same weights.
"""

from __future__ import annotations

import math

import pytest

from omruntime.errors import CallError
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import Client
from server.client.arguments import CallOptions, Prompt
from server.text import ChatMessage, TextDelta
from tests.e2e.hf_reference import QUESTIONS, Reference

FRANCE = "The capital of France is"
COUNT = "Count: 1, 2, 3,"


def ask(client: Client, prompt: Prompt, **params: object) -> TextDelta:
    """The first answer, greedy unless said; streamed and unary must be equal."""
    wishes = SamplingParams(**({"temperature": 0.0} | params))  # type: ignore[arg-type]
    unary = client.generate(prompt, wishes).answers[0]
    streamed = [d for d in client.stream(prompt, wishes) if d.index == 0]
    assert "".join(d.text for d in streamed) == unary.text
    assert [i for d in streamed for i in d.token_ids] == list(unary.token_ids)
    assert [d.finish_reason for d in streamed[:-1]] == [None] * (len(streamed) - 1)
    assert streamed[-1].finish_reason is unary.finish_reason
    assert streamed[-1].usage is not None
    assert streamed[-1].timings is not None
    return unary


def refused(client: Client, prompt: Prompt, **params: object) -> str:
    """The message of an INVALID_ARGUMENT."""
    with pytest.raises(CallError) as caught:
        client.generate(prompt, SamplingParams(**params))  # type: ignore[arg-type]
    assert caught.value.code == "INVALID_ARGUMENT"
    return str(caught.value)


def test_chat_prompts_tokenise_as_hf(client: Client, smollm2_references: list[Reference]) -> None:
    """BL-13: chat text is encoded without added special tokens, id by id as HF does."""
    for question, reference in zip(QUESTIONS, smollm2_references, strict=True):
        assert client.tokenize([ChatMessage("user", question)]) == reference.prompt


def test_raw_text_gets_no_begin_token_as_the_file_says(client: Client) -> None:
    """BL-12: this file's add_bos_token is false."""
    assert client.tokenize("Hello") == (19556,)


@pytest.mark.parametrize(
    ("prompt", "params", "text", "reason"),
    [
        (FRANCE, {"stop": ("Pari",)}, " ", FinishReason.STOP),
        (COUNT, {"stop": ("6, 7",)}, " 4, 5, ", FinishReason.STOP),
        (COUNT, {"stop": ("8, 9!",), "max_new_tokens": 15}, " 4, 5, 6, 7, 8,", FinishReason.LENGTH),
        (
            "Alice: Ask me any question.\nBob: What color is the sky on Mars",
            {"stop": ("\n",), "max_new_tokens": 8},
            "?",
            FinishReason.STOP,
        ),
    ],
)
def test_stop_strings(
    client: Client, prompt: str, params: dict[str, object], text: str, reason: FinishReason
) -> None:
    """BL-21: across tokens; nothing leaks, nothing is swallowed."""
    answer = ask(client, prompt, **params)
    assert (answer.text, answer.finish_reason) == (text, reason)


def test_a_stop_string_counts_the_tokens_up_to_it(client: Client) -> None:
    answer = ask(client, COUNT, stop=("6, 7",))
    assert answer.usage is not None
    assert answer.usage.num_output_tokens == len(answer.token_ids) == 11
    assert answer.matched_stop == "6, 7"


def test_min_new_tokens_holds_back_stops_and_end_tokens(client: Client) -> None:
    """BL-23."""
    answer = ask(client, COUNT, stop=("5",), min_new_tokens=12, max_new_tokens=64)
    assert answer.text == " 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 1"
    assert len(answer.token_ids) == 41
    question = [ChatMessage("user", "What is the capital of France?")]
    short = ask(client, question, max_new_tokens=32)
    assert (len(short.token_ids), short.finish_reason) == (8, FinishReason.STOP)
    longer = ask(client, question, min_new_tokens=12, max_new_tokens=32)
    assert len(longer.token_ids) > 12
    assert 2 not in longer.token_ids[:12]


def test_every_form_of_greedy_is_greedy(client: Client) -> None:
    """BL-24."""
    question = [ChatMessage("user", "Name three fruits.")]
    wanted = ask(client, question, max_new_tokens=12).token_ids
    for params in (
        {"top_p": 0.95, "top_k": 64},
        {"top_k": 0},
        {"top_k": -1},
        {"temperature": 1e-12},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-9},
    ):
        assert ask(client, question, max_new_tokens=12, **params).token_ids == wanted, params
    two = client.generate(question, SamplingParams(temperature=0, n=2, max_new_tokens=12))
    assert [answer.token_ids for answer in two.answers] == [wanted, wanted]


def test_top_k_beyond_the_vocabulary_is_off(client: Client) -> None:
    seeded = {"temperature": 1.0, "seed": 5, "max_new_tokens": 12}
    wanted = ask(client, FRANCE, **seeded).token_ids
    assert ask(client, FRANCE, top_k=999999, **seeded).token_ids == wanted


def test_logit_bias_moves_the_choice_and_bad_ids_are_named(client: Client) -> None:
    """BL-25."""
    answer = ask(client, FRANCE, max_new_tokens=1, logit_bias={7042: -100.0})
    assert answer.token_ids == (260,)
    assert "49152" in refused(client, FRANCE, logit_bias={49152: 1.0})


def test_penalties_count_what_hf_counts(client: Client) -> None:
    """BL-26."""
    answer = ask(client, FRANCE, repetition_penalty=1.3, max_new_tokens=12)
    wanted = (7042, 30, 198, 29, 378, 1797, 1918, 553, 253, 2155, 5359, 2061)
    assert answer.token_ids == wanted
    first = ask(client, FRANCE, presence_penalty=2.0, frequency_penalty=2.0, max_new_tokens=1)
    assert first.token_ids == (7042,)


def test_logprobs_are_the_models_own(client: Client) -> None:
    """Chosen token and the best three, before any sampling parameter."""
    answer = ask(client, FRANCE, max_new_tokens=1, logprobs=3)
    (entry,) = answer.logprobs
    assert math.isclose(entry.logprob, -0.258, abs_tol=1e-3)
    assert [token_id for token_id, _ in entry.top] == [7042, 260, 4528]


def test_a_split_character_is_held_back_and_never_lost(client: Client) -> None:
    """BL-19."""
    assert client.detokenize([10813, 116, 243]) == "🦙"
    params = SamplingParams(temperature=0, allowed_token_ids=(10813,), max_new_tokens=2)
    texts = [delta.text for delta in client.stream(FRANCE, params)]
    assert "".join(texts) == "\ufffd\ufffd"
    assert texts[:-1] == [""] * (len(texts) - 1)


def test_seeded_answers_do_not_depend_on_company(client: Client) -> None:
    """BL-28: alone, beside fifteen others, and as the first of two."""
    params = SamplingParams(temperature=0.8, seed=42, max_new_tokens=16, ignore_eos=True)
    alone = client.generate(FRANCE, params).answers[0].token_ids
    others = [client.stream(COUNT, SamplingParams(temperature=1.0)) for _ in range(15)]
    for other in others:
        next(other)
    assert client.generate(FRANCE, params).answers[0].token_ids == alone
    for other in others:
        other.close()
    params = SamplingParams(temperature=0.8, seed=42, n=2, max_new_tokens=16, ignore_eos=True)
    first, second = client.generate(FRANCE, params).answers
    again = client.generate(FRANCE, params).answers
    assert first.token_ids == alone != second.token_ids
    assert [a.token_ids for a in again] == [first.token_ids, second.token_ids]


def test_a_prompt_is_refused_never_cut(client: Client) -> None:
    """BL-30: the limit and the length are named; an empty prompt has nothing to answer."""
    message = refused(client, [5] * 512)
    assert "512" in message
    assert refused(client, "")
    assert refused(client, [])
    assert "504" in refused(client, [5] * 20, max_new_tokens=504)
    assert ask(client, [5] * 511).finish_reason is FinishReason.LENGTH


def test_a_token_id_outside_of_the_model_is_refused(client: Client) -> None:
    """BL-08: never a gather outside of the embedding."""
    assert "49152" in refused(client, [1, 49152])


def test_a_message_beyond_the_bound_is_refused_by_name(client: Client) -> None:
    """BL-42: five million token ids pass the 16 MiB that the server takes."""
    with pytest.raises(CallError) as caught:
        client.generate([49000] * 6_000_000)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert "16777216" in str(caught.value)


def test_a_live_id_is_refused_and_free_after_an_abort(client: Client) -> None:
    """BL-39."""
    long = SamplingParams(temperature=0, ignore_eos=True)
    first = client.stream(COUNT, long, CallOptions(request_id="id"))
    next(first)
    with pytest.raises(CallError) as caught:
        client.generate(FRANCE, long, CallOptions(request_id="id"))
    assert caught.value.code == "ALREADY_EXISTS"
    client.abort("id")
    *_, last = first
    assert last.finish_reason is FinishReason.ABORT
    short = SamplingParams(temperature=0, max_new_tokens=1)
    assert client.generate(FRANCE, short, CallOptions(request_id="id")).answers[0].token_ids
    with pytest.raises(CallError) as caught:
        client.abort("id")
    assert caught.value.code == "NOT_FOUND"
