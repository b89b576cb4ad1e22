"""Fixtures of the end-to-end tests: references, and a server in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pytest

from server.client import Client
from tests.conftest import made_alone
from tests.e2e.hf_reference import QUESTIONS, Reference, chat_references
from tests.e2e.server_child import ServerChild


@pytest.fixture(scope="session")
def smollm2_references(smollm2_gguf: Path) -> list[Reference]:
    """HF's greedy answers to the twenty questions; kept while questions and tools are the same."""
    made_of = {
        "questions": list(QUESTIONS),
        "weights": smollm2_gguf.stat().st_size,
        "tools": [version("torch"), version("transformers")],
    }
    with made_alone("smollm2-references") as folder:
        path = folder / "smollm2-references.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept.get("made_of") != made_of:
            kept = {
                "made_of": made_of,
                "references": [asdict(reference) for reference in chat_references(smollm2_gguf)],
            }
            path.write_text(json.dumps(kept))
    return [
        Reference(tuple(r["prompt"]), tuple(r["token_ids"]), tuple(r["gaps"]))
        for r in kept["references"]
    ]


@pytest.fixture(scope="session")
def server(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerChild]:
    """`om-serve` over SmolLM2, shared by the tests that leave it as it was."""
    options = ("--http-port", "0")
    child = ServerChild(smollm2_bundle, tmp_path_factory.mktemp("server"), options)
    with child.running():
        yield child


@pytest.fixture
def client(server: ServerChild) -> Iterator[Client]:
    """A client of the shared server, which must be idle again afterwards."""
    with Client(server.target) as connected:
        yield connected
        load = connected.load()
        assert (load.num_running, load.num_waiting, load.num_referenced_blocks) == (0, 0, 0)
