"""Checks of the software: driver, firmware, CANN, and whether they fit each other."""

from __future__ import annotations

from omruntime.doctor.compatibility import as_numbers, find_driver_row, matches
from omruntime.doctor.finding import Verdict, not_applicable, ok, problem, warning
from omruntime.doctor.installs import Install, firmware_range
from omruntime.doctor.survey import Survey

ASK_VENDOR = "look the pair up in the vendor's compatibility query tool"
_NO_CARD = not_applicable("no card")
# The first release that splits the operators off the toolkit.
_FIRST_WITH_OPERATOR_PACKAGE = (8, 5)
_PACKAGE_OF_CHIP = {"310P": "310p", "310B": "310b"}


def driver(facts: Survey) -> Verdict:
    """The driver package and its version."""
    if not facts.has_card:
        return _NO_CARD
    found = facts.driver
    if found is None:
        return problem(
            "no driver/version.info below /usr/local/Ascend",
            "mount it: -v /usr/local/Ascend/driver/version.info:"
            "/usr/local/Ascend/driver/version.info:ro"
            if facts.in_container
            else "install the NPU driver of this product, then the firmware, and reboot",
        )
    if not found.version:
        return warning(f"{found.version_file} names no version", "reinstall the driver")
    loaded = facts.npu_smi.driver_version if facts.npu_smi else ""
    if loaded and not _equal(loaded, found.version):
        return problem(
            f"the loaded driver is {loaded}, {found.version_file} says {found.version}",
            "reboot the host after an upgrade; in a container mount the host's driver folder",
        )
    return ok(f"{found.version} ({found.version_file})")


def _equal(one: str, other: str) -> bool:
    return matches(one, other) or matches(other, one)


def firmware(facts: Survey) -> Verdict:
    """The firmware against the range that the driver's own file states."""
    if not facts.has_card or facts.driver is None:
        return not_applicable("no card or no driver")
    if facts.firmware is None:
        return not_applicable("no firmware package below /usr/local/Ascend, usual in containers")
    version = facts.firmware.version
    ends = firmware_range(facts.machine, facts.driver)
    if ends is None:
        return ok(f"{version or 'unknown version'}; the driver states no range")
    low, here, high = (as_numbers(text) for text in (ends[0], version, ends[1]))
    if not (low and here and high):
        return warning(f"firmware {version!r}, the driver wants {ends}", "reinstall the firmware")
    if low <= here[: len(low)] and here[: len(high)] <= high:
        return ok(f"{version}, the driver wants {ends[0]} to {ends[1]}")
    return problem(
        f"firmware {version}, the driver wants {ends[0]} to {ends[1]}",
        "install the firmware that belongs to the driver, and reboot",
    )


def cann(facts: Survey) -> Verdict:
    """CANN and its version."""
    if facts.cann is None:
        return _without_cann(facts)
    if not facts.cann.version:
        return warning(f"{facts.cann.version_file} names no version", "reinstall CANN")
    return ok(f"{facts.cann.name} {facts.cann.version} ({facts.cann.folder})")


def _without_cann(facts: Survey) -> Verdict:
    found = "CANN was not found: no toolkit and no nnrt below /usr/local/Ascend or ~/Ascend"
    remedy = "install the CANN toolkit, or set ASCEND_HOME_PATH to where it is"
    return problem(found, remedy) if facts.has_card else not_applicable(found)


def driver_fits_cann(facts: Survey) -> Verdict:
    """The driver against the table of the CANN release."""
    if not (facts.cann and facts.driver and facts.cann.version and facts.driver.version):
        return not_applicable("CANN or driver unknown")
    found = f"driver {facts.driver.version}, CANN {facts.cann.version}"
    row = find_driver_row(facts.cann.version)
    if row is None:
        return warning(f"{found}: unknown, no table at hand names this CANN", ASK_VENDOR)
    if any(matches(facts.driver.version, pattern) for pattern in row.fits_not):
        return problem(
            f"{found}: {row.source} rules this out",
            f"install a driver of {', '.join(row.fits)}, or another CANN",
        )
    if any(matches(facts.driver.version, pattern) for pattern in row.fits):
        return ok(f"{found}: listed in {row.source}")
    return warning(f"{found}: unknown, {row.source} lists {', '.join(row.fits)}", ASK_VENDOR)


def operators(facts: Survey) -> Verdict:
    """The operator package, which ATC needs from CANN 8.5 on."""
    if facts.cann is None or facts.cann.name != "toolkit":
        return not_applicable("no CANN toolkit")
    numbers = as_numbers(facts.cann.version)
    if not numbers or numbers[:2] < _FIRST_WITH_OPERATOR_PACKAGE:
        return not_applicable("only CANN 8.5 and later have an operator package of its own")
    found = facts.operators
    if found is None:
        return problem(
            "no ascend_ops_install.info beside the toolkit",
            "install Ascend-cann-310p-ops (310b for a 310B) of the toolkit's version",
        )
    if found.version != facts.cann.version:
        return warning(
            f"{found.name} {found.version}, toolkit {facts.cann.version}",
            "the release notes of CANN list which pairs fit; equal versions always do",
        )
    return _operators_for_chip(facts, found)


def _operators_for_chip(facts: Survey, found: Install) -> Verdict:
    names = [chip.name for chip in facts.npu_smi.chips] if facts.npu_smi else []
    wanted = {tag for start, tag in _PACKAGE_OF_CHIP.items() for n in names if n.startswith(start)}
    if wanted and not any(tag in found.name.lower() for tag in wanted):
        return problem(
            f"{found.name} {found.version} is not for {', '.join(sorted(set(names)))}",
            f"install Ascend-cann-{sorted(wanted)[0]}-ops {facts.cann.version}"
            if facts.cann is not None
            else "",
        )
    return ok(f"{found.name} {found.version}")
