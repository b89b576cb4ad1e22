"""A process that serves fakes: `python -m tests.server.serve_fakes MODE BUNDLE [flags]`.

Modes: `ready` answers; `hold` answers one token, then waits for the file `BUNDLE.finish` or an
abort; `stuck` never ends loading and does not notice that it shall stop; `broken:CLASS` fails to
load; `fault` reports a device error with the first request.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from omruntime import errors
from omruntime.sequence import FinishReason
from server.app import Parts, run_server
from server.http.serve import start_http_server
from server.settings import Settings
from server.status import exit_code_of
from server.text import TextDelta, TextRequest
from server.traces import Traces
from tests.server.wire_fakes import FakeEngine, FakeGenerator, end


@dataclass
class FileGenerator(FakeGenerator):
    """Waits for a file after the first token."""

    path: Path = Path()

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        aborted = self.live[request.request_id] = asyncio.Event()
        try:
            yield TextDelta(0, "a", (1,))
            while not (self.path.exists() or aborted.is_set()):
                await asyncio.sleep(0.01)
            yield end(reason=FinishReason.ABORT if aborted.is_set() else FinishReason.STOP)
        finally:
            del self.live[request.request_id]


@dataclass
class FaultyGenerator(FakeGenerator):
    """Has the engine report a device error, from a thread as the engine does."""

    engine: FakeEngine | None = None

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        assert self.engine is not None
        threading.Thread(target=self.engine.on_device_error, args=("code 507899",)).start()
        yield end(reason=FinishReason.ERROR, error="code 507899")


class StuckEngine(FakeEngine):
    """A library call that takes for ever, in loading and in stopping."""

    def stop(self) -> None:
        threading.Event().wait()


def main(mode: str, argv: list[str]) -> int:
    settings = Settings.load(argv, {})
    engine = (StuckEngine if mode == "stuck" else FakeEngine)()
    generator: FakeGenerator = FakeGenerator()
    if mode == "hold":
        generator = FileGenerator(path=settings.bundle.with_suffix(".finish"))
    if mode == "fault":
        generator = FaultyGenerator(engine=engine)
    if mode.startswith("broken:"):
        engine.load_error = getattr(errors, mode.removeprefix("broken:"))("the reason")
    if mode != "stuck":
        engine.loaded.set()

    def open_generator(_bundle: object, _engine: object) -> FakeGenerator:
        engine.generator, engine.loop = generator, asyncio.get_running_loop()
        return generator

    try:
        start_http = None if settings.http_port is None else start_http_server
        open_traces = None if settings.otlp_endpoint is None else Traces.open
        parts = Parts(lambda _bundle, _settings: engine, open_generator, start_http, open_traces)
        return run_server(settings, parts)
    except errors.OmError as error:
        print(f"om-serve: {error}", file=sys.stderr)
        return exit_code_of(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
