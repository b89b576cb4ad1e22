"""PromptEncoder: every check of a request against the model, and nothing cut in silence."""

import asyncio

import pytest

from omruntime.errors import PreconditionError, PromptTooLongError, RequestError
from omruntime.manifest import SamplingDefaults
from omruntime.sampling_params import SamplingParams
from server.chat_template import ChatTemplate
from server.prompt import PromptEncoder
from server.text import ChatMessage, TextRequest
from server.tokenizer import Tokenizer, TokenizerConfig
from tests.server.scripted_engine import model_facts
from tests.server.tiny_tokenizers import CHAT_TEMPLATE, byte_level_backend, tokenizer_of

# Narrower than the tokenizer, whose last added token is 266 or so.
VOCAB_SIZE = 264
MAX_MODEL_LEN = 256
DEFAULTS = SamplingDefaults(temperature=0.6, top_k=20)
TOKENIZER = tokenizer_of(byte_level_backend())
PROMPTS = PromptEncoder(TOKENIZER, model_facts(VOCAB_SIZE, DEFAULTS), MAX_MODEL_LEN)


def encode(**prompt: object) -> tuple[int, ...]:
    request = TextRequest("r", SamplingParams(), **prompt)  # type: ignore[arg-type]
    return asyncio.run(PROMPTS.encode(request))


def test_each_kind_of_prompt_is_encoded() -> None:
    chat = PromptEncoder(
        tokenizer_of(byte_level_backend(), CHAT_TEMPLATE), model_facts(VOCAB_SIZE, DEFAULTS), 256
    )
    request = TextRequest("r", SamplingParams(), messages=(ChatMessage("user", "the"),))
    assert encode(text="the") == TOKENIZER.encode_text("the")
    assert encode(token_ids=(4, 0, 263)) == (4, 0, 263)
    rendered = "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"
    assert asyncio.run(chat.encode(request)) == TOKENIZER.encode_text(rendered)


def test_long_text_is_encoded_in_a_thread_with_the_same_result() -> None:
    text = "the " * 2000
    prompts = PromptEncoder(TOKENIZER, model_facts(VOCAB_SIZE, DEFAULTS), 8192)
    request = TextRequest("r", SamplingParams(), text=text)
    assert asyncio.run(prompts.encode(request)) == TOKENIZER.encode_text(text)


@pytest.mark.parametrize(
    ("prompt", "got"),
    [
        ({}, "no prompt"),
        ({"text": "a", "token_ids": (4,)}, "text and token_ids"),
        ({"text": "", "messages": ()}, "text and messages"),
    ],
)
def test_exactly_one_kind_of_prompt_is_wanted(prompt: dict[str, object], got: str) -> None:
    with pytest.raises(RequestError, match=f"got {got}, wanted exactly one"):
        encode(**prompt)


@pytest.mark.parametrize("prompt", [{"text": ""}, {"token_ids": ()}, {"messages": ()}])
def test_an_empty_prompt_is_refused(prompt: dict[str, object]) -> None:
    """BL-30: an empty prompt killed engines."""
    with pytest.raises(RequestError, match=r"gives no token|messages is empty"):
        encode(**prompt)


def test_messages_need_a_chat_template() -> None:
    """BL-09 d."""
    with pytest.raises(PreconditionError, match="chat template"):
        encode(messages=(ChatMessage("user", "a"),))


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 1 << 40])
def test_an_id_that_the_model_does_not_have_is_refused(token_id: int) -> None:
    """BL-08: named with the limit, before it reaches the embedding table."""
    with pytest.raises(RequestError, match=f"token id {token_id}, .* 0 to {VOCAB_SIZE - 1}"):
        encode(token_ids=(4, token_id, 5))


def test_a_text_whose_token_the_model_does_not_have_is_refused() -> None:
    """BL-08: an added token beyond the embedding."""
    (tool,) = TOKENIZER.encode_text("<tool>")
    assert tool >= VOCAB_SIZE
    with pytest.raises(RequestError, match=f"token id {tool}"):
        encode(text="hello <tool>")


class UnusedEncoder(Tokenizer):
    """Renders conversations, and must not be asked to encode."""

    def encode_text(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        raise AssertionError("a text that cannot fit was encoded")


@pytest.mark.parametrize("kind", ["text", "messages"])
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(kind: str) -> None:
    """256 tokens of 13 characters, as long as `<|endoftext|>`."""
    text = "x" * (256 * 13 + 1)
    tokenizer = UnusedEncoder(
        byte_level_backend(),
        TokenizerConfig(None, False, {}),
        {"default": ChatTemplate("{{ messages[0].content }}", "test.jinja")},
    )
    prompts = PromptEncoder(tokenizer, model_facts(VOCAB_SIZE, DEFAULTS), MAX_MODEL_LEN)
    request = (
        TextRequest("r", SamplingParams(), text=text)
        if kind == "text"
        else TextRequest("r", SamplingParams(), messages=(ChatMessage("user", text),))
    )
    with pytest.raises(PromptTooLongError, match=r"3329 characters.* 3328: .* 256 tokens"):
        asyncio.run(prompts.encode(request))


@pytest.mark.parametrize("field", ["text", "token_ids"])
def test_the_field_that_holds_an_unknown_id_is_named(field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field} holds token id"):
        encode(**{field: "<tool>" if field == "text" else (VOCAB_SIZE,)})


def test_ids_for_detokenize_are_named_as_its_field() -> None:
    with pytest.raises(RequestError, match=r"^token_ids holds token id -1"):
        PROMPTS.require_known((-1,))


@pytest.mark.parametrize("num_prompt_tokens", [256, 257])
def test_a_prompt_without_room_for_an_answer_is_refused(num_prompt_tokens: int) -> None:
    """BL-30: with limit and length."""
    with pytest.raises(PromptTooLongError, match=f"{num_prompt_tokens} tokens, .*at most 255"):
        PROMPTS.fit(SamplingParams(), num_prompt_tokens)


def test_a_prompt_that_leaves_one_token_passes() -> None:
    """BL-30: 255 of 256."""
    PROMPTS.fit(SamplingParams(), 255)
    PROMPTS.fit(SamplingParams(max_new_tokens=1), 255)


@pytest.mark.parametrize("name", ["max_new_tokens", "min_new_tokens"])
def test_an_answer_that_cannot_fit_is_refused_with_both_numbers(name: str) -> None:
    """BL-30: 10000 is not cut in silence."""
    params = SamplingParams(**{name: 10_000})  # type: ignore[arg-type]
    with pytest.raises(PromptTooLongError, match=f"100 tokens and {name} is 10000.* 256 .*to 156"):
        PROMPTS.fit(params, 100)


def test_no_limit_of_the_answer_means_up_to_the_models() -> None:
    assert PROMPTS.fit(SamplingParams(), 100).max_new_tokens is None


def test_the_bundles_defaults_fill_what_is_unset() -> None:
    """BL-31: explicit values win, zero included."""
    fitted = PROMPTS.fit(SamplingParams(temperature=0.0), 1)
    assert (fitted.temperature, fitted.top_k) == (0.0, 20)


def test_a_parameter_with_an_unknown_id_is_refused() -> None:
    """BL-25: it killed the engine for everybody."""
    with pytest.raises(RequestError, match=f"logit_bias holds token id {VOCAB_SIZE}"):
        PROMPTS.fit(SamplingParams(logit_bias={VOCAB_SIZE: 1.0}), 1)


def test_allowing_only_end_tokens_while_they_are_banned_is_refused() -> None:
    params = SamplingParams(allowed_token_ids=(2, 9), stop_token_ids=(9,), min_new_tokens=1)
    with pytest.raises(RequestError, match="allowed_token_ids"):
        PROMPTS.fit(params, 1)
