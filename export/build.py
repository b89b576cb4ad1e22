"""The public entry of the exporter: checkpoint in, step graph, tokenizer and report out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from export.result import ExportResult
from export.spec import ExportSpec


def export_step_graph(
    spec: ExportSpec, out_dir: Path, progress: Callable[[str], None]
) -> ExportResult:
    """Export a checkpoint as one ONNX step graph and prove it equal to the checkpoint.

    Writes `programs/step.onnx`, `programs/step.weights`, `tokenizer/` and
    `reports/parity.json` below `out_dir`, which exists. Equal input and tools give equal bytes.

    Args:
        progress: Called with one line at the start of each stage.

    Raises:
        ConfigError: The spec does not fit the checkpoint.
        ExportError: The checkpoint is damaged, unproven, or fails the parity gate.
    """
    raise NotImplementedError
