"""Real checkpoints and bundles, made once and kept in .cache/ as long as they are current."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from demo.bundle_cache import ensure_bundle
from demo.fetch_weights import GEMMA3, SMOLLM2, fetch_weights

# Before torch is loaded: the workers of a test run share the cores, and threads that spin while
# they wait would take them from each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Each worker keeps to one core, with all that it starts: two that share two cores lose more by
# waiting for each other's threads than either gains by having both. One more than there are cores
# takes whatever the others leave while they wait.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    cores = sorted(os.sched_getaffinity(0))
    number = int(worker.removeprefix("gw"))
    if number < len(cores):
        os.sched_setaffinity(0, {cores[number]})

# How long an example takes depends on who else uses the machine.
settings.register_profile("omserve", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("omserve")

# Files that take minutes begin first, and no two at once wait for the same bundle.
FIRST = ("test_served_text.py", "test_gemma_window.py", "test_simulated_card.py")

# Files that ask one server over SmolLM2, which takes 20 s to start for the first time.
ONE_SERVER = frozenset(
    f"tests/e2e/test_{name}.py"
    for name in (
        "constraints_smollm2",
        "dialects_smollm2",
        "examples",
        "http_clients_smollm2",
        "readme_snippets",
        "scores_smollm2",
        "served_load",
        "served_text",
    )
)

CACHE = Path(__file__).parents[1] / ".cache" / "test"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, so that many short ones fill the workers' last minutes."""

    def place(item: pytest.Item) -> int:
        if item.path.name in FIRST:
            return FIRST.index(item.path.name)
        return len(FIRST) + ("e2e" not in item.path.parts)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hand out whole files, and those that share a server to one worker."""
    from xdist.scheduler import LoadFileScheduling

    class FilesByServer(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "one server" if file in ONE_SERVER else file

    return FilesByServer(config, log)


def pytest_collection_finish() -> None:
    """Look for no garbage in a million objects that stay: a tenth of what tracing takes."""
    gc.collect()
    gc.freeze()


@contextmanager
def made_alone(name: str) -> Iterator[Path]:
    """The cache folder while no other test session makes `name` in it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield CACHE


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, a GGUF file of 98 MB."""
    with made_alone("smollm2-weights"):
        return fetch_weights(SMOLLM2)


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    """Gemma 3 270M, a base model without chat template; a GGUF file of 253 MB."""
    with made_alone("gemma3-weights"):
        return fetch_weights(GEMMA3)


@pytest.fixture(scope="session")
def smollm2_bundle(smollm2_gguf: Path) -> Path:
    """SmolLM2 as `export-om build` makes it, for 16 contexts up to 512: more take longer."""
    limits = ("--max-model-len", "512", "--max-num-seqs", "16")
    options = ("--name", "SmolLM2-135M-Instruct", *limits)
    return built(smollm2_gguf, "smollm2", options)


def built(checkpoint: Path, name: str, options: tuple[str, ...]) -> Path:
    """A bundle that `export-om build` makes once."""
    with made_alone(name) as cache, (cache / f"{name}.log").open("w+") as log:
        output = cache / name
        try:
            ensure_bundle(checkpoint, output, options, log)
        except RuntimeError as error:
            log.seek(0)
            pytest.fail(f"{error}; it said:\n{log.read()}")
        return output
