"""Running the probes, and the report."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.atc.find import AtcTool
from atc_pipeline.probe.acl_calls import Acl
from atc_pipeline.probe.bench import Bench, set_external_weight_by_ctypes
from atc_pipeline.probe.card import Card
from atc_pipeline.probe.compiler import Compiler
from atc_pipeline.probe.outcome import Outcome, Result, no_answer
from atc_pipeline.probe.table import PROBES, Probe
from omruntime.errors import OmError

_FAILED = (Result.REFUTED, Result.NO_ANSWER)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """All outcomes, in the order of the table.

    Attributes:
        where: What was probed, such as the chip and the compiler.
        is_simulated: Then the outcomes say something of the probes and the simulators, and
            nothing of a card.
    """

    where: str
    is_simulated: bool
    outcomes: tuple[tuple[Probe, Outcome], ...]

    @property
    def exit_code(self) -> int:
        """0 when every probe ran on a card and none was refuted."""
        failed = any(outcome.result in _FAILED for _, outcome in self.outcomes)
        return 1 if failed or self.is_simulated else 0


def run_probes(
    bench: Bench, progress: Callable[[str], None], probes: Sequence[Probe] = PROBES
) -> ProbeReport:
    """Run one after the other; a probe that fails to run does not end the others."""
    outcomes = []
    for probe in probes:
        progress(f"probing {probe.probe_id}")
        try:
            outcome = probe.run(bench)
        except (OmError, OSError) as error:
            outcome = no_answer(str(error))
        outcomes.append((probe, outcome))
    tool = bench.compiler.tool
    where = f"{bench.compiler.soc_version}, {tool.found}, version {tool.version}"
    return ProbeReport(where, tool.is_simulated, tuple(outcomes))


def probe_card(
    tool: AtcTool, soc_version: str, card: tuple[Acl, int], progress: Callable[[str], None]
) -> ProbeReport:
    """Run every probe on a card.

    Args:
        tool: The compiler.
        soc_version: What to compile for.
        card: The acl module and the device's number.
        progress: Called with one line at the start of each probe.

    Raises:
        ConfigError: There is no such soc_version.
        DeviceError: The device cannot be opened.
    """
    acl, device_id = card
    with (
        tempfile.TemporaryDirectory(prefix="omserve-probe-") as work,
        Card(acl, device_id) as opened,
    ):
        compiler = Compiler(tool, soc_version, Path(work))
        return run_probes(Bench(compiler, opened, set_external_weight_by_ctypes), progress)


def report_without(reason: str) -> ProbeReport:
    """The report where there is no CANN or no card: nothing ran."""
    outcomes = tuple((probe, no_answer("not run")) for probe in PROBES)
    return ProbeReport(f"nothing, since {reason}", False, outcomes)


def as_text(report: ProbeReport) -> str:
    """One line for each probe, what was assumed and where it is relied on, then a summary."""
    lines = [f"probed: {report.where}"]
    if report.is_simulated:
        lines.append("SIMULATION: nothing below says anything about a card")
    for probe, outcome in report.outcomes:
        lines += [
            f"{outcome.result.value:<10} {probe.probe_id}: {outcome.seen}",
            f"           assumed: {probe.assumed} Relied on by {probe.relied_on}.",
        ]
    counts = [
        f"{sum(o.result is result for _, o in report.outcomes)} {result.value}" for result in Result
    ]
    return "\n".join([*lines, ", ".join(counts)]) + "\n"


def as_json(report: ProbeReport) -> str:
    """One object with the same content."""
    plain = {
        "where": report.where,
        "is_simulated": report.is_simulated,
        "passed": report.exit_code == 0,
        "probes": [
            {
                "id": probe.probe_id,
                "assumed": probe.assumed,
                "relied_on": probe.relied_on,
                "result": outcome.result.value,
                "seen": outcome.seen,
            }
            for probe, outcome in report.outcomes
        ],
    }
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
