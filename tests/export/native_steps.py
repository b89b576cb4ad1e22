"""The same steps of an exported graph on the native kernels and on another device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.bfloat16 import from_bits, to_bits
from export.result import ExportResult
from omruntime.buckets import Bucket, Phase
from omruntime.device import Device, DeviceTensor, open_device

NUM_BLOCKS = 24
# Within the 64 positions that tiny bundles are built for.
STEPS = (Bucket(Phase.DECODE, 3, 1, 3), Bucket(Phase.PREFILL, 2, 21, 2))


def native_difference(out: Path, result: ExportResult, other: str = "cpu") -> float:
    """By how much logits or new keys and values differ at most, over scattered blocks."""
    on_other, on_native = (_run_steps(out, result, name) for name in (other, "native"))
    return max(float(np.abs(a - b).max()) for a, b in zip(on_other, on_native, strict=True))


def _run_steps(out: Path, result: ExportResult, name: str) -> list[NDArray[np.float32]]:
    """Both outputs of every step."""
    device = open_device(name, num_threads=1)
    program = device.load_program(result.program, out)
    outputs = []
    for step in STEPS:
        inputs = {n: _filled(device, array) for n, array in _arrays(result, step).items()}
        sizes = {"batch": step.batch, "new_tokens": step.batch * step.tokens}
        given = {}
        for t in result.program.outputs:
            shape = [sizes[d] if isinstance(d, str) else d for d in t.shape]
            given[t.name] = _filled(device, _stored(np.zeros(shape, np.float32), t.dtype))
        program.bind(step, inputs, given)
        program.run(step)
        outputs += [_widened(device.copy_out(tensor)) for tensor in given.values()]
    program.unload()
    device.close()
    return outputs


def _arrays(result: ExportResult, step: Bucket) -> dict[str, NDArray[np.generic]]:
    rng = np.random.default_rng(0)
    most = step.past_blocks * result.kv.block_size
    past_lens = rng.integers(most // 2, most + 1, step.batch).astype(np.int32)
    shape = (step.batch, step.tokens)
    arrays: dict[str, NDArray[np.generic]] = {
        "input_ids": rng.integers(3, result.model.vocab_size, shape).astype(np.int32),
        "positions": (past_lens[:, None] + np.arange(step.tokens)).astype(np.int32),
        "block_tables": rng.integers(1, NUM_BLOCKS, (step.batch, step.past_blocks), np.int32),
        "past_lens": past_lens,
        "last_index": rng.integers(0, step.tokens, step.batch, np.int32),
    }
    for tensor in result.program.inputs:
        if tensor.name not in arrays:
            sizes = [NUM_BLOCKS if d == "num_blocks" else int(d) for d in tensor.shape]
            values = rng.standard_normal(sizes).astype(np.float32)
            arrays[tensor.name] = _stored(values, tensor.dtype)
    return arrays


def _stored(values: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    return to_bits(values) if dtype == "bfloat16" else values


def _widened(stored: NDArray[np.generic]) -> NDArray[np.float32]:
    """A copy in float32."""
    return np.array(from_bits(stored) if stored.dtype == np.uint16 else stored, np.float32)


def _filled(device: Device, array: NDArray[np.generic]) -> DeviceTensor:
    dtype = "bfloat16" if array.dtype == np.uint16 else array.dtype.name
    tensor = DeviceTensor(device.alloc(array.nbytes), 0, array.shape, dtype)
    device.copy_in(tensor, array)
    return tensor
