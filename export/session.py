"""ONNX Runtime sessions over step graphs, for the parity gate and for a replay.

Needs no onnx package, so that a `cpu` bundle is verified without it; graphs for an Ascend device
go through `expanded_session.py` first.
"""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from omruntime.errors import ExportError

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


def open_session(path: Path, num_threads: int) -> onnxruntime.InferenceSession:
    """Load a step graph into ONNX Runtime.

    Raises:
        ExportError: ONNX Runtime refuses it.
    """
    return open_model(str(path), path.parent, num_threads)


def open_model(
    model: str | bytes, weights_folder: Path, num_threads: int
) -> onnxruntime.InferenceSession:
    """As `open_session`, for a path or a serialised model whose weights lie in a folder.

    Raises:
        ExportError: ONNX Runtime refuses it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    # The reference runs in the same process, on the same cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if isinstance(model, bytes):
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights_folder))
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    # ONNX Runtime's classes share no base but this.
    except Exception as error:
        raise ExportError(f"ONNX Runtime cannot load the exported graph: {error}") from error
