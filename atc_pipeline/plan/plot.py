"""A plan as a picture: where the time of a request goes, before and after.

Owns matplotlib, and draws without a display.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from atc_pipeline.plan.evaluate import TrafficCost
from atc_pipeline.plan.planner import Plan
from atc_pipeline.plan.report import shares_of
from omruntime.buckets import Bucket, Phase
from omruntime.errors import ConfigError

_NEEDED, _PADDED = "tab:blue", "tab:orange"


def draw_plan(plan: Plan, path: Path) -> None:
    """Write a PNG: time with its padding on the left, steps by bucket on the right.

    Raises:
        ConfigError: The file cannot be written, or its name says that it is something else.
    """
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot is {path}, wanted a name that ends in .png: it is a PNG picture")
    figure = Figure(figsize=(13, 5), layout="constrained")
    FigureCanvasAgg(figure)
    times, prefill, decode = figure.subplots(1, 3)
    _draw_times(times, plan)
    _draw_steps(prefill, plan, Phase.PREFILL)
    _draw_steps(decode, plan, Phase.DECODE)
    figure.suptitle(
        f"{len(plan.traffic.requests)} requests on {plan.request.soc.name}, estimated from its "
        f"peaks"
    )
    try:
        figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
    except OSError as error:
        raise ConfigError(f"cannot write the plot {path}: {error}") from error


def _draw_times(axes: Axes, plan: Plan) -> None:
    columns = [
        *_columns(f"default\n{len(plan.default_buckets)} buckets", plan.before),
        *_columns(f"plan\n{len(plan.buckets)} buckets", plan.after),
    ]
    names = [name for name, _, _ in columns]
    needed = [exact * 1e3 for _, exact, _ in columns]
    padding = [(padded - exact) * 1e3 for _, exact, padded in columns]
    axes.bar(names, needed, color=_NEEDED, label="needed")
    axes.bar(names, padding, bottom=needed, color=_PADDED, label="padding")
    axes.set_ylabel("least time for each request, ms")
    axes.tick_params(axis="x", labelsize=8)
    axes.legend()


def _columns(name: str, cost: TrafficCost) -> list[tuple[str, float, float]]:
    return [
        (f"{name}\n{phase}", part.exact_s, part.padded_s)
        for phase, part in (("prefill", cost.prefill), ("decode", cost.decode))
    ]


def _draw_steps(axes: Axes, plan: Plan, phase: Phase) -> None:
    shares = {b: n for b, n in shares_of(plan, plan.buckets).items() if b.phase is phase}
    axes.barh([_label(bucket) for bucket in shares], list(shares.values()), color=_NEEDED)
    axes.invert_yaxis()
    axes.set_xlabel("steps for each request")
    axes.set_title(f"{phase.value} buckets")


def _label(bucket: Bucket) -> str:
    first = bucket.batch if bucket.phase is Phase.DECODE else bucket.tokens
    unit = "rows" if bucket.phase is Phase.DECODE else "tokens"
    return f"{first} {unit}, {bucket.past_blocks} blocks"
