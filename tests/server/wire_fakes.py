"""A scripted text generator and engine, and a server over them on a real socket.

Passed in where `server/seams.py` has a protocol; nothing of the product is patched.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from omruntime.blocks.prefix_cache import PrefixCacheCounters
from omruntime.buckets import Bucket, Phase
from omruntime.costs.bucket_use import BucketReport
from omruntime.engine_state import EngineState, SequenceState
from omruntime.errors import DuplicateRequestError
from omruntime.limits import EngineLimits
from omruntime.manifest import (
    KVLayout,
    KVSpec,
    Manifest,
    ModelFacts,
    ParitySummary,
    SamplingDefaults,
)
from omruntime.outputs import EngineCounters, EngineLoad, RequestTimings
from omruntime.sequence import FinishReason
from server.grpc_server import start_grpc_server
from server.http.serve import HttpServer, start_http_server
from server.lifecycle import Lifecycle
from server.security.access import OPEN_ACCESS, Access, open_access
from server.settings import Settings
from server.text import ChatMessage, TextDelta, TextRequest, Usage

T = TypeVar("T")

MANIFEST = Manifest(
    format_version=1,
    graph_contract=1,
    profile="cpu",
    soc="cpu",
    kv_identity="k" * 64,
    model=ModelFacts(
        name="org/toy",
        architecture="ToyForCausalLM",
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=131,
        max_model_len=256,
        max_num_seqs=8,
        dtype="float32",
        bos_token_id=None,
        eos_token_ids=(0, 2),
        eos_source="generation_config.json",
        sampling_defaults=SamplingDefaults(temperature=0.6, top_k=20),
    ),
    kv=KVSpec(KVLayout.HEAD_MAJOR, 16, "float32", 4096),
    programs=(),
    files=(),
    parity=ParitySummary(0.0, 0.001, 64, 0, 1),
    provenance={},
)

LIMITS = EngineLimits(
    num_blocks=17,
    max_model_len=128,
    max_num_seqs=4,
    max_chunk_tokens=32,
    max_queued_requests=8,
    max_queued_tokens=1024,
)


def sequence_state(request_id: str, tenant: str = "", **others: Any) -> SequenceState:
    """A running answer of which half is generated."""
    fields: dict[str, Any] = {
        "status": "running",
        "urgency": 1,
        "num_prompt_tokens": 20,
        "num_output_tokens": 5,
        "max_new_tokens": 10,
        "num_computed_tokens": 24,
        "num_cached_tokens": 16,
        "num_preemptions": 0,
        "num_blocks": 2,
        "block_ids": (1, 2),
        "age_s": 0.5,
        "is_constrained": False,
        **others,
    }
    return SequenceState(request_id=request_id, tenant=tenant, **fields)


ENGINE_STATE = EngineState(
    num_sequences=2,
    sequences=(sequence_state("r1", "red"), sequence_state("r2", "blue")),
    buckets=(
        BucketReport(Bucket(Phase.DECODE, 4, 1, 2), 0.02, True, 10, 30, 30, 0.1),
        BucketReport(Bucket(Phase.PREFILL, 1, 16, 0), 0.1, False, 3, 3, 40, 0.4),
    ),
    block_states=bytes([3, 3, 4, 1, 2, *[0] * 11]),
    warm_up_s=1.5,
    switch_s=0.0,
)

USAGE = Usage(num_prompt_tokens=3, num_output_tokens=2, num_cached_tokens=0)
TIMINGS = RequestTimings(queue_s=0.25, prefill_s=0.5, decode_s=1.0)


def end(index: int = 0, reason: FinishReason = FinishReason.STOP, **others: Any) -> TextDelta:
    """A terminal delta."""
    fields: dict[str, Any] = {"usage": USAGE, "timings": TIMINGS, **others}
    return TextDelta(index, "", (), finish_reason=reason, **fields)


@dataclass
class FakeGenerator:
    """Plays `script` for every request.

    Attributes:
        script: Deltas, errors to raise, or HOLD: wait until the request is aborted.
        live: By request id, behind the owner's name and a slash if it has one.
        ids_per_char, chars_per_id: How often `tokenize` and `detokenize` repeat their result.
    """

    HOLD = "hold"

    script: list[TextDelta | Exception | str] = field(
        default_factory=lambda: [TextDelta(0, "Hi", (7,)), TextDelta(0, "!", (8,)), end()]
    )
    requests: list[TextRequest] = field(default_factory=list)
    num_closed: int = 0
    live: dict[str, asyncio.Event] = field(default_factory=dict)
    by_key: dict[str, TextRequest] = field(default_factory=dict)
    error: Exception | None = None
    ids_per_char: int = 1
    chars_per_id: int = 1

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        key = _key_of(request.owner, request.request_id)
        if key in self.live:
            raise DuplicateRequestError(f"request id {request.request_id!r} is live")
        self.requests.append(request)
        aborted = self.live[key] = asyncio.Event()
        self.by_key[key] = request
        try:
            for item in self.script:
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, str):
                    await aborted.wait()
                    for index in range(request.params.n):
                        yield end(index, FinishReason.ABORT)
                    return
                yield item
        finally:
            del self.live[key]
            self.num_closed += 1

    async def tokenize(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        self._raise_error()
        return ((1,) if add_special_tokens else ()) + tuple(
            ord(c) for c in text
        ) * self.ids_per_char

    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        self._raise_error()
        text = "".join(chr(i) for i in token_ids if i > 2 or not skip_special_tokens)
        return text * self.chars_per_id

    async def render_chat(
        self, messages: Sequence[ChatMessage], template_arguments: Mapping[str, Any] | None
    ) -> str:
        self._raise_error()
        return "".join(f"<{m.role}>{m.content}" for m in messages) + str(template_arguments or "")

    def abort(self, request_id: str, tenant: str | None = None) -> int:
        keys = [key for key in self._of(tenant) if self.by_key[key].request_id == request_id]
        return self._abort(keys)

    def abort_all(self, tenant: str | None = None) -> int:
        return self._abort(self._of(tenant))

    def _of(self, tenant: str | None) -> list[str]:
        return [k for k in self.live if tenant in (None, self.by_key[k].scheduling.tenant)]

    def _abort(self, keys: Sequence[str]) -> int:
        for key in keys:
            self.live[key].set()
        return len(keys)

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error


def _key_of(owner: str, request_id: str) -> str:
    return f"{owner}/{request_id}" if owner else request_id


@dataclass
class FakeEngine:
    """Holds the manifest; loading takes until `loaded` is set; stopping aborts the generator's."""

    manifest: Manifest = MANIFEST
    limits: EngineLimits = LIMITS
    on_device_error: Callable[[str], None] = lambda _text: None
    on_recovered: Callable[[], None] = lambda: None
    loaded: threading.Event = field(default_factory=threading.Event)
    load_error: Exception | None = None
    is_draining: bool = False
    is_stopped: bool = False
    generator: FakeGenerator | None = None
    loop: asyncio.AbstractEventLoop | None = None
    state: EngineState = ENGINE_STATE
    log_level: int | None = None

    def start(self, progress: Callable[[str], None]) -> None:
        progress("warming up bucket 1 of 2")
        self.loaded.wait()
        if self.load_error is not None:
            raise self.load_error

    def load(self) -> EngineLoad:
        return EngineLoad(1, 2, 30, 4, 5, 16, 7, 80, {"stop": 9, "abort": 1})

    def counters(self) -> EngineCounters:
        return EngineCounters(9, 0, PrefixCacheCounters(), 60, 80, 40, 20, 3)

    async def inspect(self) -> EngineState:
        return self.state

    async def flush_prefix_cache(self) -> int:
        return 5

    def log_from(self, level: int) -> None:
        self.log_level = level

    def drain(self) -> None:
        self.is_draining = True

    def stop(self) -> None:
        self.is_stopped = True
        if self.generator is not None and self.loop is not None:
            for aborted in tuple(self.generator.live.values()):
                self.loop.call_soon_threadsafe(aborted.set)


def settings_of(**values: Any) -> Settings:
    """Settings for a free port."""
    return Settings(**{"bundle": Path("bundle"), "grpc_port": 0, **values})


class FakeServer:
    """The real gRPC server over the fakes, in an event loop of its own thread.

    With `http_port` in the settings the HTTP gateway as well.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        loaded: bool = True,
        access: Access | None = None,
    ) -> None:
        self._access = access
        self.generator = FakeGenerator()
        self.engine = FakeEngine(generator=self.generator)
        self.lifecycle: Lifecycle
        self.port = 0
        self.http_port = 0
        self._http: HttpServer | None = None
        self._settings = settings or settings_of()
        self._loaded = loaded
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        scheme = "https" if self._settings.tls_cert is not None else "http"
        return f"{scheme}://localhost:{self.http_port}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def call(self, work: Callable[[], T]) -> T:
        """Run a function in the server's event loop."""

        async def run() -> T:
            return work()

        return self.run(run())

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when something has become true in the server."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)

    def await_that(self, condition: Callable[[], bool]) -> None:
        self.run(self.wait_until(condition))

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._open())
        return self

    async def _open(self) -> None:
        self.lifecycle = Lifecycle()
        access = self._access or open_access(self._settings, self.lifecycle)
        await self.open_port(access)
        if self._settings.http_port is not None:
            self._http = await start_http_server(
                self._settings, self.lifecycle, self.engine, access
            )
            self.http_port = self._http.port
        if self._loaded:
            self.lifecycle.begin_serving(self.generator)

    async def open_port(self, access: Access = OPEN_ACCESS) -> None:
        """Serve gRPC, on the port that was open before if there was one."""
        settings = replace(self._settings, grpc_port=self.port or self._settings.grpc_port)
        self._server, self.port = await start_grpc_server(
            settings, self.lifecycle, self.engine, access
        )

    async def close_port(self) -> None:
        """End all gRPC connections and take no new ones."""
        await self._server.stop(grace=0)

    def __exit__(self, *_: object) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        if self._http is not None:
            await self._http.stop(1.0)
        await self.close_port()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
