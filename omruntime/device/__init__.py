"""The only map from a device name to a backend.

To add a device: write one module against `omruntime/device/base.py`, then name it here.
"""

from __future__ import annotations

from omruntime.device.base import Device, DeviceBuffer, DeviceTensor, MemoryInfo, Program
from omruntime.errors import ConfigError, NotBuiltInError

__all__ = ["Device", "DeviceBuffer", "DeviceTensor", "MemoryInfo", "Program", "open_device"]


def open_device(name: str, num_threads: int = 0) -> Device:
    """Open a device by name; the calling thread owns it from here on.

    Args:
        name: `cpu`. `ascend:N` and `sim:N` are known names that this build refuses.
        num_threads: For `cpu`: threads of one run; 0 means one for each core.

    Raises:
        ConfigError: The name is unknown, or the backend's library is not installed.
        NotBuiltInError: The name is known and its backend is not part of this build.
    """
    kind, _, _ = name.partition(":")
    if name == "cpu":
        # Imported here so that one backend's library is never needed for another.
        try:
            from omruntime.device.cpu import CpuDevice
        except ImportError as error:
            raise ConfigError(
                f"device cpu needs ONNX Runtime ({error}); install it with: "
                f"pip install 'omserve[cpu]'"
            ) from error
        return CpuDevice(num_threads)
    if kind in ("ascend", "sim"):
        raise NotBuiltInError(f"device {name} is not part of this build; built in are: cpu")
    raise ConfigError(f"device is {name!r}, wanted one of: cpu")
