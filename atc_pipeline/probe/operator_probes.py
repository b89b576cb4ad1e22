"""Probes of operators and precision: does the compiled graph compute what the file says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atc_pipeline.probe.bench import Bench
from atc_pipeline.probe.compiler import Shape
from atc_pipeline.probe.graphs import (
    WIDTH,
    ProbeGraph,
    float32_island,
    gather_rows,
    is_nan,
    rms_norm,
    rotary,
    scatter_nd,
)
from atc_pipeline.probe.outcome import Outcome, judge, measured

_ROWS = 4
# Two roundings of float16 around 1, and what a fused kernel may add.
_TOLERANCE = 4e-3
_EPSILON = 1e-6

Half = NDArray[np.float16]


def _run_static(
    bench: Bench, graph: ProbeGraph, arrays: dict[str, NDArray[np.generic]], shape: tuple[int, ...]
) -> Half:
    """Compile for the shapes of `arrays`, run once, return the float16 output."""
    om = bench.compiler.compile(graph, Shape({n: a.shape for n, a in arrays.items()}))
    with bench.load(om) as loaded:
        for name, memory in zip(loaded.input_names, loaded.inputs, strict=True):
            memory.write(arrays[name].tobytes())
        loaded.run()
        nbytes = 2 * int(np.prod(shape))
        return np.frombuffer(loaded.outputs[0].read(nbytes), np.float16).reshape(shape)


def _random(seed: int, *shape: int) -> Half:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def _close(got: Half, wanted: NDArray[np.float64]) -> Outcome:
    with np.errstate(invalid="ignore"):
        diff = float(np.abs(got.astype(np.float64) - wanted).max())
    # Written so that a NaN refutes.
    return judge(diff <= _TOLERANCE * max(1.0, float(np.abs(wanted).max())), f"off by {diff:.2g}")


def npu_rms_norm(bench: Bench) -> Outcome:
    """NPURmsNorm of domain npu at opset 18, against its definition."""
    x = _random(1, _ROWS, WIDTH)
    got = _run_static(bench, rms_norm(), {"x": x}, (_ROWS, WIDTH))
    wide = x.astype(np.float64)
    gamma = np.linspace(0.5, 1.5, WIDTH)
    return _close(got, wide / np.sqrt((wide**2).mean(1, keepdims=True) + _EPSILON) * gamma)


def npu_rotary_mul(bench: Bench) -> Outcome:
    """NPURotaryMul of domain npu at opset 18, half mode, against its definition."""
    x = _random(2, _ROWS, 2, 1, WIDTH)
    angles = np.random.default_rng(3).uniform(0, 6, (_ROWS, 1, 1, WIDTH))
    cos, sin = np.cos(angles).astype(np.float16), np.sin(angles).astype(np.float16)
    got = _run_static(bench, rotary(), {"x": x, "cos": cos, "sin": sin}, x.shape)
    wide = x.astype(np.float64)
    turned = np.concatenate([-wide[..., WIDTH // 2 :], wide[..., : WIDTH // 2]], axis=-1)
    return _close(got, wide * cos + turned * sin)


def int32_inputs(bench: Bench) -> Outcome:
    """An int32 graph input arrives as it was written."""
    pool, ids = _random(4, 32, WIDTH), np.asarray([31, 0, 7, 7], np.int32)
    got = _run_static(bench, gather_rows(), {"ids": ids, "pool": pool}, (4, WIDTH))
    right = sum(bool((got[i] == pool[row]).all()) for i, row in enumerate(ids))
    return judge(right == 4, f"{right} of 4 gathered rows equal")


def float32_islands(bench: Bench) -> Outcome:
    """precision_mode_v2=origin keeps float32 between explicit casts."""
    x = np.full((_ROWS, WIDTH), 2048, np.float16)
    got = _run_static(bench, float32_island(), {"x": x}, (_ROWS, WIDTH))
    return judge(bool((got == 4).all()), f"2048 * 2048 * 2**-20 gave {got.flat[0]}, wanted 4")


def ai_cpu_list(bench: Bench) -> Outcome:
    """An OM names the operators that left the AI Core."""
    found = bench.compiler.facts(is_nan(), Shape({"x": (_ROWS, WIDTH)})).ai_cpu_operators
    return judge(bool(found), f"the OM of IsNaN lists {', '.join(found) or 'nothing'}")


def scatter_nd_engine(bench: Bench) -> Outcome:
    """Where a float16 ScatterND runs."""
    shape = Shape({"x": (_ROWS, WIDTH), "updates": (1, WIDTH)})
    found = bench.compiler.facts(scatter_nd(), shape).ai_cpu_operators
    return measured(f"AI CPU operators: {', '.join(found) or 'none, so it runs on the AI Core'}")
