"""TerminalClient: calls that Ctrl-C ends at any moment.

The main thread, which alone receives signals, only waits; a worker thread is inside of gRPC. An
interrupt inside of gRPC's own Python code can come between taking its lock and the `with` that
gives it back, and then every later use of the channel waits forever.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from omruntime.sampling_params import SamplingParams
from server.client import Client
from server.client.arguments import CallOptions, Continuations, Prompt
from server.client.messages import Generation, Scores, require_target
from server.client.retries import Retries
from server.client.security import ClientSecurity
from server.text import TextDelta

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    """The worker has nothing more; `error` is what ended it, if not the call's end."""

    error: BaseException | None


class TerminalClient:
    """The calls of `om-client`, each over a connection of its own."""

    def __init__(self, target: str, security: ClientSecurity, retries: Retries) -> None:
        """Check the target; nothing is sent yet.

        Raises:
            RequestError: It has another form than `Client` takes.
        """
        self._target = require_target(target)
        self._security = security
        self._retries = retries

    def generate(self, prompt: Prompt, params: SamplingParams, options: CallOptions) -> Generation:
        """As `Client.generate`."""
        (generation,) = self.in_worker(lambda c: [c.generate(prompt, params, options)])
        return generation

    def stream(
        self, prompt: Prompt, params: SamplingParams, options: CallOptions
    ) -> Iterator[TextDelta]:
        """As `Client.stream`."""
        return self.in_worker(lambda c: c.stream(prompt, params, options))

    def score(
        self, prompt: Prompt, continuations: Continuations, top: int, options: CallOptions
    ) -> Scores:
        """As `Client.score`."""
        (scores,) = self.in_worker(lambda c: [c.score(prompt, continuations, top, options)])
        return scores

    def in_worker(self, call: Callable[[Client], Iterable[T]]) -> Generator[T, None, None]:
        """What a call gives, made in another thread; leaving early cancels it."""
        items: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
        client = Client(self._target, self._security, self._retries)
        threading.Thread(target=_pump, args=(call, client, items), daemon=True).start()
        try:
            while not isinstance(item := items.get(), _End):
                yield item
            if item.error is not None:
                raise item.error
        finally:
            client.close()


def _pump(
    call: Callable[[Client], Iterable[T]], client: Client, items: queue.SimpleQueue[T | _End]
) -> None:
    """Hand on all that a call gives, and how it ended."""
    try:
        for item in call(client):
            items.put(item)
    except BaseException as error:  # raised again in the main thread
        items.put(_End(error))
    else:
        items.put(_End(None))
