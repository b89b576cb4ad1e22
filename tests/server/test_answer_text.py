"""AnswerText: stop strings, end tokens, held-back text and counts of one answer."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omruntime.constraint import Constraint
from omruntime.outputs import TokenDelta
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from omruntime.step import TokenLogprobs
from server.answer_text import AnswerText
from server.text import TextDelta, Usage
from tests.server.scripted_engine import TIMINGS, last, one_by_one
from tests.server.tiny_tokenizers import END_ID, byte_level_backend, tokenizer_of

TOKENIZER = tokenizer_of(byte_level_backend())


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode_text(text))


def run(params: SamplingParams, deltas: list[TokenDelta]) -> list[TextDelta]:
    """All text deltas; checks that the terminal one is the last and the only one."""
    answer = AnswerText(0, 5, params, TOKENIZER)
    accepted = [answer.accept(delta) for delta in deltas]
    given = [delta for delta in accepted if delta is not None]
    assert [d.finish_reason is not None for d in given] == [False] * (len(given) - 1) + [True]
    assert answer.finished
    return given


def text_of(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_in(deltas: list[TextDelta]) -> list[int]:
    return [i for delta in deltas for i in delta.token_ids]


def test_a_stop_string_over_tokens_ends_the_answer_with_the_token_that_completed_it() -> None:
    """BL-21: "6, 7" gives " 4, 5, "; what the engine made beyond is dropped."""
    tokens = ids_of(" 4, 5, 6, 7, 8, 9")
    deltas = run(SamplingParams(stop=("6, 7",)), one_by_one(tokens, FinishReason.LENGTH))
    num_tokens = len(ids_of(" 4, 5, 6, 7"))
    assert text_of(deltas) == " 4, 5, "
    assert ids_in(deltas) == tokens[:num_tokens]
    end = deltas[-1]
    assert (end.finish_reason, end.matched_stop) == (FinishReason.STOP, "6, 7")
    assert end.usage == Usage(5, num_tokens, 3)
    assert end.timings == TIMINGS


def test_include_stop_keeps_the_stop_string() -> None:
    params = SamplingParams(stop=("6, 7",), include_stop=True)
    deltas = run(params, one_by_one(ids_of(" 5, 6, 7, 8"), FinishReason.LENGTH))
    assert text_of(deltas) == " 5, 6, 7"


def test_text_held_back_for_a_stop_string_is_delivered_at_the_end() -> None:
    """BL-21: stop ["8, 9!"] does not swallow "8,"."""
    deltas = run(SamplingParams(stop=("8, 9!",)), one_by_one(ids_of(" 7, 8,"), FinishReason.LENGTH))
    assert text_of(deltas) == " 7, 8,"
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].matched_stop is None


def test_a_stop_string_completed_by_the_last_token_wins_over_length() -> None:
    deltas = run(SamplingParams(stop=("\n",)), one_by_one(ids_of("?\n"), FinishReason.LENGTH))
    assert text_of(deltas) == "?"
    assert deltas[-1].finish_reason is FinishReason.STOP


def test_an_early_stop_string_does_not_count_before_min_new_tokens() -> None:
    """BL-23: stop ["5"], min_new_tokens 12 ends inside "15"."""
    tokens = ids_of(" 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16")
    params = SamplingParams(stop=("5",), min_new_tokens=12)
    deltas = run(params, one_by_one(tokens, FinishReason.LENGTH))
    assert text_of(deltas) == " 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 1"
    assert deltas[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("min_new_tokens", [0, 1, 2, 3])
def test_a_stop_string_counts_from_the_token_that_reaches_the_minimum(min_new_tokens: int) -> None:
    params = SamplingParams(stop=("b",), min_new_tokens=min_new_tokens)
    deltas = run(params, one_by_one(ids_of("abc"), FinishReason.LENGTH))
    assert text_of(deltas) == ("abc" if min_new_tokens == 3 else "a")


def test_the_end_token_is_counted_and_not_shown() -> None:
    """BL-06: usage counts the end token as transformers does."""
    deltas = run(SamplingParams(), one_by_one([*ids_of("the"), END_ID], FinishReason.STOP))
    assert text_of(deltas) == "the"
    assert ids_in(deltas)[-1] == END_ID
    assert deltas[-1].usage == Usage(5, 2, 3)
    assert deltas[-1].matched_stop is None


def test_the_end_token_is_shown_when_special_tokens_are() -> None:
    params = SamplingParams(skip_special_tokens=False)
    deltas = run(params, one_by_one([*ids_of("the"), END_ID], FinishReason.STOP))
    assert text_of(deltas) == "the<|im_end|>"


@pytest.mark.parametrize(("include_stop", "text"), [(False, "the"), (True, "the.")])
def test_an_ordinary_stop_token_is_shown_only_when_asked(include_stop: bool, text: str) -> None:
    (full_stop,) = ids_of(".")
    params = SamplingParams(stop_token_ids=(full_stop,), include_stop=include_stop)
    deltas = run(params, one_by_one([*ids_of("the"), full_stop], FinishReason.STOP))
    assert text_of(deltas) == text
    assert deltas[-1].matched_stop == full_stop


def test_a_broken_character_comes_at_the_end_and_nothing_earlier() -> None:
    """BL-19: two broken starts of a character give two replacement characters."""
    broken = ids_of("🦙")[0]
    deltas = run(SamplingParams(), one_by_one([broken, broken], FinishReason.LENGTH))
    assert [delta.text for delta in deltas] == ["", "\ufffd\ufffd"]


def test_an_error_after_tokens_keeps_their_text() -> None:
    deltas = run(
        SamplingParams(stop=("the end",)),
        [TokenDelta(tuple(ids_of("the"))), last(FinishReason.ERROR, error="the device is gone")],
    )
    assert text_of(deltas) == "the"
    assert deltas[-1].finish_reason is FinishReason.ERROR
    assert deltas[-1].error == "the device is gone"


def test_whose_fault_an_error_is_goes_along() -> None:
    for is_refusal in (False, True):
        failed = replace(last(FinishReason.ERROR, error="no token"), is_refusal=is_refusal)
        assert run(SamplingParams(), [failed])[-1].is_refusal is is_refusal


def test_logprobs_are_cut_with_their_tokens() -> None:
    """BL-27: they stand beside their own tokens, stop-string cuts included."""
    tokens = ids_of("abcd")
    logprobs = tuple(TokenLogprobs(-float(i), ()) for i in range(4))
    answer = AnswerText(0, 1, SamplingParams(stop=("c",), logprobs=0), TOKENIZER)
    delta = answer.accept(TokenDelta(tuple(tokens), logprobs))
    assert delta is not None
    assert delta.token_ids == tuple(tokens[:3])
    assert delta.logprobs == logprobs[:3]
    assert answer.stopped


def test_after_a_stop_string_nothing_is_told_until_the_engine_has_ended() -> None:
    answer = AnswerText(0, 1, SamplingParams(stop=("b",)), TOKENIZER)
    answer.accept(TokenDelta(tuple(ids_of("ab"))))
    assert answer.accept(TokenDelta(tuple(ids_of("c")))) is None
    assert not answer.finished
    end = answer.accept(last(FinishReason.ERROR, error="late"))
    assert end is not None
    assert (end.text, end.token_ids, end.error) == ("", (), "")
    assert end.finish_reason is FinishReason.STOP


@settings(max_examples=200)
@given(data=st.data())
def test_merged_deltas_give_the_answer_of_single_ones(data: st.DataObject) -> None:
    """BL-21: streamed text equals unary text, however tokens are grouped on their way."""
    tokens = data.draw(st.lists(st.sampled_from([*ids_of("ab 🦙\n"), END_ID]), min_size=1))
    params = SamplingParams(
        stop=tuple(data.draw(st.lists(st.text("ab \n", min_size=1, max_size=3), max_size=2))),
        min_new_tokens=data.draw(st.integers(0, 4)),
        skip_special_tokens=data.draw(st.booleans()),
    )
    reason = data.draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    single = one_by_one(tokens, reason)
    merged = [last(reason, *tokens)]
    apart, together = run(params, single), run(params, merged)
    assert text_of(apart) == text_of(together)
    assert ids_in(apart) == ids_in(together)
    assert apart[-1].finish_reason == together[-1].finish_reason
    assert apart[-1].usage == together[-1].usage
    assert apart[-1].matched_stop == together[-1].matched_stop


@pytest.mark.parametrize("reason", FinishReason)
def test_held_back_text_comes_with_every_kind_of_end(reason: FinishReason) -> None:
    """BL-19, BL-21: half a character, and what a stop string may begin with."""
    broken = ids_of("🦙")[0]
    params = SamplingParams(stop=("8, 9!",))
    end = [END_ID] if reason is FinishReason.STOP else []
    for token_ids, text in ((ids_of(" 7, 8,"), " 7, 8,"), ([*ids_of("a"), broken], "a\ufffd")):
        deltas = [TokenDelta((i,)) for i in token_ids]
        assert text_of(run(params, [*deltas, last(reason, *end)])) == text
        assert text_of(run(params, [*deltas[:-1], last(reason, token_ids[-1], *end)])) == text


def test_a_prompt_that_ends_inside_a_character_leaves_the_rest_broken() -> None:
    """An answer's text is the decode of its own ids, as its token ids say, streamed or not."""
    rest = ids_of("🦙")[1:]
    assert rest
    wanted = TOKENIZER.decode(rest)
    assert set(wanted) == {"\ufffd"}
    deltas = run(SamplingParams(), one_by_one(rest, FinishReason.LENGTH))
    assert text_of(deltas) == wanted
    assert [delta.text for delta in deltas[:-1]] == [""] * (len(deltas) - 1)


@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_string_may_be_the_first_token(include_stop: bool) -> None:
    params = SamplingParams(stop=("the",), include_stop=include_stop)
    deltas = run(params, one_by_one(ids_of("the the"), FinishReason.LENGTH))
    assert text_of(deltas) == ("the" if include_stop else "")
    assert ids_in(deltas) == ids_of("the")
    assert deltas[-1].finish_reason is FinishReason.STOP


def test_of_two_stop_strings_the_one_that_is_complete_first_counts() -> None:
    """One is the beginning of the other, and which stands first does not matter."""
    for stop in (("ab", "abc"), ("abc", "ab")):
        deltas = run(SamplingParams(stop=stop), one_by_one(ids_of("xabc"), FinishReason.LENGTH))
        assert (text_of(deltas), deltas[-1].matched_stop) == ("x", "ab")


def test_a_stop_in_the_middle_of_a_step_drops_what_follows() -> None:
    """Several tokens in one delta, as for a slow reader."""
    tokens = ids_of("xa stop yz")
    deltas = run(SamplingParams(stop=("op",)), [last(FinishReason.LENGTH, *tokens)])
    num_kept = len(ids_of("xa stop"))
    assert text_of(deltas) == "xa st"
    assert ids_in(deltas) == tokens[:num_kept]
    assert deltas[-1].usage == Usage(5, num_kept, 3)


@pytest.mark.parametrize("skip", [True, False])
def test_the_token_that_completes_a_constrained_answer_is_part_of_it(skip: bool) -> None:
    """Unlike an end or stop token, which says only that the answer is over."""
    params = SamplingParams(
        constraint=Constraint(choices=("abc",)), stop_token_ids=(9,), skip_special_tokens=skip
    )
    for end in ([], [2], [9]):
        answer = AnswerText(0, 1, params, TOKENIZER, eos_token_ids=(2,))
        deltas = one_by_one([*ids_of("abc"), *end], FinishReason.STOP)
        given = [d for d in map(answer.accept, deltas) if d is not None]
        shown = TOKENIZER.decode(end, skip) if end == [2] else ""
        assert text_of(given) == "abc" + shown
        assert given[-1].matched_stop == (9 if end == [9] else None)
