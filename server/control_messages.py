"""What the server holds and has done -> the messages of `omserve.v1.ControlService`."""

from __future__ import annotations

import dataclasses

from omruntime.bucket_use import BucketReport
from omruntime.buckets import Phase
from omruntime.engine_state import EngineState, SequenceState
from omruntime.outputs import EngineLoad
from omruntime.sequence import SequenceStatus
from server.inspector import Look
from server.lifecycle import ServerState
from server.load_watch import LoadSnapshot
from server.pb import control_pb2 as pb
from server.request_counts import Histogram

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
_PHASE_TO_WIRE = {Phase.PREFILL: pb.PHASE_PREFILL, Phase.DECODE: pb.PHASE_DECODE}


def load_to(load: EngineLoad) -> pb.GetLoadResponse:
    """What the engine holds."""
    return pb.GetLoadResponse(**dataclasses.asdict(load))


def bucket_to(report: BucketReport) -> pb.BucketUse:
    """One bucket and its use."""
    bucket = report.bucket
    return pb.BucketUse(
        phase=_PHASE_TO_WIRE[bucket.phase],
        batch=bucket.batch,
        tokens=bucket.tokens,
        past_blocks=bucket.past_blocks,
        predicted_s=report.predicted_s,
        is_measured=report.is_measured,
        num_steps=report.num_steps,
        num_computed_rows=report.num_rows,
        num_padded_rows=report.num_padded_rows,
        num_computed_tokens=report.num_tokens,
        num_padded_tokens=report.num_padded_tokens,
        warm_up_s=report.warm_up_s,
    )


def buckets_to(state: EngineState, num_switches: int) -> pb.GetBucketsResponse:
    """All buckets."""
    return pb.GetBucketsResponse(
        buckets=map(bucket_to, state.buckets),
        warm_up_s=state.warm_up_s,
        switch_s=state.switch_s,
        num_switches=num_switches,
    )


def snapshot_to(snapshot: LoadSnapshot) -> pb.WatchLoadResponse:
    """One event of WatchLoad."""
    counters, counts = snapshot.counters, snapshot.counts
    return pb.WatchLoadResponse(
        uptime_s=snapshot.uptime_s,
        state=STATE_TO_WIRE[snapshot.state],
        num_requests=snapshot.num_requests,
        load=load_to(snapshot.load),
        num_steps=counters.num_steps,
        num_prefill_tokens=counters.num_prefill_tokens,
        num_generated_tokens=counters.num_generated_tokens,
        num_computed_tokens=counters.num_computed_tokens,
        num_padded_tokens=counters.num_step_places - counters.num_computed_tokens,
        num_bucket_switches=counters.num_bucket_switches,
        num_refused=counts.num_refused,
        time_to_first_token=_histogram_to(counts.time_to_first_token),
        inter_token=_histogram_to(counts.inter_token),
        request=_histogram_to(counts.request),
        details=None if snapshot.look is None else _details_to(snapshot.look),
    )


def _details_to(look: Look) -> pb.LoadDetails:
    state = look.state
    return pb.LoadDetails(
        age_s=look.age_s,
        answers=map(_answer_to, state.sequences),
        buckets=map(bucket_to, state.buckets),
        block_states=state.block_states,
    )


def _answer_to(state: SequenceState) -> pb.LiveAnswer:
    return pb.LiveAnswer(
        request_id=state.request_id,
        tenant=state.tenant,
        is_running=state.status == SequenceStatus.RUNNING.value,
        num_prompt_tokens=state.num_prompt_tokens,
        num_output_tokens=state.num_output_tokens,
        num_computed_tokens=state.num_computed_tokens,
        num_cached_tokens=state.num_cached_tokens,
        num_blocks=state.num_blocks,
        num_preemptions=state.num_preemptions,
        age_s=state.age_s,
    )


def _histogram_to(histogram: Histogram) -> pb.DurationHistogram:
    return pb.DurationHistogram(
        bounds_s=histogram.bounds_s, counts=histogram.counts, sum_s=histogram.sum_s
    )
