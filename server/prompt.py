"""PromptEncoder: a text request -> token ids that the model can run, or the reason why not.

Owns every check of prompt and parameters against the model. A prompt is never cut.
"""

from __future__ import annotations

import asyncio

from omruntime.errors import PromptTooLongError, RequestError
from omruntime.manifest import ModelFacts
from omruntime.sampling_params import SamplingParams
from server.text import TextRequest
from server.tokenizer import MAX_QUICK_CHARS, Tokenizer

# Longer texts would hold up the other requests of the event loop, so a thread encodes them.
MAX_INLINE_CHARS = MAX_QUICK_CHARS


class PromptEncoder:
    """Encodes and checks; holds nothing of a request."""

    def __init__(self, tokenizer: Tokenizer, model: ModelFacts, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._max_model_len = max_model_len

    async def encode(self, request: TextRequest) -> tuple[int, ...]:
        """The prompt's ids.

        Raises:
            RequestError: Not exactly one kind of prompt, an empty one, or an id that the model
                does not have.
            PromptTooLongError: A text that cannot fit, whatever its tokens are.
            PreconditionError: Messages without a chat template in the bundle.
        """
        given = [
            name for name in ("text", "token_ids", "messages") if getattr(request, name) is not None
        ]
        if len(given) != 1:
            raise RequestError(
                f"got {' and '.join(given) or 'no prompt'}, wanted exactly one of text, "
                f"token_ids and messages"
            )
        token_ids = await self._token_ids(request)
        if not token_ids:
            raise RequestError(f"{given[0]} gives no token, wanted at least one", given[0])
        self.require_known(token_ids, given[0])
        return token_ids

    def require_known(self, token_ids: tuple[int, ...], field: str = "token_ids") -> None:
        """Check the ids that `field` of a request gives against the model.

        Raises:
            RequestError: An id is outside of the vocabulary; the message names it.
        """
        vocab_size = self._model.vocab_size
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < vocab_size:
                raise RequestError(
                    f"{field} holds token id {token_id}, outside the model's 0 to {vocab_size - 1}",
                    field,
                )

    def fit(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """The resolved params for a prompt of this length.

        Raises:
            PromptTooLongError: Prompt, or prompt and answer, pass the limit.
            RequestError: A parameter names a token that the model does not have, or leaves no
                token to choose.
        """
        self._require_choice(params)
        room = self._max_model_len - num_prompt_tokens
        least = 0 if params.is_score_only else 1
        if room < least:
            raise PromptTooLongError(
                f"the prompt has {num_prompt_tokens} tokens, wanted at most "
                f"{self._max_model_len - least}: the limit of {self._max_model_len} "
                f"(max_model_len) holds prompt and answer; send a shorter prompt",
                "prompt",
            )
        if params.is_score_only:
            return params.resolve(self._model.sampling_defaults)
        wanted = params.max_new_tokens or max(params.min_new_tokens, 1)
        if wanted > room:
            name = "max_new_tokens" if params.max_new_tokens else "min_new_tokens"
            raise PromptTooLongError(
                f"the prompt has {num_prompt_tokens} tokens and {name} is {wanted}, together "
                f"{num_prompt_tokens + wanted}; the limit is {self._max_model_len} "
                f"(max_model_len); lower {name} to {room} or send a shorter prompt",
                name,
            )
        return params.resolve(self._model.sampling_defaults)

    async def _token_ids(self, request: TextRequest) -> tuple[int, ...]:
        if request.token_ids is not None:
            return request.token_ids
        if request.messages is not None:
            # A template is a program of its own and may take its time.
            text = await asyncio.to_thread(
                self._tokenizer.render_chat, request.messages, request.template_arguments
            )
            self._require_fitting(text)
            return await self.encode_text(text, add_special_tokens=False)
        assert request.text is not None
        self._require_fitting(request.text)
        return await self.encode_text(request.text)

    def _require_fitting(self, text: str) -> None:
        """Refuse what is too long whatever its tokens are, before work is spent on it."""
        most_chars = self._max_model_len * self._tokenizer.max_token_chars
        if len(text) > most_chars:
            raise PromptTooLongError(
                f"the prompt has {len(text)} characters, wanted at most {most_chars}: the limit "
                f"of {self._max_model_len} tokens (max_model_len), of at most "
                f"{self._tokenizer.max_token_chars} characters each; send a shorter prompt",
                "prompt",
            )

    async def encode_text(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """As `Tokenizer.encode_text`, without holding up the event loop."""
        if len(text) <= MAX_INLINE_CHARS:
            return self._tokenizer.encode_text(text, add_special_tokens)
        return await asyncio.to_thread(self._tokenizer.encode_text, text, add_special_tokens)

    def _require_choice(self, params: SamplingParams) -> None:
        params.require_vocabulary(self._model.vocab_size)
        if not params.allowed_token_ids or params.min_new_tokens == 0:
            return
        ends = {*self._model.eos_token_ids, *params.stop_token_ids}
        if not set(params.allowed_token_ids) - set(params.banned_token_ids) - ends:
            raise RequestError(
                "allowed_token_ids holds nothing but end tokens and banned ids, and "
                "min_new_tokens bans end tokens at first; allow another id or set "
                "min_new_tokens to 0",
                "allowed_token_ids",
            )
