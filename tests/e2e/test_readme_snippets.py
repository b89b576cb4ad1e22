"""The README's Python runs as it stands, on SmolLM2."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server_child import ServerChild

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def snippet_with(words: str) -> str:
    (found,) = [snippet for snippet in SNIPPETS if words in snippet]
    return str(found)


def test_the_client(server: ServerChild) -> None:
    code = snippet_with("from server.client import Client")
    assert "Paris" in run(code.replace("localhost:50051", server.target))


@pytest.mark.timeout(300)
def test_the_engine_in_process(smollm2_bundle: Path) -> None:
    code = snippet_with("from server import LLM")
    assert "Paris" in run(code.replace("DIR", str(smollm2_bundle)))


def test_every_snippet_is_run_here() -> None:
    assert len(SNIPPETS) == 2
