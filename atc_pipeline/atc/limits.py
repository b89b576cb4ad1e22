"""How many runs of `atc` a machine takes at once, and what one is expected to need.

Owns the estimates. Measured here they are not: CANN publishes no figure; they err on the large
side.
"""

from __future__ import annotations

import os

from atc_pipeline.atc.find import AtcTool
from atc_pipeline.resources import available_memory_bytes, mib
from omruntime.errors import AtcError, ConfigError

# The parsed constants, their converted copies and the file that is put together of them.
_WEIGHT_COPIES = 3
_ATC_BASE_BYTES = 2 << 30
_SIMATC_BASE_BYTES = 256 << 20
# One run compiles its operators in up to so many processes by itself.
# Source: CANN environment variable reference, TE_PARALLEL_COMPILER.
_PROCESSES_OF_A_RUN = 8


def memory_need_bytes(tool: AtcTool, weight_bytes: int) -> int:
    """What one run is expected to take."""
    base = _SIMATC_BASE_BYTES if tool.is_simulated else _ATC_BASE_BYTES
    return base + _WEIGHT_COPIES * weight_bytes


def default_num_jobs() -> int:
    """One run for every eight processors, as each uses eight by itself."""
    return max(1, (os.cpu_count() or 1) // _PROCESSES_OF_A_RUN)


def num_runs(wanted: int, need_bytes: int, have_bytes: int | None = None) -> int:
    """How many of `wanted` runs fit into memory together.

    Args:
        have_bytes: What this process can take; None asks the machine.

    Raises:
        ConfigError: `wanted` is below 1.
        AtcError: Not even one fits.
    """
    if wanted < 1:
        raise ConfigError(f"--jobs is {wanted}, wanted at least 1")
    have = available_memory_bytes() if have_bytes is None else have_bytes
    if have < need_bytes:
        raise AtcError(
            f"too little memory for atc: one run needs about {mib(need_bytes)}, this process can "
            f"have {mib(have)} (machine, cgroup and ulimit -v considered); raise the limit, or "
            f"compile on a larger machine with --emit"
        )
    return min(wanted, have // need_bytes)
