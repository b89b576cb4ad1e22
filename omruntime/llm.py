"""LLM: token ids in, token ids out, in this process and this thread.

For text and chat see `server.LLM`, which adds the tokenizer.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tqdm import tqdm

from omruntime.device import Device
from omruntime.engine import Engine
from omruntime.errors import ConfigError, NotBuiltInError, RequestError
from omruntime.outputs import EngineLoad, TokenDelta
from omruntime.owner_process import OwnerProcess
from omruntime.profiler import StepProfiler
from omruntime.sampling.seeds import params_of_choice, with_seed
from omruntime.sampling_params import SamplingParams, params_for_each
from omruntime.sequence import FinishReason, Request
from omruntime.settings import EngineSettings
from omruntime.step import ScoredToken, TokenLogprobs
from omruntime.token_stream import merge


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One answer.

    Attributes:
        prompt_index: Which prompt of the call.
        index: Which of the `n` answers to it.
        error: Why, when `finish_reason` is ERROR.
        prompt_logprobs: One for each token of the prompt when its params asked; None for the
            first, which nothing stands before. Of several answers on the first alone.
    """

    prompt_index: int
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    error: str = ""
    prompt_logprobs: tuple[ScoredToken | None, ...] = ()


class LLM:
    """A bundle on a device, driven by the caller's thread; a context manager."""

    def __init__(
        self,
        bundle: str | Path,
        settings: EngineSettings | None = None,
        device: Device | None = None,
    ) -> None:
        """Load the bundle.

        Args:
            device: An open device; None opens the one that the settings name. It is closed
                with the LLM.

        Raises:
            BundleError, ConfigError, DeviceError: As `Engine`.
        """
        self._closed = False
        self._owner = OwnerProcess("this LLM")
        self._generating = threading.Lock()
        settings = settings or EngineSettings()
        if settings.isolate_device:
            raise ConfigError(
                "isolate_device is set, but this LLM runs the device in the caller's thread; use "
                "server.LLM or om-serve, or leave it unset"
            )
        if device is None:
            self._engine = Engine.open(Path(bundle), settings)
        else:
            self._engine = Engine(device, Path(bundle), settings)

    @property
    def profiler(self) -> StepProfiler:
        """Where the calling thread's time goes inside of steps."""
        return self._engine.profiler

    def generate(
        self,
        prompts: Iterable[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[TokenOutput]:
        """Answer all prompts, batched continuously.

        Args:
            prompts: Token ids of each prompt.
            params: For all prompts, or one for each; None means the bundle's defaults.
            progress: Whether to draw a progress bar on standard error.

        Returns:
            Ordered by prompt, then by answer.

        Raises:
            RequestError: A prompt or its params are wrong, or another thread's call runs;
                nothing was generated.
        """
        if self._closed:
            raise RequestError("the LLM is closed; open another one")
        self._owner.require()
        self._begin_call()
        try:
            return self._generate(prompts, params, progress)
        finally:
            self._generating.release()

    def _generate(
        self,
        prompts: Iterable[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
    ) -> list[TokenOutput]:
        listed = _prompts(prompts)
        requests = list(self._requests(listed, params_for_each(params, len(listed))))
        for request in requests:
            self._engine.require_fits(request)
            grammar = self._engine.prepare(request)
            if grammar is not None:
                grammar.result()
        try:
            answers = self._run(requests, progress)
        finally:
            self._engine.abort_all()
        return [_output(request, answers[request.request_id]) for request in requests]

    def load(self) -> EngineLoad:
        """What the engine holds."""
        return self._engine.load()

    def close(self) -> None:
        """Give everything back to the device; a second call does nothing.

        Nor does one in a forked child.

        Raises:
            RequestError: Another thread's call runs.
        """
        if not self._owner.is_here or self._closed:
            self._closed = True
            return
        self._begin_call()
        self._closed = True
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _begin_call(self) -> None:
        """Keep other threads out; two calls in one engine would break each other's steps."""
        if not self._generating.acquire(blocking=False):
            raise RequestError(
                "this LLM answers another call, and serves one at a time; use server.LLM, or one "
                "LLM for each thread"
            )

    def _requests(
        self, prompts: list[tuple[int, ...]], each: list[SamplingParams]
    ) -> Iterator[Request]:
        """One request for each answer; its id is `prompt index/answer index`."""
        model = self._engine.manifest.model
        for i, (prompt, wishes) in enumerate(zip(prompts, each, strict=True)):
            if wishes.stop:
                raise NotBuiltInError("stop strings need text; use server.LLM, or stop_token_ids")
            wishes.require_vocabulary(model.vocab_size)
            resolved = with_seed(wishes.resolve(model.sampling_defaults))
            for index in range(resolved.n):
                choice = params_of_choice(resolved, index)
                leader_id = f"{i}/0" if index else None
                yield Request(f"{i}/{index}", prompt, choice, leader_id=leader_id)

    def _run(self, requests: list[Request], progress: bool) -> dict[str, TokenDelta]:
        """Step until every request has ended; returns each one's deltas merged."""
        queued = deque(requests)
        answers: dict[str, TokenDelta] = {}
        with tqdm(total=len(requests), unit="answer", disable=not progress) as bar:
            while queued or self._engine.has_work:
                # One batch ahead keeps every row busy and stays below the queue limits.
                while queued and self._engine.num_waiting < self._engine.limits.max_num_seqs:
                    self._engine.add(queued.popleft())
                for request_id, delta in self._engine.step():
                    before = answers.get(request_id)
                    answers[request_id] = delta if before is None else merge(before, delta)
                    bar.update(delta.finish_reason is not None)
        return answers


def _prompts(prompts: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    if not isinstance(prompts, Iterable):
        raise RequestError(f"prompts is {prompts!r}, wanted a list with token ids for each prompt")
    return [_token_ids(prompt) for prompt in prompts]


def _token_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    """The ids as plain integers; NumPy's are taken, floats and text refused."""
    try:
        return tuple(operator.index(token_id) for token_id in prompt)
    except TypeError as error:
        raise RequestError(f"a prompt is not a sequence of token ids: {error}") from error


def _output(request: Request, answer: TokenDelta) -> TokenOutput:
    prompt_index, _, index = request.request_id.partition("/")
    assert answer.finish_reason is not None
    is_scored = request.params.prompt_logprobs is not None
    return TokenOutput(
        int(prompt_index),
        int(index),
        answer.token_ids,
        answer.logprobs,
        answer.finish_reason,
        answer.error,
        (None, *answer.prompt_logprobs) if is_scored else (),
    )
