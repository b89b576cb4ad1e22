from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from omruntime.step import TokenLogprobs
from server.answers import join_deltas, slice_delta, terminated_deltas
from server.lifecycle import Lifecycle
from server.text import PromptToken, TextDelta, TextRequest
from tests.server.wire_fakes import FakeGenerator, end

tokens = st.lists(st.integers(0, 99), max_size=40)


@given(tokens, tokens, st.integers(1, 7), st.booleans(), st.booleans())
def test_slices_join_to_the_delta_and_only_the_last_is_terminal(
    token_ids: list[int], prompt: list[int], max_tokens: int, has_end: bool, has_logprobs: bool
) -> None:
    logprobs = tuple(TokenLogprobs(-float(i), ()) for i in token_ids) if has_logprobs else ()
    reason = FinishReason.STOP if has_end else None
    delta = TextDelta(
        3,
        "text",
        tuple(token_ids),
        logprobs=logprobs,
        finish_reason=reason,
        prompt_logprobs=tuple(PromptToken(i) for i in prompt),
    )
    pieces = list(slice_delta(delta, max_tokens))
    assert join_deltas(pieces) == (delta,)
    assert all(len(piece.token_ids) <= max_tokens for piece in pieces)
    assert all(len(piece.prompt_logprobs) <= max_tokens for piece in pieces)
    first = next((i for i, piece in enumerate(pieces) if piece.token_ids), len(pieces))
    assert not any(piece.prompt_logprobs for piece in pieces[first + 1 :])
    assert all(piece.finish_reason is None for piece in pieces[:-1])
    if has_logprobs:
        assert all(len(piece.logprobs) == len(piece.token_ids) for piece in pieces)


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3), st.integers(0, 9))))
def test_join_keeps_the_order_within_each_answer(parts: list[tuple[int, str, int]]) -> None:
    deltas = [TextDelta(index, text, (token,)) for index, text, token in parts]
    answers = join_deltas([*deltas, *(end(index) for index in range(3))])
    assert [a.index for a in answers] == [0, 1, 2]
    for answer in answers:
        mine = [part for part in parts if part[0] == answer.index]
        assert answer.text == "".join(text for _, text, _ in mine)
        assert answer.token_ids == tuple(token for _, _, token in mine)
        assert answer.usage is not None


def test_terminated_deltas_closes_the_generator_when_left_early() -> None:
    async def run() -> int:
        generator = FakeGenerator([TextDelta(0, "a", (1,)), FakeGenerator.HOLD])
        deltas = terminated_deltas(
            generator, TextRequest("r", SamplingParams(), text="x"), Lifecycle()
        )
        await anext(deltas)
        await deltas.aclose()
        return generator.num_closed

    assert asyncio.run(run()) == 1
