"""An HTTP gateway on a real port, over a text layer with a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omruntime.manifest import SamplingDefaults
from server.generate import TextGenerator
from server.http.serve import start_http_server
from server.lifecycle import Lifecycle
from server.loop_thread import LoopThread
from server.settings import Settings
from server.tokenizer import Tokenizer
from tests.server.scripted_engine import Script, ScriptedEngine, model_facts
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
) -> Iterator[Serving]:
    """Serve for the length of the block."""
    engine = ScriptedEngine(script)
    generator = TextGenerator(engine, tokenizer, MODEL, max_model_len)
    settings = Settings(
        Path("bundle"), http_port=0, max_message_mib=1, served_model_name=MODEL_NAME
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
