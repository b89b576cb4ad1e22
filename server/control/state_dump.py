"""The state of a server as one JSON object, for a report of a defect.

Owns what is in it, and its size: no prompt, text, token, salt or key, and what is too long is cut
and named.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from omruntime.blocks.block_pool import BlockState
from omruntime.engine_state import MAX_LISTED_BLOCKS
from server.control.inspector import MAX_WAIT_S, Look
from server.control.load_watch import LoadSnapshot
from server.lifecycle import Lifecycle
from server.logs import log_level
from server.seams import EngineLike
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class Dump:
    """The object as text, and what was left out of it, one line for each."""

    text: str
    cuts: tuple[str, ...]


def dump_state(
    version: str, settings: Settings, lifecycle: Lifecycle, engine: EngineLike, now: LoadSnapshot
) -> Dump:
    """Write everything down; `now` with everybody's answers."""
    manifest = engine.manifest
    facts = {
        "version": version,
        "state": now.state.value,
        "detail": lifecycle.detail,
        "uptime_s": now.uptime_s,
        "log_level": log_level(),
        "settings": dataclasses.asdict(settings),
        "limits": dataclasses.asdict(engine.limits),
        "model": {
            "architecture": manifest.model.architecture,
            "profile": manifest.profile,
            "soc": manifest.soc,
            "kv_identity": manifest.kv_identity,
            "block_size": manifest.kv.block_size,
            "bundle": manifest.digest(),
        },
        "num_requests": now.num_requests,
        "num_refused": dict(now.counts.num_refused),
        "load": dataclasses.asdict(now.load),
        "counters": dataclasses.asdict(now.counters),
        "engine": None if now.look is None else _engine_of(now.look),
    }
    cuts = _cuts(now.look, now.load.num_total_blocks)
    return Dump(json.dumps(facts, default=str, indent=1), tuple(cuts))


def _engine_of(look: Look) -> dict[str, object]:
    state = look.state
    return {
        "age_s": look.age_s,
        "warm_up_s": state.warm_up_s,
        "switch_s": state.switch_s,
        "num_answers": state.num_sequences,
        "answers": [dataclasses.asdict(sequence) for sequence in state.sequences],
        "buckets": [
            {**dataclasses.asdict(report), "bucket": str(report.bucket)} for report in state.buckets
        ],
        "blocks": _runs_of(state.block_states),
    }


def _runs_of(block_states: bytes) -> list[tuple[str, int]]:
    """Neighbours of one state together, from block 1 on."""
    return [
        (BlockState(state).name.lower(), len(list(run))) for state, run in groupby(block_states)
    ]


def _cuts(look: Look | None, num_blocks: int) -> Iterator[str]:
    if look is None:
        yield "engine: it has never answered"
        return
    state = look.state
    if look.age_s > MAX_WAIT_S:
        yield f"engine: it has not answered for {look.age_s:.1f} s, so this is from before"
    if len(state.sequences) < state.num_sequences:
        yield f"engine.answers: {len(state.sequences)} of {state.num_sequences}"
    long = [s for s in state.sequences if len(s.block_ids) < s.num_blocks]
    if long:
        yield f"engine.answers: block_ids of {len(long)} end after {MAX_LISTED_BLOCKS}"
    if len(state.block_states) < num_blocks:
        yield f"engine.blocks: {len(state.block_states)} of {num_blocks}"
