"""`om-serve` over a toy model, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.server_child import ServerChild
from tests.omruntime.toy_model import write_toy_bundle
from tests.server.tiny_tokenizers import letters_backend, write_tokenizer


def toy_child(
    folder: Path, options: Sequence[str], write_bundle: Callable[[Path], Path] = write_toy_bundle
) -> ServerChild:
    """A server that was not started yet; all its files are in `folder`."""
    bundle = write_bundle(folder / "bundle")
    write_tokenizer(bundle / "tokenizer", letters_backend())
    cache = ("--cache-dir", str(folder / "cache"))
    return ServerChild(bundle, folder, ("--num-threads", "1", *cache, *options))


@contextmanager
def toy_server(folder: Path, options: Sequence[str] = ()) -> Iterator[ServerChild]:
    """A server that is ready, and ends well with the `with`."""
    child = toy_child(folder, options)
    with child.running():
        yield child


def slow_steps(seconds: float, count: int) -> tuple[str, ...]:
    """Options that make the first `count` steps take so much longer."""
    faults = ",".join(f"slow={seconds}@{number}" for number in range(1, count + 1))
    return ("--allow-faults", "--inject-fault", faults)
