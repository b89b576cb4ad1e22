"""A step graph on OpenVINO, for the gates and for a replay: exactly as it is served."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from omruntime.device.openvino_model import compile_step, new_core
from omruntime.element_type import BFLOAT16
from omruntime.errors import ExportError


class OpenvinoSession:
    """Runs one step at a time; bfloat16 tensors are arrays of uint16, their bits."""

    def __init__(self, model: ov.CompiledModel) -> None:
        self._request = model.create_infer_request()
        self._types = {port.get_any_name(): port.get_element_type() for port in model.inputs}

    def run(
        self, output_names: list[str], inputs: dict[str, NDArray[np.generic]]
    ) -> Sequence[NDArray[np.floating]]:
        """See `StepSession.run`."""
        # Kept until the run has ended: a tensor does not keep its array.
        arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for name, array in arrays.items():
            shape = ov.Shape(array.shape)
            self._request.set_tensor(name, ov.Tensor(array, shape, self._types[name]))
        self._request.start_async()
        self._request.wait()
        return [_array(self._request.get_tensor(name)) for name in output_names]


def open_openvino(path: Path, num_threads: int) -> OpenvinoSession:
    """Load a step graph with a bfloat16 cache.

    Raises:
        ExportError: OpenVINO refuses it.
    """
    try:
        return OpenvinoSession(compile_step(new_core(), path, BFLOAT16, num_threads))
    except RuntimeError as error:
        raise ExportError(f"OpenVINO cannot load the exported graph: {error}") from error


def _array(tensor: ov.Tensor) -> NDArray[np.floating]:
    data = tensor.data
    return np.array(data.view(np.uint16) if tensor.element_type == ov.Type.bf16 else data)
