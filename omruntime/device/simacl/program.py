"""Running a simulated OM's ONNX program.

Owns everything that touches onnxruntime in the simulator. Weights are views: of the mapped OM,
of the files beside it, or of simulated device memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from omruntime.device.simacl.errors import Code, Refusal
from omruntime.errors import BundleError
from omruntime.om_file.simulated import SimulatedProgram


class ProgramSession:
    """One loaded program."""

    def __init__(
        self,
        program: SimulatedProgram,
        outside: Mapping[str, memoryview],
        num_threads: int,
    ) -> None:
        """Make the session.

        Args:
            outside: The bytes of each weight file outside of the OM, by its path there.

        Raises:
            Refusal: A weight file is missing or too short, or the program does not load.
        """
        options = ort.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        try:
            arrays = {
                w.name: w.array(outside[w.file] if w.file else program.constants)
                for w in program.weights
            }
            values = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
            options.add_external_initializers(list(arrays), values)
            self._session = ort.InferenceSession(
                bytes(program.model), options, providers=["CPUExecutionProvider"]
            )
        except (KeyError, BundleError) as error:
            raise Refusal(Code.GE_FAILURE, f"[Load] external weight: {error}") from error
        except Exception as error:  # ONNX Runtime raises its own family, not one base class
            raise Refusal(Code.GE_FAILURE, f"[Load] the program does not load: {error}") from error
        self._keep_alive = (arrays, values, program)

    def run(self, outputs: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run once.

        Raises:
            Refusal: The program failed, such as an index outside of a tensor.
        """
        try:
            return [np.asarray(y) for y in self._session.run(list(outputs), dict(inputs))]
        except Exception as error:  # as above
            raise Refusal(Code.RT_AICORE_EXCEPTION, f"the program failed: {error}") from error

    @property
    def output_names(self) -> list[str]:
        """In the order of the OM's outputs."""
        return [output.name for output in self._session.get_outputs()]


def map_file(path: Path) -> memoryview:
    """A file's bytes, mapped.

    Raises:
        Refusal: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise Refusal(Code.GE_FAILURE, f"[Load] weight file {path}: {error}") from error
