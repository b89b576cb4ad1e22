"""TextGenerator: text requests in, text deltas out, over the engine's token streams.

Owns the life of a request between front end and engine: its id, its `n` answers, and their end
whichever way it comes. Front ends call it; it knows none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omruntime.errors import DuplicateRequestError, RequestError
from omruntime.manifest import ModelFacts
from omruntime.outputs import TokenDelta
from omruntime.sampling.seeds import params_of_choice, with_seed
from omruntime.sequence import FinishReason, Request
from server.answer_text import AnswerText
from server.answers import join_deltas
from server.prompt import MAX_INLINE_CHARS, PromptEncoder
from server.prompt_part import PromptPart
from server.seams import EngineLike, TokenEngine
from server.text import ChatMessage, TextDelta, TextRequest
from server.tokenizer import TOKENIZER_FOLDER, Tokenizer

MAX_REQUEST_ID_CHARS = 256


@dataclass(slots=True)
class _Answer:
    """One of the answers: its id in the engine, its tokens, its text and its prompt's so far."""

    engine_id: str
    tokens: AsyncIterator[TokenDelta]
    text: AnswerText
    prompt: PromptPart


@dataclass(slots=True)
class _LiveRequest:
    """A request that has not ended; `answers` grows while they are submitted."""

    tenant: str
    answers: list[_Answer] = field(default_factory=list)
    aborted: bool = False


class TextGenerator:
    """Serves text requests over one engine; used from one event loop."""

    def __init__(
        self, engine: TokenEngine, tokenizer: Tokenizer, model: ModelFacts, max_model_len: int
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompts = PromptEncoder(tokenizer, model, max_model_len)
        self._eos_token_ids = model.eos_token_ids
        # By owner and id.
        self._live: dict[tuple[str, str], _LiveRequest] = {}

    @staticmethod
    def open(bundle: Path, engine: EngineLike) -> TextGenerator:
        """Read the bundle's tokenizer; the engine may still be loading.

        Raises:
            BundleError: A file of the tokenizer is missing or damaged.
        """
        tokenizer = Tokenizer.load(bundle / TOKENIZER_FOLDER)
        return TextGenerator(engine, tokenizer, engine.manifest.model, engine.limits.max_model_len)

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        """The deltas of all answers, each ending with exactly one terminal delta.

        Closing the generator, or cancelling the task that waits for it, aborts the request.

        Raises:
            RequestError: Before the first delta: the request is wrong, or its id is live.
            OverloadedError, ShuttingDownError: Before the first delta.
        """
        key = request.owner, request.request_id
        self._require_new_id(*key)
        live = self._live[key] = _LiveRequest(request.scheduling.tenant)
        try:
            await self._submit(request, live)
            if live.aborted:
                self._cancel(live)
            async with aclosing(_merged(live.answers)) as deltas:
                async for answer, delta in deltas:
                    was_stopped = answer.text.stopped
                    text_delta = answer.text.accept(delta)
                    if answer.text.stopped and not (was_stopped or answer.text.finished):
                        self._engine.cancel(answer.engine_id, FinishReason.STOP)
                    if text_delta is not None:
                        yield answer.prompt.put_into(text_delta, delta)
        finally:
            self._cancel(live)
            del self._live[key]

    async def complete(self, request: TextRequest) -> tuple[TextDelta, ...]:
        """All answers, each as one delta that holds everything; raises as `stream`."""
        async with aclosing(self.stream(request)) as deltas:
            return join_deltas([delta async for delta in deltas])

    def abort(self, request_id: str, tenant: str | None = None) -> int:
        """End live requests of an id soon, each answer with ABORT; how many.

        Args:
            request_id: Their id, of which each owner may have one.
            tenant: Whose request alone counts; None: everybody's.
        """
        found = [live for (_, live_id), live in self._live.items() if live_id == request_id]
        return self._abort([live for live in found if tenant in (None, live.tenant)])

    def abort_all(self, tenant: str | None = None) -> int:
        """End all live requests soon, of one tenant or of any; how many.

        Those that were ended before, and are not over yet, do not count again.
        """
        found = [live for live in self._live.values() if not live.aborted]
        return self._abort([live for live in found if tenant in (None, live.tenant)])

    def _abort(self, requests: Sequence[_LiveRequest]) -> int:
        for live in requests:
            live.aborted = True
            self._cancel(live)
        return len(requests)

    async def encoded(self, request: TextRequest) -> TextRequest:
        """The same request as token ids, all checks done.

        Raises:
            RequestError: As `stream`.
        """
        token_ids = await self._prompts.encode(request)
        self._prompts.fit(request.params, len(token_ids))
        return replace(
            request, text=None, messages=None, template_arguments=None, token_ids=token_ids
        )

    async def tokenize(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """The ids of a text."""
        return await self._prompts.encode_text(text, add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids.

        Raises:
            RequestError: An id is outside of the model's vocabulary.
        """
        self._prompts.require_known(tuple(token_ids))
        if len(token_ids) <= MAX_INLINE_CHARS:
            return self._tokenizer.decode(token_ids, skip_special_tokens)
        return await asyncio.to_thread(self._tokenizer.decode, token_ids, skip_special_tokens)

    async def render_chat(
        self, messages: Sequence[ChatMessage], template_arguments: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt that the bundle's chat template makes of a conversation.

        Raises:
            PreconditionError, RequestError: As `Tokenizer.render_chat`.
        """
        return await asyncio.to_thread(self._tokenizer.render_chat, messages, template_arguments)

    def _require_new_id(self, owner: str, request_id: str) -> None:
        if not 0 < len(request_id) <= MAX_REQUEST_ID_CHARS or not request_id.isprintable():
            shown = request_id if len(request_id) <= MAX_REQUEST_ID_CHARS else request_id[:32]
            raise RequestError(
                f"request_id has {len(request_id)} characters ({shown!r}), wanted 1 to "
                f"{MAX_REQUEST_ID_CHARS}, none of them a control character"
            )
        if (owner, request_id) in self._live:
            raise DuplicateRequestError(
                f"request_id {request_id!r} is that of a live request; choose another one or "
                f"wait for its end"
            )

    async def _submit(self, request: TextRequest, live: _LiveRequest) -> None:
        """Submit all answers at once, so that `n` of them wait for one step and not for n."""
        _require_text_where_needed(request)
        prompt = await self._prompts.encode(request)
        params = with_seed(self._prompts.fit(request.params, len(prompt)))
        echoed = await self._echoed(request, prompt)
        engine_ids = [_engine_id(request, i, params.n) for i in range(params.n)]

        first = Request(
            request_id=engine_ids[0],
            prompt_token_ids=prompt,
            params=params_of_choice(params, 0),
            cache_salt=request.cache_salt,
            scheduling=request.scheduling,
            bypasses_prefix_cache=request.bypasses_prefix_cache,
            score_from=request.score_from,
        )

        async def submit(index: int) -> None:
            choice = params_of_choice(params, index)
            own = replace(first, request_id=engine_ids[index], params=choice)
            tokens = await self._engine.submit(
                replace(own, leader_id=first.request_id) if index else own
            )
            has_text = not request.output.omit_text
            text = AnswerText(
                index,
                len(prompt),
                choice,
                self._tokenizer,
                has_text,
                self._eos_token_ids,
                None if request.new_watch is None else request.new_watch(),
            )
            is_scored = choice.prompt_logprobs is not None
            part = PromptPart(prompt, is_scored, request.score_from, echoed)
            # At once, so that whatever ends the request finds the answers accepted so far.
            live.answers.append(_Answer(engine_ids[index], tokens, text, part))

        results = await asyncio.gather(*map(submit, range(params.n)), return_exceptions=True)
        for refusal in filter(None, results):
            raise refusal

    async def _echoed(self, request: TextRequest, prompt: tuple[int, ...]) -> str:
        """The text to stand before each answer."""
        if not request.output.echo:
            return ""
        if request.text is not None:
            return request.text
        return await self.detokenize(prompt, skip_special_tokens=False)

    def _cancel(self, live: _LiveRequest) -> None:
        for answer in live.answers:
            if not answer.text.finished:
                self._engine.cancel(answer.engine_id)


def _engine_id(request: TextRequest, index: int, num_answers: int) -> str:
    # Names of tenants hold no slash, so nobody's id can be that of another tenant's request.
    own_id = f"{request.owner}/{request.request_id}" if request.owner else request.request_id
    return own_id if num_answers == 1 else f"{own_id}#{index}"


def _require_text_where_needed(request: TextRequest) -> None:
    """Refuse to leave the text out where something else asks for it."""
    if not request.output.omit_text:
        return
    for name, is_set in (("echo", request.output.echo), ("stop", bool(request.params.stop))):
        if is_set:
            raise RequestError(f"omit_text is set beside {name}, which needs the text; leave one")


async def _merged(
    answers: Sequence[_Answer],
) -> AsyncGenerator[tuple[_Answer, TokenDelta], None]:
    """The token deltas of all answers as they come, until each has had its last."""
    if len(answers) == 1:
        async for delta in answers[0].tokens:
            yield answers[0], delta
        return
    waiting = {asyncio.ensure_future(_next(a)): a for a in answers}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in waiting if task in done]:
                answer, delta = waiting.pop(task), task.result()
                if delta.finish_reason is None:
                    waiting[asyncio.ensure_future(_next(answer))] = answer
                yield answer, delta
    finally:
        for task in waiting:
            task.cancel()


async def _next(answer: _Answer) -> TokenDelta:
    return await anext(answer.tokens)
