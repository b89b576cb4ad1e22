"""An HTTP gateway on a real port, over a text layer with a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omruntime.manifest import SamplingDefaults
from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from omruntime.step import TokenLogprobs
from server.generate import TextGenerator
from server.http.serve import start_http_server
from server.lifecycle import Lifecycle
from server.loop_thread import LoopThread
from server.settings import Settings
from server.tokenizer import Tokenizer
from tests.server.scripted_engine import Script, ScriptedEngine, model_facts, one_by_one
from tests.server.tiny_tokenizers import CHAT_TEMPLATE, byte_level_backend, tokenizer_of
from tests.server.wire_fakes import FakeEngine

TOKENIZER = tokenizer_of(byte_level_backend(), CHAT_TEMPLATE)
MODEL = model_facts(TOKENIZER.vocab_size, SamplingDefaults(temperature=0.0))
MODEL_NAME = "org/tiny"


@dataclass
class Serving:
    """What a test may look at."""

    url: str
    engine: ScriptedEngine
    lifecycle: Lifecycle
    loop: LoopThread


@contextmanager
def serving(
    script: Script,
    max_model_len: int = 512,
    ready: bool = True,
    tokenizer: Tokenizer = TOKENIZER,
    **options: Any,
) -> Iterator[Serving]:
    """Serve for the length of the block; options are further settings."""
    engine = ScriptedEngine(script)
    model = replace(MODEL, vocab_size=tokenizer.vocab_size)
    generator = TextGenerator(engine, tokenizer, model, max_model_len)
    settings = Settings(
        Path("bundle"), http_port=0, max_message_mib=1, served_model_name=MODEL_NAME, **options
    )
    loop = LoopThread()
    lifecycle = Lifecycle()

    async def start():  # type: ignore[no-untyped-def]
        if ready:
            lifecycle.begin_serving(generator)
        return await start_http_server(settings, lifecycle, FakeEngine())

    server = loop.run(start())
    try:
        yield Serving(f"http://127.0.0.1:{server.port}", engine, lifecycle, loop)
    finally:
        loop.run(server.stop(5.0))
        loop.close()


def with_logprobs(deltas: Sequence[TokenDelta], k: int | None) -> list[TokenDelta]:
    """The same deltas; when logprobs are wanted each token has one, and k alternatives."""
    if k is None:
        return list(deltas)
    entry = TokenLogprobs(-0.5, tuple((100 + i, -1.5 - i) for i in range(k)))
    return [replace(d, logprobs=(entry,) * len(d.token_ids)) for d in deltas]


@contextmanager
def saying(text: str, template: str, **options: Any) -> Iterator[Serving]:
    """Serve a model that says the text, byte by byte, up to the limit."""

    def script(request: Request) -> list[TokenDelta]:
        token_ids = TOKENIZER.encode_text(text)
        limit = request.params.max_new_tokens
        deltas = one_by_one([*token_ids, 2], FinishReason.STOP)
        if limit is not None and limit < len(token_ids):
            deltas = one_by_one(token_ids[:limit], FinishReason.LENGTH)
        return with_logprobs(deltas, request.params.logprobs)

    options = {"tokenizer": tokenizer_of(byte_level_backend(), template), **options}
    with serving(script, max_model_len=4096, **options) as server:
        yield server
