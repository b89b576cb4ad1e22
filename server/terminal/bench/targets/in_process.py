"""A bundle in this process: the engine and its text layer without any wire.

Needs the serving libraries, which the client alone does not have; so it is imported when asked
for.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from omruntime.errors import CallError
from omruntime.settings import EngineSettings
from server.generate import TextGenerator
from server.loading import in_daemon_thread, open_engine
from server.seams import EngineLike
from server.terminal.bench.targets.deltas import params_of, piece_of
from server.terminal.bench.targets.target import SIMULATED, AskOptions, Piece, TargetFacts
from server.terminal.bench.workload import History, joined
from server.text import OutputOptions, TextRequest


class InProcessTarget:
    """See `Target`; the engine runs in a thread of its own."""

    def __init__(
        self, engine: EngineLike, generator: TextGenerator, device: str, options: AskOptions
    ) -> None:
        self._engine = engine
        self._generator = generator
        self._device = device
        self._options = options

    @staticmethod
    async def open(bundle: Path, device: str, options: AskOptions) -> InProcessTarget:
        """Load a bundle and warm up.

        Raises:
            BundleError, ConfigError, DeviceError: It does not load.
        """
        settings = EngineSettings(device=device)
        engine = open_engine(bundle, settings)
        generator = TextGenerator.open(bundle, engine)
        await in_daemon_thread("load", lambda: engine.start(lambda _line: None))
        shown = device + (SIMULATED if settings.is_simulated else "")
        return InProcessTarget(engine, generator, shown, options)

    async def facts(self) -> TargetFacts:
        """See `Target`."""
        model, limits = self._engine.manifest.model, self._engine.limits
        shown = {
            "target": "this process",
            "device": self._device,
            "model": f"{model.name} ({model.architecture}, {model.dtype}), up to "
            f"{limits.max_model_len} tokens, {limits.max_num_seqs} answers at once",
        }
        return TargetFacts(shown, model.vocab_size, limits.max_model_len, model.eos_token_ids)

    async def ask(self, history: History, num_output_tokens: int) -> AsyncGenerator[Piece, None]:
        """See `Target`."""
        prompt = joined(history)
        is_text = isinstance(prompt, str)
        request = TextRequest(
            request_id=uuid.uuid4().hex,
            params=params_of(self._options, num_output_tokens),
            text=prompt if isinstance(prompt, str) else None,
            token_ids=None if isinstance(prompt, str) else prompt,
            output=OutputOptions(omit_text=not is_text),
        )
        try:
            async with (
                asyncio.timeout(self._options.timeout_s),
                aclosing(self._generator.stream(request)) as deltas,
            ):
                async for delta in deltas:
                    yield piece_of(delta, is_text)
        except TimeoutError:
            raise CallError("TIMEOUT", f"no whole answer in {self._options.timeout_s} s") from None

    async def count_tokens(self, text: str) -> int | None:
        """See `Target`."""
        return len(await self._generator.tokenize(text, add_special_tokens=False))

    async def close(self) -> None:
        """See `Target`."""
        await in_daemon_thread("stop", self._engine.stop)
