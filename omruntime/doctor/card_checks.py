"""Checks of the card: is there one, are its nodes there, may we open them, is it healthy."""

from __future__ import annotations

from omruntime.doctor.finding import Verdict, not_applicable, ok, problem, warning
from omruntime.doctor.nodes import BOARD_NODES, CARD_NODES
from omruntime.doctor.npu_smi import Chip
from omruntime.doctor.survey import Survey

NO_CARD = not_applicable("no card")
_GROUP = "HwHiAiUser"
# Chip names of npu-smi to targets of `export-om build`; the variants that ATC knows.
_TARGETS = {
    **{f"310P{n}": f"Ascend310P{n}" for n in (1, 3, 5, 7)},
    **{f"310B{n}": f"Ascend310B{n}" for n in (1, 2, 3, 4)},
}


def card(facts: Survey) -> Verdict:
    """Whether there is a card, and whether its driver sees it."""
    count = len(facts.chip_nodes)
    if count:
        return ok(f"{count} chip(s): {', '.join(node.path for node in facts.chip_nodes)}")
    if facts.num_pci_accelerators:
        return problem(
            f"{facts.num_pci_accelerators} Huawei accelerator(s) on the PCI bus, but no "
            f"/dev/davinciN: the driver is not loaded, or this container was given no device",
            "on the host install driver and firmware and reboot; for a container add "
            "--device=/dev/davinci0",
        )
    return problem(
        "this machine has no Ascend card: no /dev/davinciN, and no Huawei accelerator on the PCI "
        "bus",
        "to build, lint and compile none is needed; serve OMs on a machine with a card, or "
        "bundles of --target cpu here, or of --atc simatc on a simulated one, --device sim:0",
    )


def management_nodes(facts: Survey) -> Verdict:
    """Whether the nodes beside those of the chips are there."""
    if not facts.has_card:
        return NO_CARD
    wanted = BOARD_NODES if facts.is_board else CARD_NODES
    present = {node.path for node in facts.nodes}
    missing = [path for path in wanted if path not in present]
    if not missing:
        return ok(", ".join(wanted))
    remedy = (
        "start the container with " + " ".join(f"--device={path}" for path in missing)
        if facts.in_container
        else "the driver is not loaded or of another product: install the driver and reboot"
    )
    return problem(f"missing: {', '.join(missing)}", remedy)


def node_kinds(facts: Survey) -> Verdict:
    """Whether the nodes are devices; a mount of a path that is absent makes a folder of it."""
    if not facts.nodes:
        return NO_CARD
    wrong = [node.path for node in facts.nodes if not node.is_device]
    if not wrong:
        return ok(f"{len(facts.nodes)} character devices")
    return problem(
        f"not a character device: {', '.join(wrong)}",
        "pass devices with --device, not with -v, and only those that the host has",
    )


def node_permissions(facts: Survey) -> Verdict:
    """Whether this process may open the nodes."""
    if not facts.nodes:
        return NO_CARD
    closed = [node for node in facts.nodes if not node.is_open_to_us]
    if not closed:
        return ok(f"user {facts.machine.uid} may read and write all {len(facts.nodes)}")
    groups = sorted({node.group for node in closed})
    return problem(
        f"user {facts.machine.uid} may not read and write "
        + ", ".join(f"{node.path} (mode {node.mode:o}, group {node.group})" for node in closed),
        _how_to_join(groups, facts),
    )


def _how_to_join(groups: list[str], facts: Survey) -> str:
    if facts.in_container:
        return f"start the container with --group-add for the host's number of {groups[0]}"
    return f"usermod -a -G {','.join(groups) or _GROUP} USER, then log in again"


def chip_health(facts: Survey) -> Verdict:
    """What npu-smi says of each chip's health."""
    if not facts.has_card:
        return NO_CARD
    if facts.npu_smi is None:
        return _npu_smi_failed(facts)
    bad = [chip for chip in facts.npu_smi.chips if chip.health.upper() != "OK"]
    if not bad:
        return ok(", ".join(f"{_chip_name(chip)} {chip.health}" for chip in facts.npu_smi.chips))
    found = ", ".join(f"{_chip_name(chip)} says {chip.health or 'nothing'}" for chip in bad)
    remedy = (
        "npu-smi info -t health -i NPU_ID names the error code; reset the chip or replace the card"
    )
    # The vendor's scale: Warning is a minor alarm, all beyond it are major or worse.
    mild = all(chip.health.upper() == "WARNING" for chip in bad)
    return warning(found, remedy) if mild else problem(found, remedy)


def _npu_smi_failed(facts: Survey) -> Verdict:
    output = facts.npu_smi_output
    if output is None:
        return warning(
            "npu-smi was not found, so health and memory are unknown",
            "add its folder (/usr/local/bin or /usr/local/sbin) to PATH; in a container mount it",
        )
    said = " ".join(output.text.split())[:300] or "nothing"
    state = "could not be run" if output.code is None else f"exited with {output.code}"
    return problem(
        f"npu-smi info {state} and gave no table of chips; it said: {said}",
        "see the driver's nodes and permissions above; on the host, restart or reinstall the "
        "driver",
    )


def chip_count(facts: Survey) -> Verdict:
    """Whether npu-smi and /dev agree on the chips."""
    if not facts.has_card or facts.npu_smi is None:
        return not_applicable("no table of npu-smi")
    chips, nodes = facts.npu_smi.chips, facts.chip_nodes
    if len(chips) == len(nodes):
        return ok(f"{len(chips)} in npu-smi and in /dev{_duo_note(chips)}")
    return warning(
        f"npu-smi lists {len(chips)} chip(s), /dev has {len(nodes)}",
        "a container sees the chips of its --device arguments alone; on a host, see dmesg",
    )


def _duo_note(chips: tuple[Chip, ...]) -> str:
    cards = {chip.npu_id for chip in chips}
    if len(cards) == len(chips):
        return ""
    return f" on {len(cards)} card(s): each chip is a device of its own, one om-serve each"


def chip_memory(facts: Survey) -> Verdict:
    """How much device memory is left before anything is served."""
    if not facts.has_card or facts.npu_smi is None:
        return not_applicable("no table of npu-smi")
    known = [c for c in facts.npu_smi.chips if c.used_mib is not None and c.total_mib]
    if not known:
        return warning(
            "npu-smi printed no memory figures", "run npu-smi info -t usages -i NPU_ID -c CHIP_ID"
        )
    found = ", ".join(f"{_chip_name(c)} {_memory_of(c)}" for c in known)
    if any((c.used_mib or 0) * 2 > (c.total_mib or 0) for c in known):
        return warning(
            found, "more than half is taken already: see the processes that npu-smi info lists"
        )
    return ok(found)


def _memory_of(chip: Chip) -> str:
    used, total = chip.hugepages or (0, 0)
    pages = f", {used} of {total} huge pages" if total else ""
    return f"{chip.used_mib} of {chip.total_mib} MiB used{pages}"


def chip_target(facts: Survey) -> Verdict:
    """Which target to build for."""
    if not facts.has_card or facts.npu_smi is None:
        return not_applicable("no table of npu-smi")
    names = sorted({chip.name for chip in facts.npu_smi.chips})
    known = [_TARGETS[name] for name in names if name in _TARGETS]
    unknown = [name for name in names if name not in _TARGETS]
    if unknown:
        return problem(
            f"no target for chip {', '.join(unknown)}",
            f"omserve builds for {', '.join(_TARGETS.values())}",
        )
    return ok(f"build with --target {' or '.join(known)}")


def _chip_name(chip: Chip) -> str:
    return f"NPU {chip.npu_id} chip {chip.chip_id} ({chip.name})"
