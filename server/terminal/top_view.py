"""What `om-client top` shows: a frame for a terminal, or a line where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from server.pb import control_pb2 as pb
from server.terminal.tables import SIMULATED_TIMES, percent
from server.terminal.top_figures import FigureHistory, Figures

BARS = "▁▂▃▄▅▆▇█"
HEADINGS = ("omserve ", "ANSWER", "BUCKET")
"""How the lines begin that stand above others."""

_MAX_BUCKETS = 5
_LABEL = 12


def frame(history: FigureHistory, snapshot: pb.WatchLoadResponse, size: tuple[int, int]) -> str:
    """One screen of `size` columns and lines; nothing is wider or longer."""
    width, height = size
    lines = [*_head(history, snapshot, width), ""]
    buckets = list(_bucket_lines(snapshot.details.buckets))
    left = height - len(lines) - len(buckets) - 1
    lines += _answer_lines(snapshot.details.answers, snapshot.load, left)
    lines += ["", *buckets]
    return "\n".join(_printable(line)[:width] for line in lines[:height])


def line(figures: Figures, snapshot: pb.WatchLoadResponse) -> str:
    """One snapshot for a script or a log: key=value, - where nothing is known."""
    load = snapshot.load
    values: dict[str, object] = {
        "uptime_s": f"{snapshot.uptime_s:.1f}",
        "state": _state(snapshot),
        "simulated": str(snapshot.is_simulated).lower(),
        "running": load.num_running,
        "waiting": load.num_waiting,
        "generated_per_s": _number(figures.generated),
        "prefilled_per_s": _number(figures.prefilled),
        "first_token_median_s": _seconds(figures.first_token_s, 0),
        "first_token_p95_s": _seconds(figures.first_token_s, 1),
        "next_token_median_s": _seconds(figures.next_token_s, 0),
        "next_token_p95_s": _seconds(figures.next_token_s, 1),
        "blocks_held": load.num_referenced_blocks,
        "blocks_cached": load.num_free_cached_blocks,
        "blocks": load.num_total_blocks,
        "padding": "-" if figures.padding is None else f"{figures.padding:.3f}",
        "preemptions": load.num_preemptions,
    }
    return " ".join(f"{name}={value}" for name, value in values.items())


def _head(history: FigureHistory, snapshot: pb.WatchLoadResponse, width: int) -> Iterable[str]:
    load, now = snapshot.load, history.points[-1]
    finished = sum(load.num_finished.values())
    refused = sum(snapshot.num_refused.values())
    simulated = f"; {SIMULATED_TIMES}" if snapshot.is_simulated else ""
    yield f"omserve {_state(snapshot)}, up {duration(snapshot.uptime_s)}{simulated}"
    yield _row(
        "answers",
        f"{load.num_running} running, {load.num_waiting} waiting; since start {finished} ended, "
        f"{refused} refused, {load.num_preemptions} preempted",
    )
    yield _row("blocks", _blocks(load, width - _LABEL))
    padding = "-" if now.padding is None else f"{now.padding:.0%}".replace("%", " %")
    yield _row(
        "steps", f"{_number(now.steps)}/s, {_number(now.switches)} switches/s, padding {padding}"
    )
    chart = max(0, width - _LABEL - 32)
    points = history.points
    for name, text, values in (
        ("generated", f"{_number(now.generated)} tokens/s", [p.generated for p in points]),
        ("prefilled", f"{_number(now.prefilled)} tokens/s", [p.prefilled for p in points]),
        ("first token", _pair(now.first_token_s), [_median(p.first_token_s) for p in points]),
        ("next tokens", _pair(now.next_token_s), [_median(p.next_token_s) for p in points]),
    ):
        yield _row(name, f"{text:30}  {spark(values, chart)}")


def _answer_lines(
    answers: Sequence[pb.LiveAnswer], load: pb.GetLoadResponse, max_lines: int
) -> Iterable[str]:
    """A table of as many answers as there is room for, and how many there are."""
    live = load.num_running + load.num_waiting
    num_shown = max(0, min(len(answers), max_lines - 1))
    count = "" if num_shown >= live else f" ({num_shown} of {live})"
    names = ("STATE", "PROMPT", "TOKENS", "CACHED", "BLOCKS", "AGE")
    yield f"{f'ANSWER{count}':36}" + "".join(f"{name:>8}" for name in names)
    for answer in answers[:num_shown]:
        yield (
            f"{_cut(answer.request_id, 35):36}{_phase(answer):>8}{answer.num_prompt_tokens:>8}"
            f"{answer.num_output_tokens:>8}{answer.num_cached_tokens:>8}{answer.num_blocks:>8}"
            f"{duration(answer.age_s):>8}"
        )


def _bucket_lines(buckets: Iterable[pb.BucketUse]) -> Iterable[str]:
    """A table of the buckets that ran most."""
    used = sorted((b for b in buckets if b.num_steps), key=lambda b: -b.num_steps)
    if not used:
        return
    yield f"{'BUCKET':36}{'STEPS':>8}{'PADDING':>10}{'PREDICTED':>12}"
    for bucket in used[:_MAX_BUCKETS]:
        phase = pb.Phase.Name(bucket.phase).removeprefix("PHASE_").lower()
        shape = f"{phase} {bucket.batch} x {bucket.tokens}, past {bucket.past_blocks}"
        padding = percent(bucket.num_padded_tokens, bucket.num_computed_tokens)
        yield f"{shape:36}{bucket.num_steps:>8}{padding:>10}{duration(bucket.predicted_s):>12}"


def _phase(answer: pb.LiveAnswer) -> str:
    if not answer.is_running:
        return "waits"
    return "prefill" if answer.num_computed_tokens < answer.num_prompt_tokens else "decode"


def _blocks(load: pb.GetLoadResponse, width: int) -> str:
    """A bar of held, cached and empty blocks, and their numbers."""
    held, cached, total = (
        load.num_referenced_blocks,
        load.num_free_cached_blocks,
        load.num_total_blocks,
    )
    text = f"{held} held, {cached} cached, {total - held - cached} empty"
    cells = max(0, min(40, width - len(text) - 2))
    num_held = round(cells * held / total) if total else 0
    num_cached = round(cells * cached / total) if total else 0
    bar = ("#" * num_held + "+" * num_cached)[:cells]
    return f"{bar:.<{cells}}  {text}" if cells else text


def spark(values: Sequence[float | None], width: int) -> str:
    """The latest values as a line of bars, the greatest as a full one; a space where none is."""
    shown = list(values)[-width:] if width else []
    most = max((v for v in shown if v is not None), default=0.0)
    return "".join(
        " " if v is None else BARS[min(7, int(8 * v / most))] if most else BARS[0] for v in shown
    )


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _state(snapshot: pb.WatchLoadResponse) -> str:
    return pb.ServerState.Name(snapshot.state).removeprefix("SERVER_STATE_").lower()


def _row(name: str, text: str) -> str:
    return f"{name:{_LABEL}}{text}"


def _pair(found: tuple[float, float] | None) -> str:
    return "-" if found is None else f"{duration(found[0])}, 95 % {duration(found[1])}"


def _median(found: tuple[float, float] | None) -> float | None:
    return None if found is None else found[0]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _seconds(found: tuple[float, float] | None, which: int) -> str:
    return "-" if found is None else f"{found[which]:.3f}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


def _printable(text: str) -> str:
    """Nothing that a terminal would obey: ids may come from anybody."""
    return "".join(c if c.isprintable() else "?" for c in text)
