"""POST /tokenize and /detokenize: the tokenizer's two routes, with vLLM's names."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, StrictBool, StrictInt, StrictStr

from omruntime.errors import FieldError
from server.field_names import named_as
from server.grpc_service import MAX_DETOKENIZE_IDS, MAX_TOKENIZE_CHARS
from server.http.field_names import DETOKENIZE_NAMES, TOKENIZE_NAMES
from server.http.gateway import Gateway
from server.http.json_route import JsonRoute
from server.http.schema import FastList, Message, ShortList
from server.http.tools import with_calls_told
from server.http.wishes import messages_of


class TokenizeBody(BaseModel):
    """POST /tokenize: a text, or a conversation as /v1/chat/completions would render it."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr | None = None
    prompt: StrictStr | None = None
    messages: ShortList[Message] | None = None
    # Unset: true for a text, false for a conversation, whose template writes its own.
    add_special_tokens: StrictBool | None = None
    add_generation_prompt: Literal[True] = True
    # What vLLM's clients send along and asks for nothing.
    continue_final_message: Literal[False] = False
    return_token_strs: Literal[False] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr | None = None
    tokens: FastList[StrictInt]
    skip_special_tokens: StrictBool = False


def tokenizer_routes(gateway: Gateway) -> APIRouter:
    """Tokenize and detokenize."""
    router = APIRouter(tags=["operations"], route_class=JsonRoute)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, object]:
        """The token ids of a text, or of a conversation."""
        generator = gateway.require(body.model)
        with gateway.lifecycle.running(), named_as(TOKENIZE_NAMES):
            field, text = await _text_of(body, gateway)
            if len(text) > MAX_TOKENIZE_CHARS:
                raise FieldError(
                    field,
                    f"{field} has {len(text)} characters, wanted at most {MAX_TOKENIZE_CHARS}; "
                    f"send it in pieces",
                )
            given = body.add_special_tokens
            adds_special = field == "prompt" if given is None else given
            token_ids = await generator.tokenize(text, adds_special)
        return {
            "tokens": list(token_ids),
            "count": len(token_ids),
            "max_model_len": gateway.max_model_len,
        }

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        """The text of token ids."""
        generator = gateway.require(body.model)
        if len(body.tokens) > MAX_DETOKENIZE_IDS:
            raise FieldError(
                "tokens",
                f"tokens has {len(body.tokens)} ids, wanted at most {MAX_DETOKENIZE_IDS}; send "
                f"them in pieces",
            )
        with gateway.lifecycle.running(), named_as(DETOKENIZE_NAMES):
            prompt = await generator.detokenize(body.tokens, body.skip_special_tokens)
        return {"prompt": prompt}

    return router


async def _text_of(body: TokenizeBody, gateway: Gateway) -> tuple[str, str]:
    """Which of the two fields is given, and its text.

    Raises:
        RequestError: Not exactly one of them is given, or there is no text for it.
    """
    if (body.prompt is None) == (body.messages is None):
        got = "neither" if body.prompt is None else "both"
        raise FieldError("prompt", f"got {got} of prompt and messages, wanted one of them")
    arguments = body.chat_template_kwargs
    if body.messages is None:
        if arguments is not None:
            raise FieldError(
                "chat_template_kwargs", "chat_template_kwargs is set without messages; set them"
            )
        assert body.prompt is not None
        return "prompt", body.prompt
    messages = await with_calls_told(messages_of(body.messages), arguments, gateway)
    generator = gateway.lifecycle.require_loaded()
    return "messages", await generator.render_chat(messages, arguments)
