"""Ascend chips through pyACL.

device.py       the `Device` protocol; program.py the `Program` protocol
session.py      device, context and stream; library.py acl's initialization
driver.py       return codes become exceptions here
memory.py       device buffers, pinned host memory
loading.py      OMs into reserved memory; weights.py outside weights, shared
om_interface.py what an OM says of itself; om_check.py whether the manifest says the same
acl_module.py   the part of acl that is called, as types
"""

from omruntime.device.ascend.device import AscendDevice
from omruntime.device.ascend.library import AclLibrary
from omruntime.device.ascend.opening import open_ascend, open_simulated

__all__ = ["AclLibrary", "AscendDevice", "open_ascend", "open_simulated"]
