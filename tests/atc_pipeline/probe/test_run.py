"""The run over the table of probes, and what it reports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from atc_pipeline.atc.find import AtcTool
from atc_pipeline.cli import main
from atc_pipeline.probe.bench import Bench
from atc_pipeline.probe.outcome import Outcome, Result, judge, measured, no_answer
from atc_pipeline.probe.run import as_json, as_text, report_without, run_probes
from atc_pipeline.probe.table import PROBES, Probe
from omruntime.errors import AtcError, DeviceError


def bench(*, is_simulated: bool = False) -> Bench:
    """A bench that only names its compiler; the probes here need no more."""
    tool = AtcTool(("atc",), "8.5.0", is_simulated, "--atc: atc")
    return cast(Bench, SimpleNamespace(compiler=SimpleNamespace(tool=tool, soc_version="X")))


def probe(outcome: Outcome | Exception) -> Probe:
    def run(_: Bench) -> Outcome:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return Probe("an-id", "Something holds.", "a/module.py", run)


@pytest.mark.parametrize(
    ("outcome", "result", "code"),
    [
        (judge(True, "fine"), Result.CONFIRMED, 0),
        (measured("3 us"), Result.MEASURED, 0),
        (judge(False, "off by 7"), Result.REFUTED, 1),
        (no_answer("too little memory"), Result.NO_ANSWER, 1),
        (DeviceError("acl.mdl.load gave 145000"), Result.NO_ANSWER, 1),
        (AtcError("atc exited with 1: E16002"), Result.NO_ANSWER, 1),
        (OSError("disk full"), Result.NO_ANSWER, 1),
    ],
)
def test_only_a_full_run_without_refutation_passes(
    outcome: Outcome | Exception, result: Result, code: int
) -> None:
    stages: list[str] = []
    report = run_probes(bench(), stages.append, [probe(outcome), probe(judge(True, "after"))])
    assert report.outcomes[0][1].result is result
    # One probe that fails does not end the others.
    assert report.outcomes[1][1].seen == "after"
    assert report.exit_code == code
    assert stages == ["probing an-id"] * 2
    assert (outcome.seen if isinstance(outcome, Outcome) else str(outcome)) in as_text(report)


def test_a_simulation_never_passes_for_a_card() -> None:
    report = run_probes(bench(is_simulated=True), lambda _: None, [probe(judge(True, "fine"))])
    assert report.exit_code == 1
    assert "SIMULATION" in as_text(report)
    assert json.loads(as_json(report))["passed"] is False


def test_without_cann_nothing_is_pretended() -> None:
    report = report_without("there is no CANN")
    assert {outcome.result for _, outcome in report.outcomes} == {Result.NO_ANSWER}
    assert report.exit_code == 1
    text = as_text(report)
    assert text.startswith("probed: nothing, since there is no CANN")
    assert f"0 confirmed, 0 measured, 0 refuted, {len(PROBES)} no answer" in text


def test_ids_are_unique_and_every_probe_says_what_it_is_for() -> None:
    ids = [p.probe_id for p in PROBES]
    assert len(set(ids)) == len(ids)
    assert all(p.assumed.endswith(".") and p.relied_on for p in PROBES)


@pytest.mark.usefixtures("without_compiler")
def test_the_command_on_a_machine_without_a_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--probe", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert "atc was not found" in report["where"]
    assert "--emit" not in report["where"]
    assert {p["result"] for p in report["probes"]} == {"no answer"}


@pytest.mark.parametrize("flag", ["--atc=simatc", "--device=0", "--target=Ascend310B1"])
def test_flags_of_the_probe_are_refused_without_it(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", flag]) == 2
    assert "is for --probe alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "words"), [("--device=-1", "--device is -1"), ("--target=x", "'x' is not a chip")]
)
def test_a_slip_is_told_before_the_machine_is_looked_at(
    flag: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--probe", flag]) == 2
    assert words in capsys.readouterr().err
