"""ExportResult: all that an export hands to the bundle writer.

Plain data without torch, so that whoever packs a bundle needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omruntime.manifest import KVSpec, ModelFacts, ParitySummary, ProgramSpec

PROGRAM_PATH = "programs/step.onnx"
# Beside the program: ONNX Runtime refuses external data outside of the model's folder.
WEIGHTS_PATH = "programs/step.weights"
TOKENIZER_FOLDER = "tokenizer"
PARITY_REPORT_PATH = "reports/parity.json"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What `export_step_graph` wrote below its output folder, and the facts about it.

    Attributes:
        program: The step program; its path is relative to the output folder.
        files: Every file written, relative to the output folder, sorted.
        kv_identity_inputs: All that decides what a cached key or value is (weight hash, rope
            settings, dtype, layout, block size, contract, profile revision); the manifest's
            `kv_identity` is one hash over it.
        checkpoint_sha256: Over the checkpoint's weight and config files.
        tool_versions: Package name to version, of what shaped the graph.
        warnings: What a builder should read, such as a missing end token.
    """

    model: ModelFacts
    kv: KVSpec
    program: ProgramSpec
    files: tuple[str, ...]
    kv_identity_inputs: Mapping[str, str]
    checkpoint_sha256: str
    tool_versions: Mapping[str, str]
    parity: ParitySummary
    warnings: tuple[str, ...]
