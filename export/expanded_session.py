"""ONNX Runtime sessions over graphs for an Ascend device, expanded to what a CPU can run."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime

from export.npu_functions import expand_npu_ops
from export.session import open_model
from omruntime.errors import ExportError


def open_expanded(path: Path, num_threads: int) -> onnxruntime.InferenceSession:
    """Load a step graph that ATC would compile.

    Raises:
        ExportError: It is no ONNX graph, or ONNX Runtime refuses it.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    # protobuf's own error, which has no public name.
    except Exception as error:
        raise ExportError(f"{path} is no ONNX graph: {error}") from error
    return open_model(expand_npu_ops(model).SerializeToString(), path.parent, num_threads)
