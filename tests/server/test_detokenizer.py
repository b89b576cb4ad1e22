"""Detokenizer: joined pieces equal one decode, and no piece ends inside a character."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.detokenizer import Detokenizer
from server.tokenizer import Tokenizer
from tests.server.tiny_tokenizers import (
    METASPACE_DECODERS,
    METASPACE_TOKENS,
    byte_level_backend,
    metaspace_backend,
    smollm2,
    tokenizer_of,
)

BYTE_LEVEL = tokenizer_of(byte_level_backend())
METASPACE = {name: tokenizer_of(metaspace_backend(name)) for name in METASPACE_DECODERS}
# Beyond the vocabulary too: a head can be wider than the tokenizer.
byte_level_ids = st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 3), max_size=60)
character_bytes = st.text("é日🦙👨‍👩 a", min_size=1, max_size=4).map(
    lambda text: [3 + byte for byte in text.encode()]
)
metaspace_ids = st.lists(
    st.one_of(
        st.integers(259, len(METASPACE_TOKENS) + 2).map(lambda i: [i]),
        st.integers(0, 258).map(lambda i: [i]),
        character_bytes,
    ),
    max_size=25,
).map(lambda runs: [i for run in runs for i in run])


def pieces_of(tokenizer: Tokenizer, token_ids: Sequence[int], skip: bool = True) -> list[str]:
    """One piece for each token, and the flushed rest."""
    detokenizer = Detokenizer(tokenizer, skip)
    return [*(detokenizer.push(i) for i in token_ids), detokenizer.flush()]


@settings(max_examples=300)
@given(token_ids=byte_level_ids, skip=st.booleans())
def test_byte_level_pieces_join_to_one_decode(token_ids: list[int], skip: bool) -> None:
    """BL-19: byte for byte, invalid bytes and unknown ids included."""
    pieces = pieces_of(BYTE_LEVEL, token_ids, skip)
    assert "".join(pieces) == BYTE_LEVEL.decode(token_ids, skip)
    assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])


@pytest.mark.parametrize("decoder", METASPACE_DECODERS)
@settings(max_examples=150)
@given(token_ids=metaspace_ids, skip=st.booleans())
def test_metaspace_pieces_join_to_one_decode(
    decoder: str, token_ids: list[int], skip: bool
) -> None:
    """BL-19, BL-20: byte fallback, leading spaces and runs of them."""
    tokenizer = METASPACE[decoder]
    assert "".join(pieces_of(tokenizer, token_ids, skip)) == tokenizer.decode(token_ids, skip)


@settings(max_examples=200)
@given(text=st.text(max_size=40))
def test_text_is_not_held_back_once_its_characters_are_complete(text: str) -> None:
    if text.endswith("\ufffd"):
        text += "."
    pieces = pieces_of(BYTE_LEVEL, BYTE_LEVEL.encode_text(text))
    assert "".join(pieces[:-1]) == text


@pytest.mark.parametrize("decoder", METASPACE_DECODERS)
def test_leading_spaces_and_indentation_survive(decoder: str) -> None:
    """BL-20: streaming token by token ate the leading spaces of Metaspace tokens."""
    words = ["▁Hello", "▁world", "▁,", "▁▁▁▁", "."]
    pieces = pieces_of(METASPACE[decoder], [METASPACE_TOKENS.index(word) for word in words])
    first = " Hello" if decoder in ("gemma", "never") else "Hello"
    assert pieces == [first, " world", " ,", "    ", ".", ""]


@pytest.mark.parametrize("decoder", METASPACE_DECODERS)
def test_a_token_without_text_does_not_eat_the_space_after_it(decoder: str) -> None:
    words = ["▁Hello", "", "▁", "", "▁world"]
    token_ids = [METASPACE_TOKENS.index(word) for word in words]
    tokenizer = METASPACE[decoder]
    assert "".join(pieces_of(tokenizer, token_ids)) == tokenizer.decode(token_ids)


def test_a_wrong_byte_spoils_its_whole_run_of_byte_tokens() -> None:
    """So a character of byte tokens goes out only with the token after the run."""
    e_acute = [3 + byte for byte in "é".encode()]
    full_stop = METASPACE_TOKENS.index(".")
    assert pieces_of(METASPACE["gemma"], [*e_acute, full_stop]) == ["", "", "é.", ""]
    assert pieces_of(METASPACE["gemma"], [*e_acute, 3 + 0xFF])[-1] == "\ufffd" * 3


def test_special_tokens_inside_a_character_do_not_part_it() -> None:
    llama = [*BYTE_LEVEL.encode_text("🦙")]
    assert len(llama) > 1
    assert pieces_of(BYTE_LEVEL, [llama[0], 2, *llama[1:]])[-2] == "🦙"
    assert pieces_of(BYTE_LEVEL, [llama[0], 2], skip=False)[-2:] == ["\ufffd<|im_end|>", ""]


def test_garbage_without_end_is_held_and_its_end_is_found() -> None:
    """The hold is left at the first whole character, however long it was."""
    broken = BYTE_LEVEL.encode_text("🦙")[0]
    letter = BYTE_LEVEL.encode_text("x")[0]
    pieces = pieces_of(BYTE_LEVEL, [broken] * 50 + [letter, letter])
    assert pieces == [""] * 50 + ["\ufffd" * 50 + "x", "x", ""]


def test_smollm2_gives_the_known_characters(smollm2_gguf: Path) -> None:
    """BL-19: on S, [10813, 116, 243] is one character and 10813 twice is two broken ones."""
    assert pieces_of(smollm2(smollm2_gguf), [10813, 116, 243]) == ["", "", "🦙", ""]
    assert pieces_of(smollm2(smollm2_gguf), [10813, 10813]) == ["", "", "\ufffd\ufffd"]


@settings(max_examples=100)
@given(data=st.data())
def test_smollm2_pieces_join_to_one_decode(smollm2_gguf: Path, data: st.DataObject) -> None:
    """BL-19: over the whole vocabulary, and over tokens that break characters."""
    tokenizer = smollm2(smollm2_gguf)
    broken = broken_ids(tokenizer)
    ids = st.one_of(st.integers(0, 49160), st.sampled_from(broken))
    token_ids = data.draw(st.lists(ids, max_size=60))
    assert "".join(pieces_of(tokenizer, token_ids)) == tokenizer.decode(token_ids)


def broken_ids(tokenizer: Tokenizer) -> list[int]:
    """Tokens that hold a part of a character."""
    return [i for i in range(0, 49152, 7) if "\ufffd" in tokenizer.decode([i])] + [10813, 116, 243]
