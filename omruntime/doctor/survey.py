"""Survey: everything the checks look at, gathered once."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from omruntime.doctor.installs import (
    DEFAULT_ASCEND,
    Install,
    find_cann,
    find_driver,
    find_firmware,
    find_operators,
)
from omruntime.doctor.machine import CommandOutput, Machine
from omruntime.doctor.nodes import Node, find_nodes
from omruntime.doctor.npu_smi import NpuSmi, parse_npu_smi

_HUAWEI_PCI_VENDOR = "0x19e5"
# PCI class 12 00, processing accelerators; the last two digits are the programming interface.
_ACCELERATOR_CLASS = "0x1200"
_NPU_SMI_PLACES = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "/usr/bin/npu-smi")
_DRIVER_LIBRARY_FOLDERS = ("driver/lib64/driver", "driver/lib64/common", "driver/lib64")
_CONTAINER_WORDS = re.compile(r"docker|kubepods|containerd|libpod|lxc")
_ACL_IMPORT = "import acl; print(acl.__file__)"


@dataclass(frozen=True, slots=True)
class Survey:
    """Facts about one machine, none of them judged.

    Attributes:
        num_pci_accelerators: Huawei processing accelerators on the PCI bus; a board whose chip is
            the processor itself (310B) has none.
        npu_smi: None when the tool is absent or printed no table; `npu_smi_output` tells.
        acl_import: What a child process said to `import acl`; None when CANN is absent.
        libraries: Library name to the path that the dynamic linker's path finds, or None.
        memory_limit_bytes: Of the container or service; None is unlimited or unknown.
    """

    machine: Machine
    nodes: tuple[Node, ...]
    num_pci_accelerators: int
    in_container: bool
    driver: Install | None
    firmware: Install | None
    cann: Install | None
    operators: Install | None
    npu_smi: NpuSmi | None
    npu_smi_output: CommandOutput | None
    acl_import: CommandOutput | None
    libraries: dict[str, str | None]
    atc: str | None
    memory_limit_bytes: int | None

    @property
    def chip_nodes(self) -> tuple[Node, ...]:
        """The nodes /dev/davinciN."""
        return tuple(node for node in self.nodes if node.chip is not None)

    @property
    def has_card(self) -> bool:
        """Whether anything at all speaks of a card."""
        return bool(self.chip_nodes or self.num_pci_accelerators or self.npu_smi)

    @property
    def is_board(self) -> bool:
        """Whether the chip is the processor of the board itself, as a 310B may be."""
        names = [chip.name for chip in self.npu_smi.chips] if self.npu_smi else []
        return any(name.startswith("310B") for name in names) or (
            bool(self.chip_nodes) and self.machine.exists("/dev/svm0")
        )


def survey(machine: Machine) -> Survey:
    """Look at everything; runs `npu-smi info` and `import acl` in child processes."""
    cann = find_cann(machine)
    output = _ask_npu_smi(machine)
    parsed = parse_npu_smi(output.text) if output is not None and output.code == 0 else None
    return Survey(
        machine=machine,
        nodes=find_nodes(machine),
        num_pci_accelerators=_count_pci_accelerators(machine),
        in_container=_is_in_container(machine),
        driver=find_driver(machine),
        firmware=find_firmware(machine),
        cann=cann,
        operators=find_operators(machine, cann) if cann is not None else None,
        npu_smi=parsed if parsed is not None and parsed.chips else None,
        npu_smi_output=output,
        acl_import=machine.run([sys.executable, "-c", _ACL_IMPORT]) if cann is not None else None,
        libraries={n: _find_library(machine, n) for n in ("libascendcl.so", "libascend_hal.so")},
        atc=_find_program(machine, "atc"),
        memory_limit_bytes=_memory_limit(machine),
    )


def _ask_npu_smi(machine: Machine) -> CommandOutput | None:
    path = _find_program(machine, "npu-smi")
    path = path or next((p for p in _NPU_SMI_PLACES if machine.exists(p)), None)
    return None if path is None else machine.run([path, "info"])


def _find_program(machine: Machine, name: str) -> str | None:
    for folder in machine.environ.get("PATH", "").split(":"):
        if folder.startswith("/") and machine.exists(f"{folder}/{name}"):
            return f"{folder.rstrip('/')}/{name}"
    return None


def _find_library(machine: Machine, name: str) -> str | None:
    """Where LD_LIBRARY_PATH or the driver's own linker configuration finds a library."""
    folders = [f for f in machine.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    folders += _linker_folders(machine)
    for folder in folders:
        if folder.startswith("/") and machine.exists(f"{folder}/{name}"):
            return f"{folder.rstrip('/')}/{name}"
    return None


def _linker_folders(machine: Machine) -> list[str]:
    folders = []
    for name in machine.names_in("/etc/ld.so.conf.d"):
        text = machine.read(f"/etc/ld.so.conf.d/{name}") or ""
        folders += [line.strip() for line in text.splitlines()]
    return folders


def driver_library_folders() -> list[str]:
    """Where the driver's libraries lie when it is installed in its default folder."""
    return [f"{DEFAULT_ASCEND}/{folder}" for folder in _DRIVER_LIBRARY_FOLDERS]


def _count_pci_accelerators(machine: Machine) -> int:
    folder = "/sys/bus/pci/devices"
    count = 0
    for name in machine.names_in(folder):
        vendor = machine.read(f"{folder}/{name}/vendor") or ""
        if vendor.strip() == _HUAWEI_PCI_VENDOR:
            kind = machine.read(f"{folder}/{name}/class") or ""
            count += kind.strip().startswith(_ACCELERATOR_CLASS)
    return count


def _is_in_container(machine: Machine) -> bool:
    if machine.exists("/.dockerenv") or machine.exists("/run/.containerenv"):
        return True
    return _CONTAINER_WORDS.search(machine.read("/proc/1/cgroup") or "") is not None


def _memory_limit(machine: Machine) -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = (machine.read(path) or "").strip()
        if text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
    return None
