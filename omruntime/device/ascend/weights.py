"""Weights that lie in files beside the OMs, one copy on the device for all programs.

ATC's --external_weight=1 names each file after its content, so equal names are equal weights.

Source: CANN ATC guide, --external_weight; CANN model API reference,
aclmdlSetExternalWeightAddress (the address is used as it is; size a multiple of 32).
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import numpy as np

from omruntime.device.ascend.acl_module import ExternalWeightSetter
from omruntime.device.ascend.chip import Chip
from omruntime.device.ascend.memory import AscendBuffer
from omruntime.device.base import DeviceTensor

logger = logging.getLogger(__name__)

WEIGHT_FOLDER = "weight"
_GRANULE_BYTES = 32
_UPLOAD_BYTES = 64 << 20


def weight_files(om: Path) -> list[Path]:
    """The weight files beside an OM; none when its weights are inside."""
    folder = om.parent / WEIGHT_FOLDER
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def padded_bytes(path: Path) -> int:
    """A file's size on the device."""
    return -(-path.stat().st_size // _GRANULE_BYTES) * _GRANULE_BYTES


class SharedWeights:
    """Weight files on one device by path; they stay until the device closes."""

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self._buffers: dict[Path, AscendBuffer] = {}

    def of(self, om: Path) -> dict[str, AscendBuffer]:
        """The files beside an OM by name, uploaded and complete.

        Raises:
            OutOfDeviceMemoryError: They do not fit.
            DeviceError: The driver refused.
        """
        files = weight_files(om)
        for path in files:
            if path not in self._buffers:
                self._buffers[path] = self._upload(path)
        return {path.name: self._buffers[path] for path in files}

    def _upload(self, path: Path) -> AscendBuffer:
        buffer = self._chip.alloc(padded_bytes(path))
        with path.open("rb") as file:
            offset = 0
            while part := file.read(_UPLOAD_BYTES):
                target = DeviceTensor(buffer, offset, (len(part),), "uint8")
                self._chip.copy_in(target, np.frombuffer(part, np.uint8))
                # Gives the staging memory back; and a load reads the addresses at once.
                self._chip.synchronize()
                offset += len(part)
        return buffer


def load_setter() -> ExternalWeightSetter | None:
    """The C function of the installed CANN; None where it is older than 8.5.0.

    Weights are then copied for each program.
    """
    try:
        function = ctypes.CDLL("libascendcl.so").aclmdlSetExternalWeightAddress
    except (OSError, AttributeError) as error:
        logger.warning("weights are not shared between programs: %s", error)
        return None
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]

    def set_address(config_handle: int, file_name: str, address: int, size: int, /) -> int:
        return int(function(config_handle, file_name.encode(), address, size))

    return set_address
