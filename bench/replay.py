"""`python -m bench.replay`: scheduling by measured cost against two simpler policies.

Requests with lognormal lengths like those of ShareGPT's conversations arrive at random (Poisson)
at 0.5, 0.8, 1.0 and 1.2 of what the machine can serve. The policies differ in nothing but the
choice of bucket and phase: `smallest covering bucket` takes the bucket of least padded work and
prefill and decode in turn, `first come first served` decodes only when no prompt is left. First
on a virtual clock, over gears planned for such traffic, and there with what `deterministic` costs;
then, with `--bundle`, in real time on the CPU, with lengths divided by four. Waste is the share of
padding. Exit code 1 when planned gears waste 15 % or more at 0.8, which fewer requests than the
default may do, as they leave the machine idle at both ends.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.live_replay import LiveReplay, engines, live_saturation
from bench.planned_gears import planned_machine
from omruntime.manifest import Manifest
from omruntime.scheduling.phase_policy import Targets
from omruntime.scheduling.scheduler import SchedulerOptions
from omruntime.simulate.__main__ import LOADS
from omruntime.simulate.machine import Machine
from omruntime.simulate.replay import Replayed, policies, replay, saturation
from omruntime.simulate.report import HEADINGS, figures_of, line_of
from omruntime.simulate.trace import TracedRequest, at_rate, synthetic_trace

TARGETS = Targets()
MEASURED, DETERMINISTIC = "measured cost", "measured, deterministic"
LIVE_DIVISOR = 4
MAX_WASTE, WASTE_LOAD = 0.15, 0.8

Runs = dict[str, Callable[[list[TracedRequest]], Replayed]]


def main() -> int:
    """Run and print; 1 when planned gears waste more than they may."""
    parser = argparse.ArgumentParser(prog="bench.replay", description=__doc__)
    add = parser.add_argument
    add("--requests", type=int, default=300, help="on the virtual clock (default: 300)")
    add("--seed", type=int, default=0, help="of lengths and arrivals (default: 0)")
    add("--bundle", type=Path, help="a bundle for the CPU, to run in real time as well")
    add("--device", default="cpu", help="what runs the bundle (default: cpu)")
    add("--live-requests", type=int, default=32, help="in real time, for each run (default: 32)")
    add("--live-loads", type=float, nargs="+", default=LOADS, metavar="LOAD", help="default: all")
    options = parser.parse_args()
    targets = f"first token in {TARGETS.ttft_s:g} s, {TARGETS.itl_s * 1e3:g} ms between tokens"
    _say(f"goodput: requests that met both targets, {targets} on average")
    wastes = _simulated(planned_machine(options.seed + 1), options.requests, options.seed)
    if options.bundle is not None:
        _live(options)
    waste = wastes[WASTE_LOAD, MEASURED]
    if waste >= MAX_WASTE:
        _say(f"FAILED: planned gears waste {waste:.1%} at {WASTE_LOAD}, wanted {MAX_WASTE:.0%}")
        return 1
    return 0


def _simulated(machine: Machine, count: int, seed: int) -> dict[tuple[float, str], float]:
    trace = synthetic_trace(count, machine.limits.max_model_len, seed)
    compared = policies(machine.table, machine.costs, TARGETS)
    compared[DETERMINISTIC] = SchedulerOptions(machine.costs, TARGETS, deterministic=True)
    most = saturation(trace, machine, compared[MEASURED])
    _say(f"\nsimulated: {machine.name}; {count} requests, saturated at {most:.2f} requests/s")
    _say(HEADINGS)

    def run_of(policy: str) -> Callable[[list[TracedRequest]], Replayed]:
        return lambda arrivals: replay(arrivals, machine, compared[policy])

    runs = {name: run_of(name) for name in compared}
    return {
        (load, name): waste
        for load in LOADS
        for name, waste in _lines(runs, load, at_rate(trace, load * most)).items()
    }


def _live(options: argparse.Namespace) -> None:
    model, count = Manifest.read(options.bundle).model, options.live_requests
    trace = [_shorter(r) for r in synthetic_trace(count, model.max_model_len, options.seed)]
    threads = len(os.sched_getaffinity(0))
    with engines(options.bundle, options.device, TARGETS) as by_policy:
        most = live_saturation(by_policy[MEASURED], trace)
        _say(
            f"\nreal time: {model.name} on {options.device}, {platform.machine()}, {threads} "
            f"threads, load of the machine before {os.getloadavg()[0]:.1f}; {count} requests, "
            f"lengths divided by {LIVE_DIVISOR}, saturated at {most:.2f} requests/s"
        )
        _say(HEADINGS)

        def run_of(policy: str) -> Callable[[list[TracedRequest]], Replayed]:
            return lambda arrivals: LiveReplay(by_policy[policy], arrivals).run()

        runs = {name: run_of(name) for name in by_policy}
        for load in options.live_loads:
            _lines(runs, load, at_rate(trace, load * most))


def _lines(runs: Runs, load: float, arrivals: list[TracedRequest]) -> dict[str, float]:
    """Print a line for each policy; the waste of each."""
    wastes = {}
    for name, run in runs.items():
        figures = figures_of(run(arrivals), TARGETS)
        wastes[name] = figures.waste
        _say(line_of(load, name, figures))
    return wastes


def _shorter(traced: TracedRequest) -> TracedRequest:
    return replace(
        traced,
        num_prompt_tokens=max(1, traced.num_prompt_tokens // LIVE_DIVISOR),
        num_output_tokens=max(1, traced.num_output_tokens // LIVE_DIVISOR),
    )


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
