"""Opening an Ascend device, and the simulator in its place."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import cast

from omruntime.device.ascend.acl_module import AclModule
from omruntime.device.ascend.device import AscendDevice
from omruntime.device.ascend.library import AclLibrary
from omruntime.device.ascend.weights import load_setter
from omruntime.errors import ConfigError

logger = logging.getLogger(__name__)

MIB = 1 << 20
# Each chip of an Atlas 300I Pro or Duo.
CARD_MEMORY_BYTES = 24 << 30


def open_ascend(name: str, device_id: int, timeout_ms: int | None = None) -> AscendDevice:
    """Open a chip.

    Args:
        timeout_ms: Longest wait for queued work; None waits for ever.

    Raises:
        ConfigError: CANN's Python module is not installed.
        DeviceError: The driver refused.
    """
    library = _acl_library()
    return AscendDevice(name, device_id, library, load_setter(), timeout_ms=timeout_ms)


@functools.cache
def _acl_library() -> AclLibrary:
    """The process's one acl module."""
    try:
        import acl
    except ImportError as error:
        raise ConfigError(
            f"device ascend needs CANN and its Python module acl ({error}); install the CANN "
            f"toolkit or runtime, then `source /usr/local/Ascend/cann/set_env.sh` "
            f"in this shell; `om-serve doctor` shows what is missing"
        ) from error
    return AclLibrary(cast("AclModule", acl))


def open_simulated(
    name: str, device_id: int, soc: str, timeout_ms: int | None = None
) -> AscendDevice:
    """Open a SIMULATED chip: the same code over a simulator of acl.

    Args:
        soc: The chip that is simulated.
        timeout_ms: As in `open_ascend`.

    Raises:
        ConfigError: ONNX Runtime, which runs the simulated programs, is not installed.
    """
    try:
        from omruntime.device.simacl import SimulatedCard, Simulation
    except ImportError as error:
        raise ConfigError(
            f"device {name} needs ONNX Runtime ({error}); install it with: "
            f"pip install '.[cpu]' in omserve's folder"
        ) from error
    memory_bytes = min(CARD_MEMORY_BYTES, _available_bytes())
    card = SimulatedCard(soc, device_id + 1, memory_bytes)
    logger.warning(
        "%s is a SIMULATION of %s in host memory (%s MiB), for tests and dry runs only: its "
        "speed says nothing of a card",
        name, soc, memory_bytes // MIB,
    )  # fmt: skip
    simulation = Simulation(card)
    return AscendDevice(
        name,
        device_id,
        AclLibrary(cast("AclModule", simulation.module)),
        simulation.set_external_weight_address,
        is_simulated=True,
        timeout_ms=timeout_ms,
    )


def _available_bytes() -> int:
    """Host memory that new allocations can get."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return CARD_MEMORY_BYTES
