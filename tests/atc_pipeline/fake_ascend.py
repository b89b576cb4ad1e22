"""An Ascend export without a model, jobs of it, and scripts that stand in for `atc`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from atc_pipeline.atc.find import AtcTool
from atc_pipeline.atc.jobs import CompileJob, JobSettings, Layout, plan_jobs
from omruntime.buckets import Bucket, Phase
from omruntime.manifest import KVLayout, KVSpec, ProgramSpec, TensorSpec
from tests.atc_pipeline.fake_export import MODEL

SOC = "Ascend310P3"
PLANES, HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS = 8, 16, 16, 9
KV = KVSpec(
    layout=KVLayout.TOKEN_MAJOR,
    block_size=BLOCK_SIZE,
    dtype="float16",
    bytes_per_block=PLANES * HEAD_DIM * BLOCK_SIZE * 2,
    num_blocks=NUM_BLOCKS,
)
BUCKETS = (
    Bucket(Phase.DECODE, 1, 1, 4),
    Bucket(Phase.DECODE, 2, 1, 4),
    Bucket(Phase.PREFILL, 1, 8, 1),
    Bucket(Phase.PREFILL, 1, 16, 4),
    Bucket(Phase.PREFILL, 1, 32, 4),
)
PROGRAM = ProgramSpec(
    role="step",
    path="programs/step.onnx",
    inputs=(
        TensorSpec("input_ids", "int32", ("batch", "tokens")),
        TensorSpec("positions", "int32", ("batch", "tokens")),
        TensorSpec("block_tables", "int32", ("batch", "past_blocks")),
        TensorSpec("past_lens", "int32", ("batch",)),
        TensorSpec("last_index", "int32", ("batch",)),
        TensorSpec("kv_pool", "float16", ("num_slots", PLANES, HEAD_DIM)),
    ),
    outputs=(
        TensorSpec("logits", "float32", ("batch", 131)),
        TensorSpec("new_kv", "float16", ("new_tokens", PLANES, HEAD_DIM)),
    ),
    buckets=BUCKETS,
)
ASCEND_MODEL = dataclasses.replace(MODEL, dtype="float16")


def fake_jobs(layout: Layout = Layout.PER_PHASE) -> tuple[CompileJob, ...]:
    """The jobs of the program above."""
    return plan_jobs(PROGRAM, KV, SOC, JobSettings(layout))


def fake_tool(folder: Path, body: str) -> AtcTool:
    """A compiler that is a shell script; `$output` is the value of its --output.

    The body runs in the job's folder.
    """
    path = folder / "atc"
    find_output = (
        'for word in "$@"; do case $word in --output=*) output=${word#--output=};; esac; done\n'
    )
    path.write_text(f"#!/bin/sh\n{find_output}{body}\n")
    path.chmod(0o755)
    return AtcTool((str(path),), "fake-1", False, f"--atc: {path}")


def python_tool(code: str) -> AtcTool:
    """A compiler that is a piece of Python."""
    return AtcTool((sys.executable, "-S", "-c", code), "fake-1", False, "--atc: python")


class Notes:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.lines: list[str] = []

    def __call__(self, stage: str) -> None:
        self.stages.append(stage)

    def note(self, line: str) -> None:
        self.lines.append(line)
