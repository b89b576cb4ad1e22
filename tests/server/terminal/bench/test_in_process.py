"""A bundle in this process, without any wire."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.terminal.cli import main
from tests.omruntime.toy_model import write_toy_bundle
from tests.server.tiny_tokenizers import letters_backend, write_tokenizer

Capture = pytest.CaptureFixture[str]
COMMON = ("bench", "--backend", "in-process")


def test_a_bundle_is_loaded_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where measured costs would be kept
    bundle = write_toy_bundle(tmp_path / "bundle")
    write_tokenizer(bundle / "tokenizer", letters_backend())
    load = ("--num-prompts", "4", "--max-concurrency", "2", "--turns", "2")
    lengths = ("--random-input-len", "3", "--random-output-len", "2")
    assert main([*COMMON, "--bundle", str(bundle), *load, *lengths, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["figures"]["num_ok"] == 8
    assert printed["run"]["device"] == "cpu"
    assert "8 requests in 4 conversations, turns that add 3 tokens" in printed["run"]["sent"]
    assert printed["figures"]["num_output_tokens"] == 16
    # A later turn sends what came before: 3 + 2 + 3 tokens.
    assert printed["figures"]["num_prompt_tokens"] == 4 * (3 + 8)
    assert any("share this process" in note for note in printed["notes"])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "--backend in-process needs --bundle"),
        (("--bundle", "nowhere"), "nowhere"),
        (("--bundle", "b", "--model", "m"), "--backend in-process has the bundle's alone"),
        (("--bundle", "b", "--device", "gpu"), "gpu"),
    ],
)
def test_what_does_not_load_is_told(capsys: Capture, flags: tuple[str, ...], told: str) -> None:
    assert main([*COMMON, *flags]) == 2
    assert told in capsys.readouterr().err
