"""Tokenizer: the files of a bundle, and ids equal to transformers'."""

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken, normalizers, processors
from transformers import PreTrainedTokenizerFast

from omruntime.errors import BundleError, PreconditionError, RequestError
from server.text import ChatMessage
from server.tokenizer import MAX_QUICK_CHARS, Tokenizer
from tests.server.tiny_tokenizers import (
    CHAT_TEMPLATE,
    END_ID,
    byte_level_backend,
    metaspace_backend,
    smollm2,
    tokenizer_of,
    write_tokenizer,
)

CHAT = (ChatMessage("user", "What is the  time? 🦙"), ChatMessage("assistant", " Late "))


def encode_chat(tokenizer: Tokenizer, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
    return tokenizer.encode_text(tokenizer.render_chat(messages), add_special_tokens=False)


def test_chat_ids_equal_those_of_transformers() -> None:
    """BL-13: id by id; the template's text is encoded without added special tokens."""
    backend = byte_level_backend()
    reference = PreTrainedTokenizerFast(tokenizer_object=byte_level_backend())
    reference.chat_template = CHAT_TEMPLATE
    messages = [{"role": m.role, "content": m.content} for m in CHAT]
    wanted = reference.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert encode_chat(tokenizer_of(backend, CHAT_TEMPLATE), CHAT) == tuple(wanted)


def test_an_rstrip_token_takes_the_space_after_it_as_in_transformers() -> None:
    """BL-13: `"rstrip": true` on <|im_start|>."""
    backend = byte_level_backend()
    backend.add_special_tokens([AddedToken("<|im_start|>", rstrip=True, special=True)])
    tokenizer = tokenizer_of(backend)
    reference = PreTrainedTokenizerFast(tokenizer_object=backend)
    text = "<|im_start|>  \n the"
    assert tokenizer.encode_text(text) == tuple(reference(text).input_ids)


def bos_backend_folder(folder: Path, processor_adds: bool) -> Path:
    backend = metaspace_backend("gemma")
    if processor_adds:
        backend.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", 1)]
        )
    return write_tokenizer(folder, backend, bos_token="<bos>", add_bos=True)


@pytest.mark.parametrize("processor_adds", [True, False])
def test_a_plain_prompt_gets_exactly_one_bos(tmp_path: Path, processor_adds: bool) -> None:
    """BL-12, BL-13, BL-30: whether tokenizer.json adds it or not; an empty text is [bos]."""
    tokenizer = Tokenizer.load(bos_backend_folder(tmp_path, processor_adds))
    assert tokenizer.encode_text("") == (1,)
    assert tokenizer.encode_text("a").count(1) == 1
    assert tokenizer.encode_text("a", add_special_tokens=False).count(1) == 0


@pytest.mark.parametrize("processor_adds", [True, False])
def test_a_template_that_prints_bos_gives_one_bos(tmp_path: Path, processor_adds: bool) -> None:
    """BL-13: a template that begins with bos_token on a tokenizer that adds one."""
    folder = bos_backend_folder(tmp_path, processor_adds)
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    ids = encode_chat(Tokenizer.load(folder), [ChatMessage("user", "a")])
    assert ids.count(1) == 1


def test_without_a_template_chat_is_refused_and_text_works(tmp_path: Path) -> None:
    """BL-09 d: the missing template is named."""
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, byte_level_backend()))
    with pytest.raises(PreconditionError, match=r"chat_template\.jinja"):
        tokenizer.render_chat(CHAT)
    assert tokenizer.encode_text("the") == (260,)


def test_named_templates_apply_by_their_use(tmp_path: Path) -> None:
    """BL-09 b: tool_use when tools are given, else default."""
    folder = write_tokenizer(tmp_path, byte_level_backend())
    (folder / "chat_template.jinja").write_text("default")
    (folder / "chat_template.tool_use.jinja").write_text("tools: {{ tools | length }}")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.render_chat(CHAT) == "default"
    assert tokenizer.render_chat(CHAT, {"tools": []}) == "default"
    assert tokenizer.render_chat(CHAT, {"tools": [{}, {}]}) == "tools: 2"


def test_template_arguments_reach_the_template_and_win_over_special_tokens() -> None:
    tokenizer = tokenizer_of(byte_level_backend(), "{{ eos_token }}{{ add_generation_prompt }}")
    assert tokenizer.render_chat(CHAT) == "<|im_end|>True"
    arguments = {"eos_token": "E", "add_generation_prompt": False}
    assert tokenizer.render_chat(CHAT, arguments) == "EFalse"


@pytest.mark.parametrize("name", ["messages", "chat_template"])
def test_a_request_cannot_replace_conversation_or_template(name: str) -> None:
    """BL-18: templates from requests are refused."""
    tokenizer = tokenizer_of(byte_level_backend(), CHAT_TEMPLATE)
    with pytest.raises(RequestError, match=name):
        tokenizer.render_chat(CHAT, {name: "x"})


def test_a_conversation_without_messages_is_refused() -> None:
    """BL-16: `"messages": []`."""
    with pytest.raises(RequestError, match="messages is empty"):
        tokenizer_of(byte_level_backend(), CHAT_TEMPLATE).render_chat([])


def test_a_message_that_spells_a_special_token_gives_the_real_one() -> None:
    """BL-18: documented, and what transformers does."""
    tokenizer = tokenizer_of(byte_level_backend(), CHAT_TEMPLATE)
    ids = encode_chat(tokenizer, [ChatMessage("user", "hi<|im_end|>\n")])
    assert ids.count(END_ID) == 2


def test_ids_without_a_token_decode_to_nothing() -> None:
    """BL-07: a head wider than the tokenizer."""
    tokenizer = tokenizer_of(byte_level_backend())
    assert tokenizer.decode([tokenizer.vocab_size + 7]) == ""
    assert tokenizer.token(tokenizer.vocab_size + 7) is None


def test_special_tokens_are_skipped_when_asked() -> None:
    tokenizer = tokenizer_of(byte_level_backend())
    ids = tokenizer.encode_text("the<|im_end|><tool>")
    assert tokenizer.decode(ids) == "the<tool>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "the<|im_end|><tool>"


def test_a_prompt_is_neither_cut_nor_filled_up(tmp_path: Path) -> None:
    """BL-30: some tokenizer.json carry the truncation and padding of their training."""
    backend = byte_level_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, backend))
    assert len(tokenizer.encode_text("abcdefgh")) == 8


def test_long_and_short_texts_are_encoded_alike() -> None:
    """Beyond MAX_QUICK_CHARS the library is called in another way."""
    tokenizer = tokenizer_of(byte_level_backend())
    part = "the 🦙 <tool> x"
    ids = tokenizer.encode_text(part)
    times = MAX_QUICK_CHARS // len(part) + 1
    assert tokenizer.encode_text(part * times) == ids * times
    with pytest.raises(RequestError, match="not valid Unicode"):
        tokenizer.encode_text("a\ud83e" * MAX_QUICK_CHARS)


def test_a_long_text_leaves_the_other_threads_running() -> None:
    """Encoding must give the interpreter lock up by itself: here nothing else takes it away."""
    tokenizer = tokenizer_of(byte_level_backend())
    text = "the quick brown fox " * 20_000
    num_ticks, done = 0, threading.Event()

    def tick() -> None:
        nonlocal num_ticks
        while not done.wait(0.001):
            num_ticks += 1

    interval_s = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    thread.start()
    sys.setswitchinterval(1000)
    try:
        num_before = num_ticks
        tokenizer.encode_text(text)
        num_after = num_ticks
    finally:
        sys.setswitchinterval(interval_s)
        done.set()
        thread.join()
    assert num_after > num_before


def test_the_longest_token_is_known() -> None:
    assert tokenizer_of(byte_level_backend()).max_token_chars == len("<|endoftext|>")


def test_half_a_surrogate_pair_is_the_callers_fault() -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        tokenizer_of(byte_level_backend()).encode_text("a\ud83e")


def test_normalisation_is_the_tokenizers() -> None:
    backend = byte_level_backend()
    backend.normalizer = normalizers.Lowercase()
    tokenizer = tokenizer_of(backend)
    assert tokenizer.encode_text("THE") == tokenizer.encode_text("the")


def test_a_damaged_folder_is_refused_with_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
    folder = write_tokenizer(tmp_path, byte_level_backend())
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        "{}",
        json.dumps({"bos_token": None, "add_bos": "yes", "special_tokens": {}}),
        json.dumps({"bos_token": 1, "add_bos": False, "special_tokens": {}}),
        json.dumps({"bos_token": None, "add_bos": True, "special_tokens": {}}),
        json.dumps({"bos_token": "<absent>", "add_bos": True, "special_tokens": {}}),
    ],
)
def test_a_damaged_configuration_is_refused(tmp_path: Path, config: str) -> None:
    folder = write_tokenizer(tmp_path, byte_level_backend())
    (folder / "tokenizer_config.json").write_text(config)
    with pytest.raises(BundleError, match=r"tokenizer_config\.json"):
        Tokenizer.load(folder)


def test_smollm2_encodes_as_known(smollm2_gguf: Path) -> None:
    """BL-12, BL-30: "Hello" is [19556] without BOS, and "" has no token."""
    assert smollm2(smollm2_gguf).encode_text("Hello") == (19556,)
    assert smollm2(smollm2_gguf).encode_text("") == ()
