"""`om-serve` over a real bundle, for the long runs that a toy model serves by default.

Contexts are short, so that thousands of requests that name no length stay affordable.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from tests.e2e.server_child import ServerChild

# The name that the toy bundles have, so that requests fit both.
MODEL = "toy"
# Room for the default system message of a chat template and a few words.
MAX_MODEL_LEN = 64


class ToyServer(Protocol):
    """A server over a toy model, ready inside of the `with`."""

    def __call__(
        self, folder: Path, options: Sequence[str] = ()
    ) -> AbstractContextManager[ServerChild]: ...


def add_bundle_options(parser: argparse.ArgumentParser) -> None:
    """The options that `chosen_server` reads."""
    parser.add_argument("--bundle", type=Path, help="serve it instead of a toy model")
    parser.add_argument("--device", default="cpu", help="what runs --bundle (default: cpu)")
    parser.add_argument(
        "--max-model-len",
        type=int,
        default=MAX_MODEL_LEN,
        help=f"most tokens of prompt and answer with --bundle (default: {MAX_MODEL_LEN})",
    )


@contextmanager
def chosen_server(
    arguments: argparse.Namespace, folder: Path, toy: ToyServer, options: Sequence[str] = ()
) -> Iterator[ServerChild]:
    """The server that the command line asked for; it is ready, and ends well with the `with`."""
    if arguments.bundle is None:
        with toy(folder, options) as child:
            yield child
        return
    own = ["--device", arguments.device, "--served-model-name", MODEL]
    if ":" not in arguments.device:  # a chip runs on none of the host's threads
        own += ["--num-threads", "1"]
    short = ("--max-model-len", str(arguments.max_model_len))
    cache = ("--cache-dir", str(folder / "cache"))
    child = ServerChild(arguments.bundle, folder, (*own, *short, *cache, *options))
    with child.running():
        yield child


def resident_mb(child: ServerChild) -> float:
    """What the server's process holds in memory, in 10^6 bytes."""
    return float(psutil.Process(child.pid).memory_info().rss) / 1e6


def memory_line(resident: Sequence[float]) -> str:
    """Memory over a run, from equally spaced looks at it."""
    middle = resident[len(resident) // 2]
    return (
        f"{resident[0]:.1f} MB resident at the start, {middle:.1f} MB in the middle, "
        f"{resident[-1]:.1f} MB at the end"
    )
