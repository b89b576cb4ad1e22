"""Whatever a machine's files hold, the doctor ends with a report."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from omruntime.doctor.checks import CHECKS, examine
from omruntime.doctor.machine import CommandOutput, run_command
from omruntime.doctor.report import as_json, as_text
from tests.omruntime.doctor.machines import DUO, SOURCED

_READ = sorted(path for path in DUO.files if not path.endswith((".so", "atc", "npu-smi")))
_TEXT = st.text(max_size=60)
# Text that comes near to what the files hold, which plain noise never does.
_NEAR = st.lists(
    st.sampled_from(["Version", "version", "=", "[", "]", ":", ",", "8.5.0", "9", "x", ".", "\n"]),
    max_size=12,
).map("".join)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(_READ), st.binary(max_size=80) | _NEAR.map(str.encode), max_size=5
    ),
    st.dictionaries(st.sampled_from([*SOURCED, "ASCEND_RT_VISIBLE_DEVICES", "HOME"]), _TEXT),
    _TEXT,
)
def test_garbage_never_ends_it(
    files: dict[str, bytes], environ: dict[str, str], output: str
) -> None:
    layout = replace(
        DUO,
        files={**DUO.files, **files},
        environ={**SOURCED, **environ},
        npu_smi=CommandOutput(0, output),
        acl=CommandOutput(-11, output),
    )
    with tempfile.TemporaryDirectory() as root:
        findings = examine(layout.build(Path(root)))
    assert len(findings) == len(CHECKS)
    assert as_text(findings)
    assert as_json(findings)


def test_reads_are_bounded(tmp_path: Path) -> None:
    machine = DUO.build(tmp_path)
    (tmp_path / "etc/group").write_bytes(b"\xff" * 1_000_000)
    text = machine.read("/etc/group")
    assert text is not None
    assert len(text) == 65536


def test_a_command_that_is_not_there_or_fails_is_an_answer() -> None:
    assert run_command(["/no/such/program"]).code is None
    assert run_command(["sh", "-c", "printf '\\377'; exit 3"]) == CommandOutput(3, "\ufffd")
