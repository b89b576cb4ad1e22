"""examples/ against a server, as whoever copies them runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from demo.processes import ROOT
from server.client import Client
from tests.e2e.server_child import ServerChild

EXAMPLES = ROOT / "examples"
NEEDED = [name for name in ("node", "npm") if shutil.which(name) is None]
GO_TOOLS = ("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc")
GO_NEEDED = [name for name in GO_TOOLS if shutil.which(name) is None]


def output_of(command: Sequence[str], cwd: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("blocking.py", ["Paris", "NOT_FOUND: model 'another' is not served here"]),
        ("with_asyncio.py", ["The capital of France is' Paris", "given up after half a second"]),
        ("session.py", ["8 plus 8 is'", "the paused reader took"]),
    ],
)
def test_python(
    server: ServerChild, client: Client, tmp_path: Path, name: str, wanted: list[str]
) -> None:
    said = output_of([sys.executable, str(EXAMPLES / "python" / name), server.target], tmp_path)
    for words in wanted:
        assert words in said, said


@pytest.mark.skipif(bool(NEEDED), reason=f"needs {' and '.join(NEEDED)}")
def test_node(server: ServerChild, client: Client, tmp_path: Path) -> None:
    """With grpc-js and proto-loader from npm, over the .proto files as they are."""
    folder = tmp_path / "examples" / "node"
    shutil.copytree(EXAMPLES / "node", folder)
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    npm = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    output_of(npm, folder)
    said = output_of(["node", "client.js", server.target], folder)
    assert 'unary: " Paris' in said
    assert "FINISH_REASON_LENGTH" in said
    assert "session: short FINISH_REASON_LENGTH" in said
    assert "session: long FINISH_REASON_ABORT" in said


@pytest.mark.skipif(bool(GO_NEEDED), reason=f"needs {' and '.join(GO_NEEDED)}")
def test_go(
    server: ServerChild, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With grpc-go as modules; with GO111MODULE=off as sources in GOPATH, as Debian packs them."""
    folder = tmp_path / "src" / "example.org" / "app"
    shutil.copytree(EXAMPLES / "go", folder)
    output_of(["sh", "generate.sh", str(ROOT / "proto")], folder)
    setting = ["go", "env", "GO111MODULE", "GOPATH"]
    mode, libraries = output_of(setting, folder).splitlines()
    if mode == "off":
        monkeypatch.setenv("GOPATH", f"{tmp_path}:{libraries}")
    else:
        tidied = subprocess.run(
            ["go", "mod", "tidy"], cwd=folder, capture_output=True, text=True, check=False
        )
        if tidied.returncode:
            pytest.skip(f"no Go modules to be had: {tidied.stderr.splitlines()[-1]}")
    output_of(["go", "build", "-o", "client", "."], folder)
    said = output_of(["./client", server.target], folder)
    assert 'unary: " Paris' in said
    assert "stream: " in said
    assert "session: short FINISH_REASON_LENGTH" in said
    assert "session: long FINISH_REASON_ABORT" in said
