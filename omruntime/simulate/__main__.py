"""`python -m omruntime.simulate`: compare scheduling policies on a trace, without a device."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from omruntime.errors import OmError
from omruntime.scheduling.phase_policy import Targets
from omruntime.simulate.machine import Machine, bundle_machine, example_machine
from omruntime.simulate.replay import policies, replay, saturation
from omruntime.simulate.report import HEADINGS, figures_of, line_of
from omruntime.simulate.trace import TracedRequest, at_rate, read_trace, synthetic_trace

LOADS = (0.5, 0.8, 1.0, 1.2)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m omruntime.simulate",
        description="Replay requests against predicted costs on a virtual clock, and compare "
        "scheduling policies. Equal arguments print equal figures. load: arrivals as a share of "
        "what the machine can serve; waste: share of padding; goodput: requests a second that met "
        "both targets, the mean time between tokens counting.",
    )
    add = parser.add_argument
    add("--bundle", type=Path, help="bundle whose buckets and limits to take; needs --costs")
    add("--costs", type=Path, help="measured costs of the bundle, a file that om-serve's log names")
    add("--trace", type=Path, help="CSV file with columns arrival (s), prompt, output (tokens)")
    add("--requests", type=int, default=200, help="number of made-up requests (default: 200)")
    add("--seed", type=int, default=0, help="of the made-up requests (default: 0)")
    add("--ttft-target-ms", type=float, default=1000.0, help="default: 1000")
    add("--itl-target-ms", type=float, default=100.0, help="default: 100")
    arguments = parser.parse_args(argv)
    if (arguments.bundle is None) != (arguments.costs is None):
        parser.error("--bundle and --costs belong together")
    if arguments.requests < 2:
        parser.error(f"--requests is {arguments.requests}, wanted at least 2")
    for name in ("ttft_target_ms", "itl_target_ms"):
        target_ms = getattr(arguments, name)
        if not 0 < target_ms < math.inf:
            flag = "--" + name.replace("_", "-")
            parser.error(f"{flag} is {target_ms:g}, wanted a number above 0")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the exit code, 2 for a wrong file."""
    arguments = parse_arguments(argv)
    try:
        if arguments.bundle is None:
            machine = example_machine()
        else:
            machine = bundle_machine(arguments.bundle, arguments.costs)
        trace = _trace(arguments, machine)
    except OmError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    targets = Targets(arguments.ttft_target_ms / 1e3, arguments.itl_target_ms / 1e3)
    _print_table(trace, machine, targets, is_timed=arguments.trace is not None)
    return 0


def _trace(arguments: argparse.Namespace, machine: Machine) -> list[TracedRequest]:
    max_model_len = machine.limits.max_model_len
    if arguments.trace is not None:
        return read_trace(arguments.trace, max_model_len)
    return synthetic_trace(arguments.requests, max_model_len, arguments.seed)


def _print_table(
    trace: list[TracedRequest], machine: Machine, targets: Targets, is_timed: bool
) -> None:
    """Made-up arrivals at each load; those of a file as they are."""
    compared = policies(machine.table, machine.costs, targets)
    most = saturation(trace, machine, compared["measured cost"])
    print(f"{machine.name}: {len(trace)} requests, saturated at {most:.2f} requests/s")
    print(HEADINGS)
    own_load = len(trace) / max(r.arrival_s for r in trace) / most
    for load in (own_load,) if is_timed else LOADS:
        arrivals = at_rate(trace, load * most)
        for name, options in compared.items():
            print(line_of(load, name, figures_of(replay(arrivals, machine, options), targets)))


if __name__ == "__main__":
    sys.exit(main())
