"""What the front ends and the wiring need from the text layer and the engine.

Protocols only; `TextGenerator`, `AsyncEngine` and `WorkerEngine` fit them, and so do the tests'
fakes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from omruntime.engine_state import EngineState
from omruntime.errors import OmError
from omruntime.limits import EngineLimits
from omruntime.manifest import Manifest
from omruntime.outputs import EngineCounters, EngineLoad, TokenDelta
from omruntime.sequence import FinishReason, Request
from server.request_tally import Arrival, RequestTally
from server.text import ChatMessage, TextDelta, TextRequest


class TextGeneratorLike(Protocol):
    """Text in, text out."""

    def stream(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        """The deltas of all answers; closing the generator early aborts them.

        Raises:
            OmError: Before the first delta, when the request is refused.
        """

    async def tokenize(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        """The token ids of a text."""

    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of token ids."""

    async def render_chat(
        self, messages: Sequence[ChatMessage], template_arguments: Mapping[str, Any] | None
    ) -> str:
        """The prompt that the bundle's chat template makes of a conversation.

        Raises:
            PreconditionError: The bundle has no chat template.
            RequestError: The template refuses the conversation.
        """

    def abort(self, request_id: str, tenant: str | None = None) -> int:
        """End live requests of an id soon, of one tenant or of any; how many."""

    def abort_all(self, tenant: str | None = None) -> int:
        """End all live requests soon, of one tenant or of any; how many."""


class TokenEngine(Protocol):
    """The engine as the text layer sees it."""

    async def submit(self, request: Request) -> AsyncIterator[TokenDelta]:
        """Queue a request; its deltas, once accepted, of which the last has a finish reason.

        Raises:
            OmError: The request is refused, and nothing of it is left.
        """
        ...

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request soon, with `reason` on its stream; nothing when there is none."""


class EngineLike(TokenEngine, Protocol):
    """The engine as the wiring sees it.

    Attributes:
        on_device_error: Called with the error's text, in another thread.
        on_recovered: Called when requests are served again after such an error, in another
            thread; never by an engine that cannot start its device anew.
    """

    manifest: Manifest
    limits: EngineLimits
    on_device_error: Callable[[str], None]
    on_recovered: Callable[[], None]

    def start(self, progress: Callable[[str], None]) -> None:
        """Load and warm up; returns when the engine takes requests."""

    def load(self) -> EngineLoad:
        """What the engine held after its last step; from any thread."""

    def counters(self) -> EngineCounters:
        """What had happened until the last step; from any thread."""

    async def inspect(self) -> EngineState:
        """A look at the engine between two steps.

        Raises:
            OmError: There is no engine to ask, at the moment or any more.
        """
        ...

    async def flush_prefix_cache(self) -> int:
        """Forget all cached beginnings and say how many blocks; running requests go on.

        Raises:
            OmError: There is no engine to ask, at the moment or any more.
        """
        ...

    def log_from(self, level: int) -> None:
        """Have a device process, if there is one, log from a level on as well."""

    def drain(self) -> None:
        """Refuse new requests; live ones go on."""

    def stop(self) -> None:
        """Abort what is live, each with a last delta, and release the device."""


class RequestObserver(Protocol):
    """Whoever counts requests; called from the event loop, so it must be quick."""

    def arrived(self, arrival: Arrival) -> None:
        """Tokens of an answer reached its reader."""

    def finished(self, tally: RequestTally) -> None:
        """A request that was accepted is over."""

    def refused(self, error: OmError) -> None:
        """A request was not accepted."""


class TracesLike(RequestObserver, Protocol):
    """Whoever traces requests."""

    def close(self) -> None:
        """Send what waits; may block for some seconds."""


class FrontEnd(Protocol):
    """A listening port beside gRPC.

    Attributes:
        port: The port that is listened on.
    """

    port: int

    async def stop(self, grace_s: float) -> None:
        """Close the port; open connections get `grace_s` seconds to finish."""
