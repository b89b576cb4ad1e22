"""What `om-client` prints of a server's state: lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from server.pb import control_pb2 as pb

SIMULATED_TIMES = "a SIMULATION, whose times say nothing of a card"


def info_lines(server: pb.GetServerInfoResponse, model: pb.GetModelInfoResponse) -> Iterator[str]:
    """Server and model, a line for each matter."""
    state = pb.ServerState.Name(server.state).removeprefix("SERVER_STATE_").lower()
    simulated = ", a SIMULATION" if server.is_simulated else ""
    ends = ", ".join(map(str, model.eos_token_ids)) or "none"
    unset = model.sampling_defaults
    detail = f": {server.detail}" if server.detail else ""
    yield f"server       omserve {server.version}, {state}{detail}"
    yield f"device       {server.device}{simulated}; bundle for {model.profile} ({model.soc})"
    yield f"model        {model.name} ({model.architecture}, {model.dtype})"
    yield (
        f"limits       {model.max_model_len} tokens of prompt and answer, {model.max_num_seqs} "
        f"answers at once, {server.max_message_bytes:,} bytes a message"
    )
    yield f"vocabulary   {model.vocab_size}; ends: {ends} ({model.eos_source})"
    yield (
        f"unset means  temperature {unset.temperature:g}, top_k {unset.top_k}, top_p "
        f"{unset.top_p:g}, min_p {unset.min_p:g}, repetition_penalty {unset.repetition_penalty:g}"
    )


def load_lines(snapshot: pb.WatchLoadResponse) -> Iterator[str]:
    """One snapshot, a line for each matter."""
    load = snapshot.load
    held, total = load.num_referenced_blocks, load.num_total_blocks
    free_cached = load.num_free_cached_blocks
    state = pb.ServerState.Name(snapshot.state).removeprefix("SERVER_STATE_").lower()
    finished = ", ".join(f"{n} {reason}" for reason, n in sorted(load.num_finished.items()) if n)
    refused = ", ".join(f"{n} {error}" for error, n in sorted(snapshot.num_refused.items()))
    yield f"state        {state}, up {snapshot.uptime_s:.0f} s"
    if snapshot.is_simulated:
        yield f"device       {SIMULATED_TIMES}"
    yield f"requests     {load.num_running} running, {load.num_waiting} waiting"
    yield f"finished     {finished or 'none'}"
    yield f"refused      {refused or 'none'}"
    yield f"kv blocks    {held} held, {free_cached} cached, {total - held - free_cached} empty"
    yield (
        f"tokens       {snapshot.num_generated_tokens} generated, {snapshot.num_prefill_tokens} "
        f"prefilled, {load.num_prefix_hit_tokens} from the prefix cache"
    )
    yield f"padding      {percent(snapshot.num_padded_tokens, snapshot.num_computed_tokens)}"
    yield f"preempted    {load.num_preemptions}"
    for name, histogram in (
        ("first token", snapshot.time_to_first_token),
        ("next tokens", snapshot.inter_token),
    ):
        yield f"{name:13}{mean_text(histogram)}"


def bucket_table(response: pb.GetBucketsResponse) -> Iterator[str]:
    """Every bucket, one a line."""
    head = ("phase", "batch", "tokens", "past", "predicted", "steps", "padding", "warm-up")
    rows = [
        (
            pb.Phase.Name(b.phase).removeprefix("PHASE_").lower(),
            str(b.batch),
            str(b.tokens),
            str(b.past_blocks),
            f"{b.predicted_s * 1000:.1f} ms" + ("" if b.is_measured else " ?"),
            str(b.num_steps),
            percent(b.num_padded_tokens, b.num_computed_tokens),
            f"{b.warm_up_s:.2f} s" if b.warm_up_s else "-",
        )
        for b in response.buckets
    ]
    if response.is_simulated:
        yield SIMULATED_TIMES
    yield from _aligned([head, *rows])
    yield (
        f"{response.num_switches} switches; warm-up {response.warm_up_s:.1f} s; "
        f"predictions marked ? rest on other buckets"
    )


def drain_line(progress: pb.DrainResponse) -> str:
    """One event of Drain."""
    if progress.is_drained:
        return f"drained, {progress.num_aborted} aborted"
    how = "refusing new ones" if progress.is_refusing else "unhealthy, still taking new ones"
    return (
        f"{progress.num_requests} requests left ({progress.num_running} running, "
        f"{progress.num_waiting} waiting), {how}"
    )


def percent(part: int, rest: int) -> str:
    """The share of `part` in both; - when there is neither."""
    return f"{100 * part / (part + rest):.1f} %" if part + rest else "-"


def mean_text(histogram: pb.DurationHistogram) -> str:
    """The mean of all durations in milliseconds."""
    count = sum(histogram.counts)
    return f"{histogram.sum_s / count * 1000:.1f} ms on average" if count else "-"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
