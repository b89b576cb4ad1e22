"""The only map from a device name to a backend.

To add a device: write one module against `omruntime/device/base.py`, then name it
in `require_device_name` and open it in `open_device`.
"""

from __future__ import annotations

import re

from omruntime.device.base import (
    Device,
    DeviceBuffer,
    DeviceTensor,
    MemoryInfo,
    MemoryItem,
    Program,
)
from omruntime.errors import ConfigError

__all__ = [
    "Device",
    "DeviceBuffer",
    "DeviceTensor",
    "MemoryInfo",
    "MemoryItem",
    "Program",
    "open_device",
    "require_device_name",
]

SIMULATED_SOC = "Ascend310P3"
_ASCEND = re.compile(r"ascend:(\d{1,4})")
_SIMULATED = re.compile(r"sim:(\d{1,2})(?:@(Ascend310(?:P[1357]|B[1-4])))?")


# A chip gives up this share of a step's time limit, so that its own words come first.
_WAIT_SHARE = 0.9


def require_device_name(name: str) -> None:
    """Check a name without opening anything.

    Raises:
        ConfigError: No device has such a name.
    """
    if name not in ("cpu", "openvino", "native") and not (
        _ASCEND.fullmatch(name) or _SIMULATED.fullmatch(name)
    ):
        raise ConfigError(
            f"device is {name!r}, wanted one of: cpu, openvino, native, ascend:N (a chip by its "
            f"number), sim:N (a SIMULATED {SIMULATED_SOC}), sim:N@CHIP (another one: Ascend310P1, "
            f"P3, P5, P7, B1, B2, B3 or B4)"
        )


def open_device(name: str, num_threads: int = 0, step_timeout_s: float | None = None) -> Device:
    """Open a device by name; the calling thread owns it from here on.

    Args:
        name: `cpu` for the host's cores through ONNX Runtime, `openvino` for the same through
            OpenVINO, `native` for the same through omserve's own kernels, or `ascend:N` for a
            chip by its number. `sim:N` is a SIMULATED chip for tests and dry runs, an Ascend310P3
            unless the name goes on with `@` and another, such as `sim:0@Ascend310B4`; nothing
            else ever chooses it.
        num_threads: For `cpu`, `openvino` and `native`: threads of one run; 0 means one for each
            core.
        step_timeout_s: For `ascend:N` and `sim:N`: a step that takes longer has failed, and
            `synchronize` gives up a little before. None waits for ever.

    Raises:
        ConfigError: The name is unknown, or the backend's library is not installed.
        DeviceError: The driver refused.
    """
    require_device_name(name)
    timeout_ms = (
        None if step_timeout_s is None else max(1, int(step_timeout_s * 1000 * _WAIT_SHARE))
    )
    # Imported late so that one backend's library is never needed for another.
    if name == "cpu":
        try:
            from omruntime.device.cpu import CpuDevice
        except ImportError as error:
            raise ConfigError(
                f"device cpu needs ONNX Runtime ({error}); install it with: "
                f"pip install '.[cpu]' in omserve's folder"
            ) from error
        return CpuDevice(num_threads)
    if name == "openvino":
        try:
            from omruntime.device.openvino import OpenvinoDevice
        except ImportError as error:
            raise ConfigError(
                f"device openvino needs the OpenVINO runtime ({error}); install it with: "
                f"pip install '.[openvino]' in omserve's folder"
            ) from error
        return OpenvinoDevice(num_threads)
    if name == "native":
        from omruntime.device.native import NativeDevice

        return NativeDevice(num_threads)
    if match := _ASCEND.fullmatch(name):
        from omruntime.device.ascend import open_ascend

        return open_ascend(name, int(match[1]), timeout_ms)
    match = _SIMULATED.fullmatch(name)
    assert match is not None
    from omruntime.device.ascend import open_simulated

    return open_simulated(name, int(match[1]), match[2] or SIMULATED_SOC, timeout_ms)
