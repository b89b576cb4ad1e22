"""LLM: a bundle in this process, text in and text out, for scripts and notebooks.

The same engine and text layer as the server's, without a socket. For token ids alone see
`omruntime.llm`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from omruntime.errors import RequestError
from omruntime.field_types import require_token_ids
from omruntime.owner_process import OwnerProcess
from omruntime.sampling_params import SamplingParams, params_for_each
from omruntime.settings import EngineSettings
from server.answers import join_deltas
from server.generate import TextGenerator
from server.loading import open_engine
from server.loop_thread import LoopThread
from server.score import Continuation, ScoreRequest, score
from server.text import (
    ChatMessage,
    ContinuationScore,
    TextDelta,
    TextRequest,
    chat_message_of,
)

Prompt = str | Sequence[int]
Conversation = Sequence[ChatMessage | Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What came of one prompt.

    Attributes:
        prompt_token_ids: The prompt as the model saw it.
        answers: By index, `n` of them, each a delta that holds the whole answer.
    """

    prompt_token_ids: tuple[int, ...]
    answers: tuple[TextDelta, ...]

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.answers[0].text


class LLM:
    """A bundle on a device; a context manager, for one caller at a time.

    An engine thread and an event loop's thread run until `close`, so it also works where an
    event loop runs already, as in a notebook.
    """

    def __init__(
        self,
        bundle: str | Path,
        settings: EngineSettings | None = None,
        on_progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Load the bundle and warm up.

        Args:
            bundle: Folder that `export-om build` wrote.
            settings: How to run it; the defaults run it on the CPU.
            on_progress: Called with one line for each stage of loading, in another thread.

        Raises:
            BundleError, ConfigError, DeviceError: The bundle does not fit or does not load.
        """
        self._owner = OwnerProcess("this LLM")
        self._engine = open_engine(Path(bundle), settings or EngineSettings())
        self._generator = TextGenerator.open(Path(bundle), self._engine)
        self._engine.start(on_progress)
        self._loop = LoopThread()
        self._num_requests = 0
        self._closed = False

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Continue prompts, all batched together.

        Args:
            prompts: One text, or a list of texts and lists of token ids.
            params: For all prompts, or one for each; None means the bundle's defaults.
            progress: Whether to draw a progress bar on standard error.

        Returns:
            In the order of the prompts. An answer that the device failed has finish_reason
            ERROR; the others are complete.

        Raises:
            RequestError: A prompt or its params are wrong; nothing was generated.
        """
        if not isinstance(prompts, Iterable):
            raise RequestError(f"prompts is {prompts!r}, wanted a text or a list of prompts")
        listed = [prompts] if isinstance(prompts, str) else list(prompts)
        each = params_for_each(params, len(listed))
        requests = [self._request(prompt, p) for prompt, p in zip(listed, each, strict=True)]
        return self._run(requests, progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        template_arguments: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer conversations through the bundle's chat template, all batched together.

        Args:
            messages: One conversation or a list of them; a message is a `ChatMessage` or a
                mapping with `role` and `content`.
            params: As in `generate`.
            template_arguments: Variables for the template, such as enable_thinking.
            progress: As in `generate`.

        Raises:
            PreconditionError: The bundle has no chat template.
            RequestError: As `generate`, or the template refuses a conversation.
        """
        conversations = _conversations(messages)
        each = params_for_each(params, len(conversations))
        requests = [
            TextRequest(self._request_id(), p, messages=chat, template_arguments=template_arguments)
            for chat, p in zip(conversations, each, strict=True)
        ]
        return self._run(requests, progress)

    def score(
        self, prompt: Prompt, continuations: Sequence[Prompt], *, top_logprobs: int = 0
    ) -> list[ContinuationScore]:
        """Say how likely continuations of a prompt are, all batched together.

        Args:
            prompt: Text or token ids.
            continuations: Texts or lists of token ids, each scored by itself; text behind text
                is tokenised with it. At most 128.
            top_logprobs: List the best so many tokens at each position, 0 to 20.

        Raises:
            RequestError: A value is wrong; nothing was computed.
            DeviceError: The device failed.
        """
        if isinstance(continuations, str):
            raise RequestError("got one text, wanted a list of continuations: put it into a list")
        listed = tuple(_continuation(each) for each in continuations)
        request = ScoreRequest(self._request(prompt, SamplingParams()), listed, top_logprobs)
        self._require_open()
        scores = score(self._generator, self._generator.stream, request)
        return list(self._loop.run(scores))

    def close(self) -> None:
        """Give everything back to the device and end the threads; a second call does nothing.

        Nor does one in a forked child.
        """
        self._closed = True
        if not self._owner.is_here:
            return
        self._engine.stop()
        self._loop.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _request(self, prompt: Prompt | int, params: SamplingParams) -> TextRequest:
        if isinstance(prompt, int):
            raise RequestError(
                "got a list of token ids, wanted a list of prompts: put the ids into a list"
            )
        if isinstance(prompt, str):
            return TextRequest(self._request_id(), params, text=prompt)
        require_token_ids("a prompt", prompt)
        return TextRequest(self._request_id(), params, token_ids=tuple(prompt))

    def _require_open(self) -> None:
        if self._closed:
            raise RequestError("the LLM is closed; open another one")
        self._owner.require()

    def _run(self, requests: list[TextRequest], progress: bool) -> list[RequestOutput]:
        self._require_open()
        return self._loop.run(self._answer_all(requests, progress))

    def _request_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests)

    async def _answer_all(self, requests: list[TextRequest], progress: bool) -> list[RequestOutput]:
        # Encoded first, so that a wrong prompt at the end of the list costs no other's answer.
        encoded = [await self._generator.encoded(request) for request in requests]
        # Enough to keep every row busy, and too few to reach the queue limits.
        most_answers = max((request.params.n for request in requests), default=1)
        slots = asyncio.Semaphore(max(1, 2 * self._engine.limits.max_num_seqs // most_answers))
        with tqdm(total=len(requests), unit="prompt", disable=not progress) as bar:
            tasks = [asyncio.create_task(self._answer(r, slots, bar)) for r in encoded]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(
        self, request: TextRequest, slots: asyncio.Semaphore, bar: tqdm[Any]
    ) -> RequestOutput:
        assert request.token_ids is not None
        async with slots, aclosing(self._generator.stream(request)) as deltas:
            answers = join_deltas([delta async for delta in deltas])
        bar.update()
        return RequestOutput(request.token_ids, answers)


def _continuation(continuation: Prompt) -> Continuation:
    if isinstance(continuation, str):
        return continuation
    require_token_ids("a continuation", continuation)
    return tuple(continuation)


def _conversations(
    messages: Conversation | Sequence[Conversation],
) -> list[tuple[ChatMessage, ...]]:
    """A list of conversations, whether one or several were given."""
    if isinstance(messages, str):
        raise RequestError(f"got the text {messages[:80]!r}, wanted a list of messages")
    if not isinstance(messages, Iterable):
        raise RequestError(f"messages is {messages!r}, wanted a list of messages")
    chats: Any = messages
    if any(isinstance(item, ChatMessage | Mapping) for item in chats):
        chats = [chats]
    return [tuple(chat_message_of(item) for item in chat) for chat in chats]
