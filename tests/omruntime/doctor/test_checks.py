"""The doctor over machines of several makes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from omruntime.doctor.checks import CHECKS, examine
from omruntime.doctor.finding import Finding, Status
from omruntime.doctor.machine import CommandOutput, Machine
from omruntime.doctor.report import as_json, as_text, exit_code
from tests.omruntime.doctor.machines import (
    BARE,
    BOARD,
    CANN,
    DUO,
    HWHIAI_GID,
    NPU_SMI_DUO,
    SOURCED,
    Layout,
    driver_info,
    install_info,
)

TOOLKIT_INFO = f"{CANN}/x86_64-linux/ascend_toolkit_install.info"
OPS_INFO = f"{CANN}/x86_64-linux/ascend_ops_install.info"
DRIVER_INFO = "/usr/local/Ascend/driver/version.info"


def findings_of(layout: Layout, root: Path) -> dict[str, Finding]:
    return {finding.check_id: finding for finding in examine(layout.build(root))}


def problems_of(layout: Layout, root: Path) -> set[str]:
    found = findings_of(layout, root).values()
    return {f.check_id for f in found if f.verdict.status is Status.PROBLEM}


def test_a_good_300i_duo_has_no_problem_and_no_warning(tmp_path: Path) -> None:
    findings = findings_of(DUO, tmp_path)
    bad = {Status.PROBLEM, Status.WARNING}
    assert [f for f in findings.values() if f.verdict.status in bad] == []
    assert "2 in npu-smi and in /dev on 1 card(s)" in findings["chips.count"].verdict.found
    assert findings["chips.target"].verdict.found == "build with --target Ascend310P3"
    assert exit_code(tuple(findings.values())) == 0


def test_a_310b_board_wants_its_own_nodes_and_operators(tmp_path: Path) -> None:
    assert problems_of(BOARD, tmp_path / "good") == set()
    without_svm = dataclasses.replace(
        BOARD, nodes={k: v for k, v in BOARD.nodes.items() if k != "/dev/svm0"}
    )
    assert problems_of(without_svm, tmp_path / "bad") == {"nodes.management"}
    wrong_operators = BOARD.with_files({OPS_INFO: install_info("Ascend-cann-310p-ops", "8.5.0")})
    assert problems_of(wrong_operators, tmp_path / "ops") == {"cann.operators"}


def test_memory_and_huge_pages_are_shown(tmp_path: Path) -> None:
    duo = findings_of(DUO, tmp_path / "duo")["chips.memory"].verdict.found
    assert duo.endswith("NPU 2 chip 1 (310P3) 1412 of 43693 MiB used")
    board = findings_of(BOARD, tmp_path / "board")["chips.memory"].verdict.found
    assert board == "NPU 0 chip 0 (310B1) 957 of 10810 MiB used, 15 of 15 huge pages"


def test_without_a_card_the_report_says_so_plainly(tmp_path: Path) -> None:
    findings = tuple(examine(BARE.build(tmp_path)))
    assert {f.check_id for f in findings if f.verdict.status is Status.PROBLEM} == {"card"}
    assert "no Ascend card" in as_text(findings)
    assert exit_code(findings) == 1
    assert json.loads(as_json(findings))["fit"] is False


def test_a_build_machine_with_cann_and_no_card_lacks_the_card_alone(tmp_path: Path) -> None:
    layout = replace(DUO, nodes={}, npu_smi=CommandOutput(1, "dcmi module initialize failed"))
    layout = layout.with_files(
        {
            "/sys/bus/pci/devices/0000:01:00.0/vendor": None,
            "/usr/local/Ascend/driver/version.info": None,
            "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so": None,
        }
    )
    assert problems_of(layout, tmp_path) == {"card"}


def test_a_container_without_hisi_hdc(tmp_path: Path) -> None:
    nodes = {path: node for path, node in DUO.nodes.items() if path != "/dev/hisi_hdc"}
    findings = findings_of(replace(DUO.with_files({"/.dockerenv": ""}), nodes=nodes), tmp_path)
    verdict = findings["nodes.management"].verdict
    assert verdict.status is Status.PROBLEM
    assert "/dev/hisi_hdc" in verdict.found
    assert "--device=/dev/hisi_hdc" in verdict.remedy


def test_a_container_without_the_drivers_mounts(tmp_path: Path) -> None:
    layout = DUO.with_files(
        {
            "/proc/1/cgroup": "0::/kubepods/besteffort/pod1\n",
            DRIVER_INFO: None,
        }
    )
    findings = findings_of(layout, tmp_path)
    for check_id in ("container", "driver"):
        assert findings[check_id].verdict.status is Status.PROBLEM
        assert "-v /usr/local/Ascend/driver/version.info:" in findings[check_id].verdict.remedy


def test_a_user_outside_of_the_group(tmp_path: Path) -> None:
    findings = findings_of(replace(DUO, gids=frozenset({2000})), tmp_path)
    verdict = findings["nodes.permissions"].verdict
    assert verdict.status is Status.PROBLEM
    assert "group HwHiAiUser" in verdict.found
    assert verdict.remedy == "usermod -a -G HwHiAiUser USER, then log in again"


@pytest.mark.parametrize(
    ("uid", "gids", "mode", "is_open"),
    [
        (0, {0}, 0o000, True),
        (1000, {5}, 0o600, True),
        # The owner's class decides alone, even when the group has more.
        (1000, {HWHIAI_GID}, 0o060, False),
        (2000, {HWHIAI_GID}, 0o660, True),
        (2000, {HWHIAI_GID}, 0o640, False),
        (2000, {5}, 0o666, True),
        (2000, {5}, 0o660, False),
    ],
)
def test_permissions_follow_the_classic_rules(
    tmp_path: Path, uid: int, gids: set[int], mode: int, is_open: bool
) -> None:
    nodes = dict.fromkeys(DUO.nodes, (mode, HWHIAI_GID))
    layout = replace(DUO, uid=uid, gids=frozenset(gids), nodes=nodes)
    verdict = findings_of(layout, tmp_path)["nodes.permissions"].verdict
    assert (verdict.status is Status.OK) is is_open


def test_a_node_that_a_wrong_mount_made_a_plain_file(tmp_path: Path) -> None:
    nodes = {path: node for path, node in DUO.nodes.items() if path != "/dev/hisi_hdc"}
    layout = replace(DUO, nodes=nodes).with_files({"/dev/hisi_hdc": ""})
    verdict = findings_of(layout, tmp_path)["nodes.kind"].verdict
    assert verdict.status is Status.PROBLEM
    assert "/dev/hisi_hdc" in verdict.found


@pytest.mark.parametrize(
    ("driver", "cann", "status"),
    [
        ("25.5.0", "8.5.0", Status.OK),
        ("25.0.rc1.1", "9.1.0", Status.PROBLEM),
        ("25.2.0", "9.2.0", Status.PROBLEM),
        ("26.2.rc1", "9.2.0", Status.OK),
        ("24.1.rc3", "8.5.0", Status.WARNING),
        ("25.5.0", "8.4.0", Status.WARNING),
    ],
)
def test_driver_and_cann_are_judged_by_published_tables_alone(
    tmp_path: Path, driver: str, cann: str, status: Status
) -> None:
    layout = DUO.with_files(
        {
            DRIVER_INFO: driver_info(driver),
            TOOLKIT_INFO: install_info("Ascend-cann-toolkit", cann),
        }
    )
    verdict = findings_of(layout, tmp_path)["cann.driver"].verdict
    assert verdict.status is status
    assert ("unknown" in verdict.found) is (status is Status.WARNING)


def test_a_driver_that_was_upgraded_without_a_reboot(tmp_path: Path) -> None:
    findings = findings_of(DUO.with_files({DRIVER_INFO: driver_info("25.7.0")}), tmp_path)
    assert findings["driver"].verdict.status is Status.PROBLEM
    assert "25.5.0" in findings["driver"].verdict.found


@pytest.mark.parametrize(
    ("firmware", "status"),
    [
        ("7.8.0.2.212", Status.OK),
        ("7.0.0", Status.OK),
        ("7.8.99.5", Status.OK),
        ("6.4.12", Status.PROBLEM),
        ("7.9.0", Status.PROBLEM),
        ("beta", Status.WARNING),
    ],
)
def test_firmware_lies_in_the_range_of_the_drivers_file(
    tmp_path: Path, firmware: str, status: Status
) -> None:
    layout = DUO.with_files({"/usr/local/Ascend/firmware/version.info": f"Version={firmware}\n"})
    assert findings_of(layout, tmp_path)["firmware"].verdict.status is status


def test_cann_that_was_not_sourced(tmp_path: Path) -> None:
    layout = replace(
        DUO,
        environ={"PATH": "/usr/bin"},
        acl=CommandOutput(1, "ModuleNotFoundError: No module named 'acl'"),
    )
    findings = findings_of(layout, tmp_path)
    bad = {i for i, f in findings.items() if f.verdict.status is Status.PROBLEM}
    assert bad == {"environment", "libraries", "acl"}
    remedy = findings["environment"].verdict.remedy
    assert remedy == "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
    assert findings["atc"].verdict.status is Status.WARNING


def test_a_home_of_cann_that_is_gone_is_told(tmp_path: Path) -> None:
    layout = replace(DUO, environ=SOURCED | {"ASCEND_HOME_PATH": "/opt/gone"})
    verdict = findings_of(layout, tmp_path)["environment"].verdict
    assert verdict.status is Status.PROBLEM
    assert (
        verdict.found == f"ASCEND_HOME_PATH is /opt/gone, where no CANN is; there is one in {CANN}"
    )
    assert verdict.remedy == "source /usr/local/Ascend/ascend-toolkit/set_env.sh"


def test_a_driver_without_a_version_is_not_compared_with_cann(tmp_path: Path) -> None:
    findings = findings_of(DUO.with_files({DRIVER_INFO: "Version=\n"}), tmp_path)
    assert findings["driver"].verdict.status is Status.WARNING
    assert findings["cann.driver"].verdict.status is Status.NOT_APPLICABLE


def test_cann_of_old_releases_names_its_version_in_version_cfg(tmp_path: Path) -> None:
    layout = DUO.with_files(
        {
            TOOLKIT_INFO: None,
            OPS_INFO: None,
            f"{CANN}/version.cfg": (
                "# version: 1.0\nruntime_running_version=[7.6.0.1.220:8.0.0]\n"
            ),
        }
    )
    findings = findings_of(layout, tmp_path)
    assert "8.0.0" in findings["cann"].verdict.found
    assert findings["cann.operators"].verdict.status is Status.NOT_APPLICABLE
    # Its acl module is stated for Python up to 3.10, omserve needs 3.11.
    assert findings["acl.python"].verdict.status is Status.WARNING


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/local/Ascend/cann/x86_64-linux/ascend_toolkit_install.info", "toolkit"),
        ("/home/me/Ascend/cann/aarch64-linux/ascend_toolkit_install.info", "toolkit"),
        ("/usr/local/Ascend/nnrt/latest/x86_64-linux/ascend_nnrt_install.info", "nnrt"),
    ],
)
def test_cann_is_found_where_installers_put_it(tmp_path: Path, path: str, name: str) -> None:
    layout = replace(DUO, environ={"HOME": "/home/me"}).with_files(
        {TOOLKIT_INFO: None, OPS_INFO: None, path: install_info("Ascend-cann-x", "8.5.0")}
    )
    assert f"{name} 8.5.0" in findings_of(layout, tmp_path)["cann"].verdict.found


def test_other_hardware_of_the_vendor_is_no_card(tmp_path: Path) -> None:
    layout = BARE.with_files(
        {
            "/sys/bus/pci/devices/0000:05:00.0/vendor": "0x19e5\n",
            "/sys/bus/pci/devices/0000:05:00.0/class": "0x020000\n",
        }
    )
    assert "has no Ascend card" in findings_of(layout, tmp_path)["card"].verdict.found


def test_the_operator_package_must_be_there_and_of_the_chip(tmp_path: Path) -> None:
    assert problems_of(DUO.with_files({OPS_INFO: None}), tmp_path / "a") == {"cann.operators"}
    wrong = DUO.with_files({OPS_INFO: install_info("Ascend-cann-910b-ops", "8.5.0")})
    assert problems_of(wrong, tmp_path / "b") == {"cann.operators"}


@pytest.mark.parametrize(
    ("health", "status"),
    [
        ("OK", Status.OK),
        ("Warning", Status.WARNING),
        ("Alarm", Status.PROBLEM),
        ("Critical", Status.PROBLEM),
        ("UNKNOWN", Status.PROBLEM),
        ("", Status.PROBLEM),
    ],
)
def test_the_health_of_each_chip_counts(tmp_path: Path, health: str, status: Status) -> None:
    before, _, after = NPU_SMI_DUO.rpartition("310P3                 | OK      ")
    table = f"{before}310P3                 | {health:<8}{after}"
    verdict = findings_of(replace(DUO, npu_smi=CommandOutput(0, table)), tmp_path)["chips.health"]
    assert verdict.verdict.status is status
    if status is not Status.OK:
        assert "chip 1" in verdict.verdict.found
        assert "chip 0" not in verdict.verdict.found


def test_npu_smi_that_fails_is_quoted(tmp_path: Path) -> None:
    output = CommandOutput(255, "dcmi model initialized failed, because the device is used.\n")
    findings = findings_of(replace(DUO, npu_smi=output), tmp_path)
    assert findings["chips.health"].verdict.status is Status.PROBLEM
    assert "because the device is used" in findings["chips.health"].verdict.found


def test_a_card_without_a_driver_is_seen_on_the_pci_bus(tmp_path: Path) -> None:
    layout = replace(DUO, nodes={}, npu_smi=CommandOutput(None, "not found"))
    verdict = findings_of(layout, tmp_path)["card"].verdict
    assert verdict.status is Status.PROBLEM
    assert "1 Huawei accelerator(s) on the PCI bus" in verdict.found


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        ("0,1", Status.OK, "ascend:1 is chip 1"),
        ("1", Status.OK, "ascend:0 is chip 1"),
        ("1, 0", Status.PROBLEM, "neither digit nor comma"),
        ("1,0", Status.PROBLEM, "ascending"),
        ("0,0", Status.PROBLEM, "ascending"),
        ("2", Status.PROBLEM, "2 chip(s)"),
        ("", Status.PROBLEM, "neither digit nor comma"),
    ],
)
def test_visible_devices(tmp_path: Path, value: str, status: Status, words: str) -> None:
    layout = replace(DUO, environ={**SOURCED, "ASCEND_RT_VISIBLE_DEVICES": value})
    verdict = findings_of(layout, tmp_path)["visible_devices"].verdict
    assert verdict.status is status
    assert words in verdict.found


def test_docker_runtime_that_was_not_used(tmp_path: Path) -> None:
    layout = replace(DUO, nodes={}, environ={**SOURCED, "ASCEND_VISIBLE_DEVICES": "0"})
    layout = layout.with_files({"/.dockerenv": ""})
    verdict = findings_of(layout, tmp_path)["container.runtime"].verdict
    assert verdict.status is Status.PROBLEM
    assert "--runtime=ascend" in verdict.remedy


@pytest.mark.parametrize(
    ("packages", "cann", "status"),
    [
        ({}, "8.5.0", Status.NOT_APPLICABLE),
        ({"torch-npu": "2.9.0", "torch": "2.9.0+cpu"}, "8.5.0", Status.OK),
        ({"torch-npu": "2.9.0", "torch": "2.13.0"}, "8.5.0", Status.PROBLEM),
        ({"torch-npu": "2.9.0"}, "8.5.0", Status.PROBLEM),
        ({"torch-npu": "2.9.0", "torch": "2.9.0"}, "9.0.0", Status.WARNING),
        # The wheel wants torch 2.13.0; no table names its CANN.
        ({"torch-npu": "2.13.0", "torch": "2.13.0"}, "9.2.0", Status.WARNING),
        ({"torch-npu": "2.12.0.post2", "torch": "2.12.0"}, "9.1.1", Status.OK),
    ],
)
def test_torch_npu_fits_torch_and_cann(
    tmp_path: Path, packages: dict[str, str], cann: str, status: Status
) -> None:
    layout = replace(DUO, packages=packages).with_files(
        {TOOLKIT_INFO: install_info("Ascend-cann-toolkit", cann)}
    )
    assert findings_of(layout, tmp_path)["torch_npu"].verdict.status is status


def test_limits_are_warned_of(tmp_path: Path) -> None:
    layout = DUO.with_files({"/sys/fs/cgroup/memory.max": "2147483648\n"})
    machine = layout.build(tmp_path)
    small = dataclasses.replace(machine, limits={"open files": 256, "address space": None})
    findings = {f.check_id: f.verdict for f in examine(small)}
    assert findings["limits"].status is Status.WARNING
    assert "ulimit -n" in findings["limits"].remedy
    assert findings["memory_limit"].found == "host memory is limited to 2.0 GiB"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    machine = DUO.build(tmp_path)
    path = tmp_path / "usr/local/Ascend/driver/version.info"
    path.unlink()
    path.mkdir()  # Reading a folder fails for root as well.
    findings = {f.check_id: f.verdict for f in examine(machine)}
    assert findings["readable"].status is Status.WARNING
    assert "/usr/local/Ascend/driver/version.info: Is a directory" in findings["readable"].found


def test_check_ids_are_unique_and_all_reported(tmp_path: Path) -> None:
    ids = [check.check_id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    assert [finding.check_id for finding in examine(DUO.build(tmp_path))] == ids


def test_every_remedy_is_given_where_something_is_wrong(tmp_path: Path) -> None:
    layouts = [BARE, replace(DUO, environ={}), replace(DUO, npu_smi=CommandOutput(1, ""))]
    for index, layout in enumerate(layouts):
        for finding in examine(layout.build(tmp_path / str(index))):
            wrong = finding.verdict.status in (Status.PROBLEM, Status.WARNING)
            assert bool(finding.verdict.remedy) is wrong, finding


def test_the_real_machine_can_be_examined() -> None:
    from omruntime.doctor.machine import this_machine

    machine: Machine = this_machine()
    findings = examine(machine)
    assert len(findings) == len(CHECKS)
    assert as_text(findings).count("\n") >= len(CHECKS)
