"""The table of checks, and the run over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from omruntime.doctor import card_checks, process_checks, python_checks, software_checks
from omruntime.doctor.finding import Finding, Verdict
from omruntime.doctor.machine import Machine
from omruntime.doctor.survey import Survey, survey

_NPU_SMI = "npu-smi command reference of Atlas 300I Pro 23.0.RC3, querying basic information"
_USERS = "CANN 8.0.0 software installation guide, preparing installation and running users"
_CONTAINER = "MindIE 2.0.RC2 quick start, starting the container"
_INSTALL = "CANN 8.0.RC3 software installation guide, installing CANN"
_OPERATORS = "MindSDK 7.3.0 Index SDK guide, installing the NPU driver, firmware and CANN"
_PYTHON = "CANN 8.5.0 application development guide (Python), preparing the environment"
_VISIBLE = "CANN 9.0.0 environment variable reference, ASCEND_RT_VISIBLE_DEVICES"
_TABLES = "the row of compatibility.json that the finding names"


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        check_id: Stable, for scripts.
        source: The vendor's document behind it; empty for our own rules.
    """

    check_id: str
    title: str
    examine: Callable[[Survey], Verdict]
    source: str = ""


CHECKS = (
    Check("card", "Ascend card", card_checks.card),
    Check("nodes.management", "driver nodes", card_checks.management_nodes, _CONTAINER),
    Check("nodes.kind", "kind of the nodes", card_checks.node_kinds),
    Check("nodes.permissions", "permissions", card_checks.node_permissions, _USERS),
    Check("chips.health", "health", card_checks.chip_health, _NPU_SMI),
    Check("chips.count", "number of chips", card_checks.chip_count, _NPU_SMI),
    Check("chips.memory", "device memory", card_checks.chip_memory, _NPU_SMI),
    Check("chips.target", "target", card_checks.chip_target),
    Check("driver", "driver", software_checks.driver),
    Check("firmware", "firmware", software_checks.firmware),
    Check("cann", "CANN", software_checks.cann, _INSTALL),
    Check("cann.driver", "CANN and driver", software_checks.driver_fits_cann, _TABLES),
    Check("cann.operators", "operator package", software_checks.operators, _OPERATORS),
    Check("environment", "environment", python_checks.environment, _PYTHON),
    Check("libraries", "libraries", python_checks.libraries),
    Check("acl", "acl module", python_checks.acl_module, _PYTHON),
    Check("acl.python", "Python", python_checks.python_fits_cann, _TABLES),
    Check("atc", "ATC compiler", python_checks.atc),
    Check("torch_npu", "torch-npu", python_checks.torch_npu, _TABLES),
    Check("container", "container", process_checks.container, _CONTAINER),
    Check("container.runtime", "Ascend Docker Runtime", process_checks.docker_runtime),
    Check("visible_devices", "visible devices", process_checks.visible_devices, _VISIBLE),
    Check("limits", "process limits", process_checks.limits),
    Check("memory_limit", "host memory", process_checks.memory_limit),
    Check("readable", "files", process_checks.readable_files),
)


def examine(machine: Machine) -> tuple[Finding, ...]:
    """Run every check over one machine, in the order of the table."""
    facts = survey(machine)
    return tuple(
        Finding(check.check_id, check.title, check.examine(facts), check.source) for check in CHECKS
    )
