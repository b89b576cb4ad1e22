"""The doctor's report, as text and as JSON, and the exit code it gives."""

from __future__ import annotations

import json
from collections.abc import Sequence

from omruntime.doctor.finding import Finding, Status

HEALTHY, UNFIT = 0, 1
_TITLE_WIDTH = 22
_STATUS_WIDTH = max(len(status.value) for status in Status)


def as_text(findings: Sequence[Finding]) -> str:
    """One line for each finding, a second one for its remedy, and a last line that sums up."""
    lines = []
    for finding in findings:
        verdict = finding.verdict
        head = f"{verdict.status.value:<{_STATUS_WIDTH}}  {finding.title:<{_TITLE_WIDTH}}"
        lines.append(f"{head}  {verdict.found}")
        if verdict.remedy:
            lines.append(f"{' ' * _STATUS_WIDTH}  {'':<{_TITLE_WIDTH}}  -> {verdict.remedy}")
    return "\n".join([*lines, _summary(findings)]) + "\n"


def _summary(findings: Sequence[Finding]) -> str:
    counts = dict.fromkeys(Status, 0)
    for finding in findings:
        counts[finding.verdict.status] += 1
    return ", ".join(f"{counts[status]} {status.value}" for status in Status)


def as_json(findings: Sequence[Finding]) -> str:
    """One object: `fit`, and `findings` in order."""
    plain = {
        "fit": exit_code(findings) == HEALTHY,
        "findings": [
            {
                "id": finding.check_id,
                "title": finding.title,
                "status": finding.verdict.status.value,
                "found": finding.verdict.found,
                "remedy": finding.verdict.remedy,
                "source": finding.source,
            }
            for finding in findings
        ],
    }
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def exit_code(findings: Sequence[Finding]) -> int:
    """1 when something will not work; warnings leave it 0."""
    return UNFIT if any(f.verdict.status is Status.PROBLEM for f in findings) else HEALTHY
