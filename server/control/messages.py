"""What the server holds and has done -> the messages of `omserve.v1.ControlService`."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

from omruntime.buckets import Phase
from omruntime.costs.bucket_use import BucketReport
from omruntime.engine_state import EngineState, SequenceState
from omruntime.outputs import EngineLoad
from omruntime.sequence import SequenceStatus
from server.control.inspector import Look
from server.control.load_watch import LoadSnapshot
from server.control.request_counts import Histogram
from server.lifecycle import ServerState
from server.pb import control_pb2 as pb

STATE_TO_WIRE = {
    ServerState.LOADING: pb.SERVER_STATE_LOADING,
    ServerState.SERVING: pb.SERVER_STATE_SERVING,
    ServerState.DRAINING: pb.SERVER_STATE_DRAINING,
    ServerState.FAILED: pb.SERVER_STATE_FAILED,
}
LEVEL_TO_WIRE = {
    "debug": pb.LOG_LEVEL_DEBUG,
    "info": pb.LOG_LEVEL_INFO,
    "warning": pb.LOG_LEVEL_WARNING,
    "error": pb.LOG_LEVEL_ERROR,
}
LEVEL_FROM_WIRE = {wire: level for level, wire in LEVEL_TO_WIRE.items()}
_PHASE_NAMES = {Phase.PREFILL: "PHASE_PREFILL", Phase.DECODE: "PHASE_DECODE"}

Fields = dict[str, Any]
"""Of a message, by name."""


def load_to(load: EngineLoad) -> pb.GetLoadResponse:
    """What the engine holds."""
    return pb.GetLoadResponse(**dataclasses.asdict(load))


def buckets_to(state: EngineState, num_switches: int, is_simulated: bool) -> pb.GetBucketsResponse:
    """All buckets."""
    return pb.GetBucketsResponse(
        buckets=[pb.BucketUse(**_bucket(report)) for report in state.buckets],
        warm_up_s=state.warm_up_s,
        switch_s=state.switch_s,
        num_switches=num_switches,
        is_simulated=is_simulated,
    )


def snapshot_to(snapshot: LoadSnapshot) -> pb.WatchLoadResponse:
    """One event of WatchLoad."""
    return pb.WatchLoadResponse(**snapshot_fields(snapshot))


def snapshot_json(snapshot: LoadSnapshot) -> Fields:
    """The same as protobuf's JSON has it, but for counts, which are numbers here.

    By hand, since protobuf's own way takes five times as long.
    """
    fields = snapshot_fields(snapshot)
    if "details" in fields:
        states: bytes = fields["details"]["block_states"]
        fields["details"]["block_states"] = base64.b64encode(states).decode("ascii")
    return fields


def snapshot_fields(snapshot: LoadSnapshot) -> Fields:
    """The fields of an event, by name, with enum values by name."""
    counters, counts = snapshot.counters, snapshot.counts
    fields: Fields = {
        "uptime_s": snapshot.uptime_s,
        "state": pb.ServerState.Name(STATE_TO_WIRE[snapshot.state]),
        "num_requests": snapshot.num_requests,
        "load": dataclasses.asdict(snapshot.load),
        "num_steps": counters.num_steps,
        "num_prefill_tokens": counters.num_prefill_tokens,
        "num_generated_tokens": counters.num_generated_tokens,
        "num_computed_tokens": counters.num_computed_tokens,
        "num_padded_tokens": counters.num_step_places - counters.num_computed_tokens,
        "num_bucket_switches": counters.num_bucket_switches,
        "num_refused": dict(counts.num_refused),
        "time_to_first_token": _histogram(counts.time_to_first_token),
        "inter_token": _histogram(counts.inter_token),
        "request": _histogram(counts.request),
        "is_simulated": snapshot.is_simulated,
    }
    if snapshot.look is not None:
        fields["details"] = _details(snapshot.look)
    return fields


def _details(look: Look) -> Fields:
    state = look.state
    return {
        "age_s": look.age_s,
        "answers": [_answer(sequence) for sequence in state.sequences],
        "buckets": [_bucket(report) for report in state.buckets],
        "block_states": state.block_states,
    }


def _bucket(report: BucketReport) -> Fields:
    bucket = report.bucket
    return {
        "phase": _PHASE_NAMES[bucket.phase],
        "batch": bucket.batch,
        "tokens": bucket.tokens,
        "past_blocks": bucket.past_blocks,
        "predicted_s": report.predicted_s,
        "is_measured": report.is_measured,
        "num_steps": report.num_steps,
        "num_computed_rows": report.num_rows,
        "num_padded_rows": report.num_padded_rows,
        "num_computed_tokens": report.num_tokens,
        "num_padded_tokens": report.num_padded_tokens,
        "warm_up_s": report.warm_up_s,
    }


def _answer(state: SequenceState) -> Fields:
    return {
        "request_id": state.request_id,
        "tenant": state.tenant,
        "is_running": state.status == SequenceStatus.RUNNING.value,
        "num_prompt_tokens": state.num_prompt_tokens,
        "num_output_tokens": state.num_output_tokens,
        "num_computed_tokens": state.num_computed_tokens,
        "num_cached_tokens": state.num_cached_tokens,
        "num_blocks": state.num_blocks,
        "num_preemptions": state.num_preemptions,
        "age_s": state.age_s,
    }


def _histogram(histogram: Histogram) -> Fields:
    return {
        "bounds_s": list(histogram.bounds_s),
        "counts": list(histogram.counts),
        "sum_s": histogram.sum_s,
    }
