"""Probes of gears and of weights that several programs share."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from atc_pipeline.atc.options import ExternalWeight
from atc_pipeline.om_facts import read_program_facts
from atc_pipeline.probe.bench import Bench
from atc_pipeline.probe.card import Card, Memory
from atc_pipeline.probe.compiler import Shape
from atc_pipeline.probe.graphs import WIDTH, matmul_chain, weights
from atc_pipeline.probe.loaded_om import LoadedOm
from atc_pipeline.probe.outcome import Outcome, Result, judge, measured, no_answer
from omruntime.om_file import GEAR_INPUT

_GEARS = (2, 8, 32)
_GEAR_SHAPE = Shape({"x": (-1, WIDTH)}, tuple((batch,) for batch in _GEARS))
_TIMED_CALLS = 200
# Alignment and descriptors may differ a little; a second copy would double it.
_MOST_WEIGHT_GROWTH = 1.25
# Source: hicann/ge docs/zh/api/graph_engine_api/c/acl, aclmdlConfigAttr and aclmdlLoadType.
_LOAD_TYPE, _PATH = 1, 2
_FROM_FILE = 1
_WEIGHT_ALIGNMENT = 32


def gear_weights(bench: Bench) -> Outcome:
    """An OM of three gears holds its weights once."""
    gears = bench.compiler.facts(matmul_chain(), _GEAR_SHAPE).weight_bytes
    static = bench.compiler.facts(matmul_chain(), Shape({"x": (8, WIDTH)})).weight_bytes
    if not gears or not static:
        return no_answer(f"the OMs name weight sizes {gears} and {static}")
    return judge(
        gears <= _MOST_WEIGHT_GROWTH * static, f"{gears} bytes with 3 gears, {static} with one"
    )


def gear_packing(bench: Bench) -> Outcome:
    """A small gear's data lies packed at the start of buffers made for the largest."""
    with bench.load(bench.compiler.compile(matmul_chain(), _GEAR_SHAPE)) as loaded:
        x = _input(2)
        loaded.inputs[0].write(x.tobytes())
        loaded.set_gear((2, WIDTH))
        loaded.run()
        return _judge_product(loaded, x)


def gear_cost(bench: Bench) -> Outcome:
    """What choosing another gear costs."""
    with bench.load(bench.compiler.compile(matmul_chain(), _GEAR_SHAPE)) as loaded:
        started = time.perf_counter()
        for call in range(_TIMED_CALLS):
            loaded.set_gear((_GEARS[call % 2], WIDTH))
        took = (time.perf_counter() - started) / _TIMED_CALLS
        return measured(f"{took * 1e6:.0f} us a call, each one another gear")


def gears_in_file(bench: Bench) -> Outcome:
    """Inputs and gears that our reader finds in the file are those that acl reports."""
    om = bench.compiler.compile(matmul_chain(), _GEAR_SHAPE)
    info = read_program_facts(om)
    with bench.load(om) as loaded:
        mdl = bench.card.acl.mdl
        count, status = mdl.get_input_dynamic_gear_count(loaded.desc, -1)
        bench.card.check("mdl.get_input_dynamic_gear_count", status)
        dims, status = mdl.get_input_dynamic_dims(loaded.desc, -1, count)
        bench.card.check("mdl.get_input_dynamic_dims", status)
        told = sorted(tuple(gear["dims"][: gear["dimCount"]]) for gear in dims)
        read = sorted((*gear, WIDTH) for gear in info.gears.values) if info.gears else []
        names = sorted({tensor.name for tensor in info.inputs} | {GEAR_INPUT})
        same = told == read and sorted(loaded.input_names) == names
        return judge(same, f"acl: {told} over {loaded.input_names}; file: {read} over {names}")


def external_weight_names(bench: Bench) -> Outcome:
    """Two OMs of one graph name their external weights alike."""
    first, second = (sorted(_weights_of(om)) for om in _two_oms(bench))
    return judge(bool(first) and first == second, f"{len(first)} and {len(second)} files: {first}")


def external_weight_address(bench: Bench) -> Outcome:
    """Two OMs run on one copy of their weights in device memory."""
    oms = _two_oms(bench)
    files = {name: data for om in oms for name, data in _weights_of(om).items()}
    memories = {name: _upload(bench.card, data) for name, data in files.items()}
    try:
        said = []
        for om, batch in zip(oms, (2, 8), strict=True):
            with LoadedOm(bench.card, _load_shared(bench, om, memories)) as loaded:
                x = _input(batch)
                loaded.inputs[0].write(x.tobytes())
                loaded.run()
                said.append(_judge_product(loaded, x))
    finally:
        for memory in memories.values():
            memory.free()
    right = all(outcome.result is Result.CONFIRMED for outcome in said)
    return judge(right and bool(memories), "; ".join(outcome.seen for outcome in said))


def _two_oms(bench: Bench) -> tuple[Path, Path]:
    first, second = (
        bench.compiler.compile(
            matmul_chain(), Shape({"x": (batch, WIDTH)}, external_weight=ExternalWeight.FILES)
        )
        for batch in (2, 8)
    )
    return first, second


def _weights_of(om: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((om.parent / "weight").glob("*"))}


def _upload(card: Card, data: bytes) -> Memory:
    memory = Memory(card, -(-len(data) // _WEIGHT_ALIGNMENT) * _WEIGHT_ALIGNMENT)
    memory.write(data)
    return memory


def _load_shared(bench: Bench, om: Path, memories: dict[str, Memory]) -> int:
    card, mdl = bench.card, bench.card.acl.mdl
    handle = mdl.create_config_handle()
    try:
        for attr, value in ((_LOAD_TYPE, _FROM_FILE), (_PATH, str(om))):
            card.check("mdl.set_config_opt", mdl.set_config_opt(handle, attr, value))
        for name in _weights_of(om):
            memory = memories[name]
            status = bench.set_external_weight(handle, name, memory.address, memory.nbytes)
            card.check("aclmdlSetExternalWeightAddress", status)
        model_id, status = mdl.load_with_config(handle)
        card.check("mdl.load_with_config", status)
        return model_id
    finally:
        mdl.destroy_config_handle(handle)


def _input(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, WIDTH)).astype(np.float16)


def _judge_product(loaded: LoadedOm, x: np.ndarray) -> Outcome:
    """The output's first rows against `(x @ w0) @ w1`."""
    got = np.frombuffer(loaded.outputs[0].read(x.nbytes), np.float16).reshape(x.shape)
    wanted = x.astype(np.float64) @ weights(0).astype(np.float64) @ weights(1).astype(np.float64)
    # What a card gives may be no number at all.
    with np.errstate(invalid="ignore"):
        diff = float(np.abs(got.astype(np.float64) - wanted).max())
    return judge(diff <= 0.02 * float(np.abs(wanted).max()), f"{len(x)} rows off by {diff:.2g}")
