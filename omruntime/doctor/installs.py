"""Installs: the vendor's packages on a machine, found by their version files.

Source: CANN 8.0.RC3 software installation guide, installing CANN (ascend_toolkit_install.info);
hicann/runtime README and hicann/ops-nn quick install (the `cann` folder of CANN 8.5 and later);
driver/version.info and version.cfg as printed in vllm-project/vllm-ascend and
sgl-project/sglang issues.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from omruntime.doctor.machine import Machine

DEFAULT_ASCEND = "/usr/local/Ascend"
_ARCHITECTURES = ("aarch64", "x86_64")
# A version.cfg line: toolkit_running_version=[7.6.0.1.220:8.0.0], the vendor's number second.
_RUNNING = re.compile(r"^(?:toolkit|runtime)_running_version=\[(?:[^:\]]*:)?([^\]]+)\]", re.M)
_KEY_VALUE = re.compile(r"^\s*([A-Za-z_]+)\s*=\s*(.*?)\s*$")


@dataclass(frozen=True, slots=True)
class Install:
    """One installed package.

    Attributes:
        name: Such as toolkit, nnrt, driver.
        version: As its file says; empty when the file says none.
        version_file: The file.
        folder: What the package's paths start with.
    """

    name: str
    version: str
    version_file: str
    folder: str


def parse_key_values(text: str) -> dict[str, str]:
    """Lines `key=value`; others are skipped, a repeated key keeps its first value."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        found = _KEY_VALUE.match(line)
        if found is not None:
            values.setdefault(found.group(1), found.group(2))
    return values


def find_driver(machine: Machine) -> Install | None:
    """The driver, where /etc/ascend_install.info or the default folder says."""
    text = machine.read("/etc/ascend_install.info") or ""
    base = parse_key_values(text).get("Driver_Install_Path_Param") or DEFAULT_ASCEND
    return _from_version_info(machine, "driver", f"{base}/driver")


def find_firmware(machine: Machine) -> Install | None:
    """The firmware package; a card has firmware of its own, which only npu-smi can ask."""
    text = machine.read("/etc/ascend_install.info") or ""
    base = parse_key_values(text).get("Firmware_Install_Path_Param") or DEFAULT_ASCEND
    return _from_version_info(machine, "firmware", f"{base}/firmware")


def _from_version_info(machine: Machine, name: str, folder: str) -> Install | None:
    path = f"{folder}/version.info"
    text = machine.read(path)
    if text is None:
        return None
    values = parse_key_values(text)
    version = values.get("Version") or values.get("package_version") or ""
    return Install(name, version, path, folder)


def firmware_range(machine: Machine, driver: Install) -> tuple[str, str] | None:
    """Oldest and newest firmware that the driver says it works with."""
    values = parse_key_values(machine.read(driver.version_file) or "")
    ends = values.get("compatible_version_fw", "").strip("[]").split(",")
    return (ends[0].strip(), ends[1].strip()) if len(ends) == 2 else None


def find_cann(machine: Machine) -> Install | None:
    """CANN as the environment names it, else in the default folders, toolkit before nnrt."""
    named = machine.environ.get("ASCEND_HOME_PATH") or machine.environ.get("ASCEND_TOOLKIT_HOME")
    home = machine.environ.get("HOME", "/root").rstrip("/")
    bases = (DEFAULT_ASCEND, f"{home}/Ascend")
    places = [("toolkit", named)] if named else []
    places += [("toolkit", f"{base}/cann") for base in bases]
    places += [("toolkit", f"{base}/ascend-toolkit/latest") for base in bases]
    places += [("nnrt", f"{base}/nnrt/latest") for base in bases]
    for name, folder in places:
        found = _find_cann_in(machine, name, folder)
        if found is not None:
            return found
    return None


def _find_cann_in(machine: Machine, name: str, folder: str) -> Install | None:
    for arch in _ARCHITECTURES:
        for package in ("toolkit", "nnrt"):
            path = f"{folder}/{arch}-linux/ascend_{package}_install.info"
            text = machine.read(path)
            if text is not None:
                return Install(package, parse_key_values(text).get("version", ""), path, folder)
    path = f"{folder}/version.cfg"
    text = machine.read(path)
    if text is None:
        return None
    running = _RUNNING.search(text)
    return Install(name, running.group(1) if running else "", path, folder)


def find_operators(machine: Machine, cann: Install) -> Install | None:
    """The operator package of CANN 8.5 and later; earlier ones leave no such file."""
    for arch in _ARCHITECTURES:
        path = f"{cann.folder}/{arch}-linux/ascend_ops_install.info"
        text = machine.read(path)
        if text is not None:
            values = parse_key_values(text)
            name = values.get("package_name", "ops")
            return Install(name, values.get("version", ""), path, cann.folder)
    return None


def set_env_script(machine: Machine, cann: Install) -> str:
    """The script to source; the likely place where none was found."""
    parent = cann.folder.rsplit("/", 1)[0]
    for path in (f"{cann.folder}/set_env.sh", f"{parent}/set_env.sh"):
        if machine.exists(path):
            return path
    return f"{parent}/set_env.sh"
