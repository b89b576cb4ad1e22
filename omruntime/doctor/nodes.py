"""Nodes: the driver's files below /dev, and who may open them.

Source: MindIE 2.0.RC2 quick start, starting the container (which nodes a container needs);
MindCluster 7.3.0, default content mounted by Ascend Docker Runtime (nodes of the boards).
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass

from omruntime.doctor.machine import Machine

CARD_NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
BOARD_NODES = ("/dev/davinci_manager", "/dev/svm0", "/dev/ts_aisle")
_CHIP = re.compile(r"davinci([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Node:
    """One file of the driver below /dev.

    Attributes:
        chip: The N of /dev/davinciN; None for the others.
        is_device: Whether it is a character device, as it must be.
        mode: Permission bits.
        group: Name of the owning group, its number where it has no name.
        is_open_to_us: Whether this process may read and write it.
    """

    path: str
    chip: int | None
    is_device: bool
    mode: int
    group: str
    is_open_to_us: bool


def find_nodes(machine: Machine) -> tuple[Node, ...]:
    """All nodes of the driver that are there, in order of names."""
    names = {path.rpartition("/")[2] for path in (*CARD_NODES, *BOARD_NODES)}
    names |= {name for name in machine.names_in("/dev") if _CHIP.fullmatch(name)}
    groups = _group_names(machine)
    nodes = (_look_at(machine, f"/dev/{name}", groups) for name in sorted(names))
    return tuple(node for node in nodes if node is not None)


def _look_at(machine: Machine, path: str, groups: dict[int, str]) -> Node | None:
    status = machine.stat_of(path)
    if status is None:
        return None
    found = _CHIP.fullmatch(path.rpartition("/")[2])
    return Node(
        path=path,
        chip=int(found.group(1)) if found is not None else None,
        is_device=stat.S_ISCHR(status.st_mode),
        mode=stat.S_IMODE(status.st_mode),
        group=groups.get(status.st_gid, str(status.st_gid)),
        is_open_to_us=_may_open(machine, status.st_mode, status.st_uid, status.st_gid),
    )


def _may_open(machine: Machine, mode: int, uid: int, gid: int) -> bool:
    """Read and write by the classic rules: the first class that fits decides alone."""
    if machine.uid == 0:
        return True
    if machine.uid == uid:
        wanted = stat.S_IRUSR | stat.S_IWUSR
    elif gid in machine.gids:
        wanted = stat.S_IRGRP | stat.S_IWGRP
    else:
        wanted = stat.S_IROTH | stat.S_IWOTH
    return mode & wanted == wanted


def _group_names(machine: Machine) -> dict[int, str]:
    names = {}
    for line in (machine.read("/etc/group") or "").splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[2].isascii() and fields[2].isdigit():
            names[int(fields[2][:10])] = fields[0]
    return names
