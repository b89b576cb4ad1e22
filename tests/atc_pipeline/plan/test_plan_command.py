"""`export-om plan` on tiny checkpoints."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from atc_pipeline.cli import main, parse_arguments
from atc_pipeline.commands.plan import parse_size
from atc_pipeline.plan.gears_file import read_gears
from omruntime.buckets import BucketTable
from omruntime.errors import ConfigError
from tests.export.tiny import save_checkpoint, tiny_model, write_tiny_gguf

CONVERSATION = [
    {
        "conversations": [
            {"from": "human", "value": "abcdefgh"},
            {"from": "gpt", "value": "abcd"},
        ]
    }
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tiny_model("llama"), tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.csv"
    path.write_text("20,30\n100,50\n300,1\n")
    return path


def run(checkpoint: Path, lengths: Path, *flags: str) -> int:
    return main(["plan", str(checkpoint), "--lengths", str(lengths), *flags])


def test_a_plan_of_a_folder(
    checkpoint: Path, lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, plot = tmp_path / "gears.json", tmp_path / "plan.png"
    flags = ["--output", str(output), "--plot", str(plot), "--max-num-seqs", "4"]
    assert run(checkpoint, lengths, *flags) == 0
    text = capsys.readouterr().out
    # The checkpoint's 256 positions are the limit; the third prompt is too long for it.
    assert "2 requests; 1 more have prompts beyond max_model_len 256" in text
    (command,) = [x for x in text.splitlines() if x.startswith("next: export-om build")]
    parse_arguments(shlex.split(command)[2:])
    assert "--max-model-len 256 --max-num-seqs 4" in command
    gears = read_gears(output)
    BucketTable(gears.buckets, gears.block_size).require_cover(4, 256)
    assert (gears.block_size, gears.num_blocks) == (128, 4 * 2 + 1)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_longer_than_the_model_was_made_for_is_warned_of(
    checkpoint: Path, lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(checkpoint, lengths, "--max-model-len", "512") == 0
    assert (
        "warning: max_model_len is 512, but the model was made for 256" in capsys.readouterr().err
    )
    assert run(checkpoint, lengths, "--max-model-len", "256") == 0
    assert "warning" not in capsys.readouterr().err


def test_the_sizes_come_from_headers(
    checkpoint: Path, lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model("llama")
    num_parameters = sum(p.numel() for p in model.parameters())
    assert run(checkpoint, lengths, "--json", "--target", "Ascend310B1") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["gears"]["block_size"] == 64
    assert plain["memory"]["items"]["weights"] == 2 * num_parameters
    assert plain["memory"]["pool_bytes"] == plain["memory"]["num_blocks"] * 64 * 2 * 2 * 2 * 16 * 2


def test_a_plan_of_a_gguf(
    tmp_path: Path, lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    assert run(path, lengths, "--json", "--max-model-len", "128") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["requests"]["num_planned"] == 2
    assert plain["memory"]["sequences"]["128"] > 0


def test_conversations_are_counted_by_the_checkpoints_tokenizer_or_roughly(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(CONVERSATION))
    assert run(checkpoint, path) == 0
    # The tiny tokenizer has a token for each byte.
    assert "prompt tokens: median 8" in capsys.readouterr().out
    assert run(checkpoint, path, "--chars-per-token", "3.5") == 0
    assert "prompt tokens: median 3" in capsys.readouterr().out
    assert run(checkpoint, path, "--chars-per-token", "0") == 2


def test_refusals_have_exit_code_2(
    checkpoint: Path, lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("1,1\n1,x\n")
    for arguments, words in (
        ((checkpoint, lengths, "--memory", "24"), "wanted a number with a unit"),
        ((checkpoint, lengths, "--memory", "1MiB"), "does not fit"),
        ((checkpoint, lengths, "--memory", "9" * 400 + "GiB"), "wanted a number with a unit"),
        ((checkpoint, lengths, "--reserve", "99GiB"), "or a smaller --reserve"),
        ((checkpoint, lengths, "--soc", "Ascend310B4"), "--memory 8GiB"),
        ((checkpoint, lengths, "--soc", "cpu"), "not a chip"),
        ((checkpoint, lengths, "--concurrency", "1;2"), "--concurrency is '1;2'"),
        ((checkpoint, lengths, "--max-num-seqs", "0"), "max_num_seqs is 0"),
        ((checkpoint, lengths, "--max-num-seqs", "100000000"), "wanted at most"),
        ((checkpoint, bad), "bad.csv, line 2"),
        ((tmp_path / "no" / "such" / "model", lengths), "no checkpoint at"),
        ((checkpoint, lengths, "--output", str(tmp_path / "no" / "x")), "cannot write the buckets"),
    ):
        assert run(*arguments) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("24GiB", 24 << 30), ("1.5MiB", 3 << 19), ("24GB", 24 * 10**9)]
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size("--memory", text) == num_bytes
    with pytest.raises(ConfigError, match="--memory"):
        parse_size("--memory", text.lower())
