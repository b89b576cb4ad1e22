"""Numbers of acl's C headers; the Python module exports none.

Source: hicann/runtime include/external/acl/acl_rt.h (aclrtMemMallocPolicy, aclrtMemcpyKind,
aclrtMemAttr); hicann/ge inc/external/acl/acl_mdl.h (aclmdlConfigAttr, load types).
"""

from __future__ import annotations

from enum import IntEnum

SUCCESS = 0
REPEAT_INITIALIZE = 100002
# Device memory is short, as the runtime and as the model loader say it.
OUT_OF_MEMORY = (207001, 207018, 245000)
# A wait ended by its time limit, and the work goes on: stream, event, device.
SYNC_TIMEOUT = (507046, 507047)

# Base addresses of allocations, and both sides of asynchronous copies.
ALIGNMENT = 64
# Index of the getters that speak of all inputs at once.
ALL_INPUTS = -1


class MallocPolicy(IntEnum):
    """Page policies; above 1 MiB huge pages of 2 MiB are tried first."""

    HUGE_FIRST = 0


class CopyKind(IntEnum):
    """Directions of copies."""

    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3


class MemoryAttr(IntEnum):
    """Kinds of device memory; a kind that the chip lacks has size 0."""

    DDR = 0
    HBM = 1


class ConfigAttr(IntEnum):
    """Options of a load through a config handle."""

    LOAD_TYPE = 1
    PATH = 2
    WEIGHT_ADDR = 5
    WEIGHT_SIZE = 6
    WORKSPACE_ADDR = 7
    WORKSPACE_SIZE = 8


LOAD_FROM_FILE_WITH_MEM = 2
