"""SmolLM2's own prompts and answers scored over gRPC.

Expected logprobs were checked with transformers on the same weights.
"""

from __future__ import annotations

import pytest

from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import Client
from server.client.arguments import CallOptions
from server.text import TextDelta

FRANCE = "The capital of France is"
FRANCE_IDS = (504, 3575, 282, 4649, 314)
FRANCE_LOGPROBS = (-11.539, -0.338, -2.439, -0.451)
NO_CACHE = CallOptions(bypasses_prefix_cache=True)


def logprobs_of(answer: TextDelta) -> list[float]:
    """Of all tokens but the first, which has none."""
    first, *others = answer.prompt_logprobs
    assert (first.logprob, first.rank, first.top) == (None, None, ())
    return [token.logprob for token in others if token.logprob is not None]


@pytest.mark.parametrize("prompt", [FRANCE, FRANCE_IDS], ids=["text", "ids"])
@pytest.mark.parametrize("max_new_tokens", [0, 4])
def test_known_logprobs(client: Client, prompt: str | tuple[int, ...], max_new_tokens: int) -> None:
    """BL-29: with and without an answer, as text and as token ids."""
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, prompt_logprobs=1)
    (answer,) = client.generate(prompt, params).answers
    assert [token.token_id for token in answer.prompt_logprobs] == list(FRANCE_IDS)
    assert logprobs_of(answer) == pytest.approx(FRANCE_LOGPROBS, abs=1e-3)
    assert answer.finish_reason is FinishReason.LENGTH
    assert len(answer.token_ids) == max_new_tokens


def test_an_answer_is_scored_as_it_was_decoded(client: Client) -> None:
    """Positions of one prompt side by side give what one after another gave."""
    params = SamplingParams(max_new_tokens=40, temperature=0.0, logprobs=3, ignore_eos=True)
    (answer,) = client.generate(FRANCE, params).answers
    (score,) = client.score(FRANCE, [answer.token_ids], 3, NO_CACHE).scores
    assert score.is_greedy
    decoded = [entry.logprob for entry in answer.logprobs]
    assert [token.logprob for token in score.tokens] == pytest.approx(decoded, abs=1e-3)
    for token, entry in zip(score.tokens, answer.logprobs, strict=True):
        assert token.top[0][0] == entry.top[0][0]
    assert score.logprob == pytest.approx(sum(decoded), abs=1e-2)


def test_the_answer_is_the_same_whether_or_not_its_prompt_is_scored(client: Client) -> None:
    prompt = "Count slowly from one to a hundred, in words, with commas: one, two, three, " * 12
    plain = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)
    scored = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True, prompt_logprobs=20)
    (one,) = client.generate(prompt, plain, NO_CACHE).answers
    (other,) = client.generate(prompt, scored, NO_CACHE).answers
    assert one.token_ids == other.token_ids
    assert other.usage is not None
    assert len(other.prompt_logprobs) == other.usage.num_prompt_tokens > 200
    assert all(len(token.top) == 20 for token in other.prompt_logprobs[1:])


def test_the_true_continuation_is_worth_most(client: Client) -> None:
    """Which is all that a harness's multiple choice asks."""
    cities = [" London", " Paris", " Tokyo"]
    scores = client.score(FRANCE, cities).scores
    assert max(zip(scores, cities, strict=True), key=lambda each: each[0].logprob)[1] == " Paris"
    assert [score.is_greedy for score in scores] == [False, True, False]
    assert scores[1].logprob == pytest.approx(-0.258, abs=1e-3)
