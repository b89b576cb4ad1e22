"""What a failed run of `atc` means, in words: cause, place in the model, and what to do.

Owns the reading of its messages. The error codes' meanings are `atc_table.py`'s.
"""

from __future__ import annotations

import re
import shlex
import signal
from dataclasses import dataclass

from atc_pipeline.atc.find import AtcTool
from atc_pipeline.atc.jobs import CompileJob, bucket_name
from atc_pipeline.atc.options import build_atc_argv
from atc_pipeline.atc.run import AtcResult
from atc_pipeline.atc_table import find_error_codes, load_atc_table
from omruntime.errors import AtcError

_TAIL_LINES = 12
# Source: hicann/ge compiler/graph/passes/multi_batch/multi_batch_clone_pass.cc, node names.
_GEAR = re.compile(r"([\w./:-]*?)_ascend_mbatch_batch_(\d+)")
# How the messages of parser, engines and operators name a node.
_NODES = (
    re.compile(r"\[([^\[\],]+)\]?, optype \["),
    # A name is told from other words by its slash or dot.
    re.compile(r"\b(?:op|node)(?:_?name)?\b[\s=:]*[\['\"]*([\w-]*[/.][\w./:-]*\w)", re.IGNORECASE),
)
_ADVICE_BY_CODE = {
    "E16002": "an operator has no ATC plugin: `export-om lint` names it and what to write instead",
    "E16005": "`export-om lint` shows the domains that the graph imports",
    "E13010": "an operator has no ATC plugin: `export-om lint` names it and what to write instead",
    "E10501": "the device has no such operator: install the ops package of the chip for this CANN",
    "E10036": "give fewer buckets, or take --layout static",
    "E13015": "the ONNX file passes 2 GiB - 1: its weights must lie in a file beside it",
    "E13023": "a part of the OM passes its size limit: give fewer buckets, or take --layout static",
    "EZ3002": "the device has no kernel for this operator: install the ops package of the chip",
    "EZ3003": "the device has no kernel for this operator: install the ops package of the chip",
    "E40000": "CANN's own Python packages cannot be imported: source CANN's set_env.sh",
    "EC0010": "a Python package that CANN needs is missing, see the message; install it for the "
    "Python that CANN uses",
}
_DISK_FULL = "the disk is full: free some, or choose another --output"
_ADVICE_BY_TEXT = (
    (
        "error while loading shared libraries",
        "CANN's libraries were not found: source its set_env.sh; on a machine without a driver "
        "add the toolkit's <arch>-linux/devlib folder to LD_LIBRARY_PATH",
    ),
    (
        "No module named",
        "CANN's set_env.sh was not sourced, or a Python package it needs is absent",
    ),
    ("No space left on device", _DISK_FULL),
)
_OTHERWISE = "read the log; a rerun with --atc-flag log=debug says more"
_COMMAND_LINE = "atc refused a flag: it may be of a release that lacks it; compare with atc --help"


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that did not make its OM.

    Attributes:
        log: Where its output can be read afterwards, in words.
        made: OM files under other names than the wanted one.
        is_disk_full: Whether no room was left behind it, maybe not even for its own message.
    """

    tool: AtcTool
    job: CompileJob
    result: AtcResult
    timeout_s: float
    log: str
    made: tuple[str, ...] = ()
    is_disk_full: bool = False


def atc_error(run: FailedRun) -> AtcError:
    """The error to raise, with all that is known."""
    text = run.result.output_tail
    rows = [("asked", _describe(run.job)), *_message_rows(text), *_place_rows(run.job, text)]
    rows += [
        ("do", _advice(run)),
        ("command", shlex.join([*run.tool.command, *build_atc_argv(run.job.options)])),
        ("log", run.log),
    ]
    lines = [f"  {name}: {value}" for name, value in rows]
    tail = [line for line in text.splitlines() if line.strip()][-_TAIL_LINES:]
    lines += ["  last lines:", *(f"    {line}" for line in tail)]
    return AtcError("\n".join([f"programs/{run.job.name}.om: {_ending(run)}", *lines]))


def _ending(run: FailedRun) -> str:
    result = run.result
    if result.timed_out:
        return f"atc was ended after its time limit of {run.timeout_s:.0f} s"
    number = result.exit_code - 128
    if number == signal.SIGKILL:
        return (
            f"atc was killed (exit code {result.exit_code}, SIGKILL), most likely by the kernel "
            f"for lack of memory"
        )
    if number in set(signal.Signals):
        return f"atc died of {signal.Signals(number).name} (exit code {result.exit_code})"
    if result.exit_code == 0:
        made = ", ".join(run.made) or "none"
        return f"atc reported success but wrote no OM of this name; others: {made}"
    return f"atc failed with exit code {result.exit_code}"


def _describe(job: CompileJob) -> str:
    shapes = f"{len(job.buckets)} gears" if job.has_gears else bucket_name(job.buckets[0])
    return f"{shapes} for {job.options.soc_version}"


def _message_rows(text: str) -> list[tuple[str, str]]:
    """The error codes, each with its meaning and the rest of its line."""
    rows = []
    for code in find_error_codes(text):
        line = next(line for line in text.splitlines() if code in line)
        said = line.partition(code)[2].lstrip(": ")
        meaning = load_atc_table().meaning_of(code)
        rows.append((code, f"{meaning}; atc says: {said}" if meaning else said))
    return rows


def _place_rows(job: CompileJob, text: str) -> list[tuple[str, str]]:
    """The gear and the node that the message points at, as far as it does."""
    found = _GEAR.search(text)
    if found is None:
        node = next((m[1] for pattern in _NODES if (m := pattern.search(text))), None)
        return [("node", node)] if node else []
    index = int(found[2])
    known = index < len(job.buckets)
    gear = f"{index}, bucket {bucket_name(job.buckets[index])}" if known else f"{index}"
    return [("gear", gear), *([("node", found[1])] if found[1] else [])]


def _advice(run: FailedRun) -> str:
    text, result = run.result.output_tail, run.result
    if result.timed_out:
        return "raise --atc-timeout-s, or give fewer buckets"
    if result.exit_code == 0 and run.made:
        # Source: hicann/ge docs/zh/user_guides/atc_tools/CLI_options/--output.md.
        return "a name with <os>_<cpu> means that some shape stayed unknown: run export-om lint"
    if result.exit_code - 128 == signal.SIGKILL:
        return "give the build more memory, run --jobs 1, give fewer buckets or --layout static"
    if run.is_disk_full:
        return _DISK_FULL
    for fragment, advice in _ADVICE_BY_TEXT:
        if fragment in text:
            return advice
    codes = find_error_codes(text)
    known = next((_ADVICE_BY_CODE[code] for code in codes if code in _ADVICE_BY_CODE), None)
    if known is not None:
        return known
    return _COMMAND_LINE if any(code.startswith("E100") for code in codes) else _OTHERWISE
