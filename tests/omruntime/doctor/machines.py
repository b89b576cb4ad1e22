"""Machines of our own making: a folder that stands for `/`, and what its commands print.

The tables of `npu-smi info` keep the form of captured ones (Syllo/nvtop issue 421 for the 300I
Duo, the vendor's npu-smi reference for the 310B); device nodes are plain files whose status is
made up, since tests may not be allowed to make devices.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from omruntime.doctor.machine import CommandOutput, Machine

HWHIAI_GID = 1000
TABLES = Path(__file__).parent / "npu_smi_tables"
CANN = "/usr/local/Ascend/ascend-toolkit/latest"

NPU_SMI_DUO = (TABLES / "duo.txt").read_text()

NPU_SMI_310B = (TABLES / "310b.txt").read_text()

# As older tools print it: no device column, and a memory column for high-bandwidth memory.
NPU_SMI_OLD = (TABLES / "old.txt").read_text()
SILENT = CommandOutput(0, "")
IMPORTED = CommandOutput(0, "/opt/acl.so")


@dataclass(frozen=True)
class Layout:
    """What is on a machine; `build` lays it out below a folder.

    Attributes:
        nodes: Path to mode and group id; the owner is 1000.
        files: Path to content.
        npu_smi: What `npu-smi info` prints.
        acl: What `import acl` gives.
    """

    nodes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    npu_smi: CommandOutput = SILENT
    acl: CommandOutput = IMPORTED
    uid: int = 2000
    gids: frozenset[int] = frozenset({2000, HWHIAI_GID})
    python: tuple[int, int, int] = (3, 11, 4)

    def with_files(self, changes: Mapping[str, str | bytes | None]) -> Layout:
        """Files added, or removed where None."""
        files = dict(self.files)
        for path, content in changes.items():
            files.pop(path, None)
            if content is not None:
                files[path] = content
        return replace(self, files=files)

    def build(self, root: Path) -> Machine:
        for path, content in {**self.files, **dict.fromkeys(self.nodes, b"")}.items():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        return Machine(
            root=root,
            environ=self.environ,
            uid=self.uid,
            gids=self.gids,
            python=self.python,
            run=self._run,
            stat=self._stat_below(root),
            package_version=self.packages.get,
            limits={"open files": 65536, "locked memory": 8 << 20, "address space": None},
        )

    def _run(self, argv: Sequence[str]) -> CommandOutput:
        if argv[0].endswith("npu-smi"):
            assert list(argv[1:]) == ["info"]
            return self.npu_smi
        assert argv[1] == "-c", argv
        assert "import acl" in argv[2]
        return self.acl

    def _stat_below(self, root: Path) -> Callable[[Path], os.stat_result]:
        def fake_stat(path: Path) -> os.stat_result:
            real = path.stat()
            given = self.nodes.get("/" + str(path.relative_to(root)))
            if given is None:
                return real
            mode, gid = given
            return os.stat_result((stat.S_IFCHR | mode, 0, 0, 1, 1000, gid, 0, 0, 0, 0))

        return fake_stat


def install_info(package: str, version: str) -> str:
    """As the vendor's *_install.info files."""
    return (
        f"package_name={package}\nversion={version}\ninnerversion=V100R001C23B210\n"
        f"arch=x86_64\nos=linux\npath={CANN}/x86_64-linux\n"
    )


def driver_info(version: str) -> str:
    """As driver/version.info."""
    return (
        f"Version={version}\nascendhal_version=7.35.23\ntdt_version=1.0\n"
        f"compatible_version_fw=[7.0.0,7.8.99]\npackage_version={version}\n"
    )


NODE = (0o660, HWHIAI_GID)
SOURCED = {
    "PATH": f"{CANN}/bin:/usr/local/bin:/usr/bin",
    "LD_LIBRARY_PATH": f"{CANN}/lib64:/usr/local/Ascend/driver/lib64/driver",
    "PYTHONPATH": f"{CANN}/python/site-packages",
    "ASCEND_HOME_PATH": CANN,
    "ASCEND_OPP_PATH": f"{CANN}/opp",
}

DUO = Layout(
    nodes={
        "/dev/davinci0": NODE,
        "/dev/davinci1": NODE,
        "/dev/davinci_manager": NODE,
        "/dev/devmm_svm": NODE,
        "/dev/hisi_hdc": NODE,
    },
    files={
        "/etc/group": "root:x:0:\nHwHiAiUser:x:1000:\n",
        "/etc/ascend_install.info": "Driver_Install_Path_Param=/usr/local/Ascend\n",
        "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x19e5\n",
        "/sys/bus/pci/devices/0000:01:00.0/class": "0x120000\n",
        "/sys/bus/pci/devices/0000:02:00.0/vendor": "0x8086\n",
        "/usr/local/bin/npu-smi": "",
        "/usr/local/Ascend/driver/version.info": driver_info("25.5.0"),
        "/usr/local/Ascend/firmware/version.info": "Version=7.8.0.2.212\n",
        "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "",
        f"{CANN}/x86_64-linux/ascend_toolkit_install.info": install_info(
            "Ascend-cann-toolkit", "8.5.0"
        ),
        f"{CANN}/x86_64-linux/ascend_ops_install.info": install_info(
            "Ascend-cann-310p-ops", "8.5.0"
        ),
        f"{CANN}/lib64/libascendcl.so": "",
        f"{CANN}/bin/atc": "",
        "/usr/local/Ascend/ascend-toolkit/set_env.sh": "",
    },
    environ=SOURCED,
    npu_smi=CommandOutput(0, NPU_SMI_DUO),
)

BOARD = replace(
    DUO,
    nodes={
        "/dev/davinci0": NODE,
        "/dev/davinci_manager": NODE,
        "/dev/svm0": NODE,
        "/dev/ts_aisle": NODE,
    },
    npu_smi=CommandOutput(0, NPU_SMI_310B),
).with_files(
    {
        "/sys/bus/pci/devices/0000:01:00.0/vendor": None,
        "/sys/bus/pci/devices/0000:01:00.0/class": None,
        f"{CANN}/x86_64-linux/ascend_ops_install.info": install_info(
            "Ascend-cann-310b-ops", "8.5.0"
        ),
    }
)

BARE = Layout(environ={"PATH": "/usr/bin"})
