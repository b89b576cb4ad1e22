"""The pages about Ascend cards, and the one for vLLM's users, say what the programs say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atc_pipeline.probe.table import PROBES
from omruntime.doctor.compatibility import driver_rows, find_python_row
from server.http.schema import NOT_BUILT_IN, ChatBody

DOCS = Path(__file__).parents[1] / "docs"
ASCEND = (DOCS / "ascend.md").read_text(encoding="utf-8")
SIMULATION = (DOCS / "simulation.md").read_text(encoding="utf-8")
FROM_VLLM = (DOCS / "from-vllm.md").read_text(encoding="utf-8")
PROBED, _, REFUSED = SIMULATION.partition("## What the simulator refuses")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
COMMAND = re.compile(r"\b(export-om (?:build|plan|lint|inspect|verify|doctor)|om-serve)\b(.*)")


def test_the_probe_table_is_the_one_of_the_program() -> None:
    wanted = [f"| `{p.probe_id}` | {p.assumed} | {p.relied_on} |" for p in PROBES]
    assert [line for line in PROBED.splitlines() if line.startswith("| `")] == wanted


def test_every_misuse_that_the_simulator_refuses_names_its_tests() -> None:
    rows = re.findall(r"^\| (.+) \| .+ \| (.+) \|$", REFUSED, re.M)[1:]
    folder = DOCS.parent / "tests" / "omruntime" / "device" / "simacl"
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    existing = set(re.findall(r"^def (test_\w+)", source, re.M))
    assert len(rows) > 50
    for misuse, tests in rows:
        named = set(re.findall(r"`(\w+)`", tests))
        assert named, f"{misuse}: no test"
        assert named <= existing, f"{misuse}: {sorted(named - existing)} do not exist"
    unlisted = {name for name in existing if "caught" in name} - set(re.findall(r"\w+", REFUSED))
    assert not unlisted, f"in no row: {sorted(unlisted)}"


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    from atc_pipeline.cli import main as export_om
    from server.cli import main as om_serve

    program, *words = command.split()
    main = export_om if program == "export-om" else om_serve
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("text", [ASCEND, SIMULATION], ids=["ascend", "simulation"])
def test_every_flag_shown_for_a_command_exists(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    # Code spans and lines of code; a sentence around them names other programs' flags.
    for code in re.findall(r"`([^`\n]+)`", text) + re.findall(r"^(?:    )*(.*)$", text, re.M):
        for command, rest in COMMAND.findall(code.partition("`")[0]):
            name = "om-serve doctor" if (command, rest[:7]) == ("om-serve", " doctor") else command
            shown += [(name, flag) for flag in FLAG.findall(rest.partition("#")[0])]
    assert shown
    for command, flag in sorted(set(shown)):
        known = FLAG.findall(help_of(command, capsys).replace("--[no-]", "--"))
        assert flag in known, f"{command} has no {flag}"


def test_every_source_key_that_is_cited_is_listed_and_the_other_way_round() -> None:
    body, _, sources = ASCEND.partition("## Sources")
    listed = {
        key for line in sources.splitlines() for key in re.findall(r"\b([A-Z]\d)\b", line[:18])
    }
    cited = set(re.findall(r"\[([A-Z]\d)\]", body))
    assert cited == listed


def test_the_version_table_agrees_with_the_doctors() -> None:
    for cann, newest in (("9.1.0", "3.14"), ("8.5.0", "3.13.9"), ("8.2.RC1", "3.10")):
        row = find_python_row(cann)
        assert row is not None
        assert row.newest == newest
        assert f"{row.oldest} to {newest}" in ASCEND
    assert {"9.2.0", "9.1.X", "9.0.X", "8.5.0", "8.2.RC1"} <= {row.cann for row in driver_rows()}


def test_what_vllm_calls_otherwise_exists_by_our_name(capsys: pytest.CaptureFixture[str]) -> None:
    helps = [help_of(command, capsys) for command in ("om-serve", "export-om build")]
    known = set(FLAG.findall(" ".join(helps)))
    rows = re.findall(r"^\| `--.+? \| (.*?) \|", FROM_VLLM, re.M)
    assert len(rows) > 10
    assert set(FLAG.findall(" ".join(rows))) <= known
    metrics = set(re.findall(r"omserve_(\w+)", FROM_VLLM))
    operations = (DOCS / "operations.md").read_text(encoding="utf-8")
    assert metrics <= set(re.findall(r"`(\w+)(?:\{\w+\})?`", operations))


def test_fields_are_taken_or_refused_as_the_page_for_vllms_users_says() -> None:
    taken, _, rest = FROM_VLLM.partition("Taken by vLLM's names:")[2].partition("Refused by name")
    refused = rest.partition("- Unknown")[0]
    assert set(re.findall(r"`(\w+)`", taken)) <= set(ChatBody.model_fields)
    assert set(re.findall(r"`([a-z_]+)`", refused)) - {"structured_outputs"} <= set(NOT_BUILT_IN)
