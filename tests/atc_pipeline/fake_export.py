"""An exporter without a model: small files and consistent facts, in no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from export.result import PARITY_REPORT_PATH, PROGRAM_PATH, WEIGHTS_PATH, ExportResult
from omruntime.buckets import Bucket, Phase
from omruntime.manifest import (
    KVLayout,
    KVSpec,
    ModelFacts,
    ParitySummary,
    ProgramSpec,
    SamplingDefaults,
    TensorSpec,
)

MODEL = ModelFacts(
    name="tiny",
    architecture="LlamaForCausalLM",
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=131,
    max_model_len=64,
    max_num_seqs=2,
    dtype="float32",
    bos_token_id=None,
    eos_token_ids=(0, 2),
    eos_source="generation_config.json",
    sampling_defaults=SamplingDefaults(temperature=0.6),
)
KV = KVSpec(
    layout=KVLayout.HEAD_MAJOR,
    block_size=16,
    dtype="float32",
    bytes_per_block=2 * 2 * 2 * 16 * 16 * 4,
)
PROGRAM = ProgramSpec(
    role="step",
    path=PROGRAM_PATH,
    inputs=(
        TensorSpec("input_ids", "int32", ("batch", "tokens")),
        TensorSpec("kv_pool.0.key", "float32", (2, "num_blocks", 16, 16)),
        TensorSpec("kv_pool.0.value", "float32", (2, "num_blocks", 16, 16)),
    ),
    outputs=(TensorSpec("logits", "float32", ("batch", 131)),),
    buckets=(Bucket(Phase.DECODE, 2, 1, 4), Bucket(Phase.PREFILL, 1, 16, 4)),
)
CONTENT = {
    PARITY_REPORT_PATH: b"{}\n",
    PROGRAM_PATH: b"onnx" * 16,
    WEIGHTS_PATH: b"weights!" * 1024,
    "tokenizer/tokenizer.json": b"{}",
}


def fake_export(folder: Path, progress: Callable[[str], None]) -> ExportResult:
    """Write `CONTENT` and describe it."""
    for name, data in CONTENT.items():
        progress(f"writing {name}")
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return ExportResult(
        model=MODEL,
        kv=KV,
        program=PROGRAM,
        files=tuple(sorted(CONTENT)),
        kv_identity_inputs={"weights": "ab" * 32, "rope": "{}"},
        checkpoint_sha256="cd" * 32,
        tool_versions={"torch": "1", "onnx": "2"},
        parity=ParitySummary(
            max_abs_logits_diff=1e-6,
            tolerance=1e-3,
            num_greedy_tokens=64,
            num_near_ties=0,
            num_cases=4,
        ),
        warnings=("no end token",),
    )
