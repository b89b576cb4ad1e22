"""The toy model of `toy_model.py` as an Ascend bundle: simulated OMs over a token-major pool.

Every position keeps its token and its weight (position + 1) as separate float16 numbers, which
are exact, in keys and in values; their products are summed in float32. So the answers are those
of `toy_answer`, token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from atc_pipeline.simatc.cli import main as simatc
from omruntime.buckets import Bucket, Phase
from omruntime.manifest import (
    FORMAT_VERSION,
    GRAPH_CONTRACT,
    MANIFEST_NAME,
    FileEntry,
    KVLayout,
    KVSpec,
    Manifest,
    ModelFacts,
    ParitySummary,
    ProgramSpec,
    SamplingDefaults,
    TensorSpec,
)
from tests.omruntime.device.simulated_oms import SOC, write_simulated_om
from tests.omruntime.toy_model import (
    BLOCK_SIZE,
    BUCKETS,
    EOS_TOKEN_ID,
    VOCAB_SIZE,
)

PLANES, HEAD_DIM = 2, 16  # 64 bytes a position: the least that Ascend devices copy
NUM_BLOCKS = 60
INPUTS = (
    TensorSpec("input_ids", "int32", ("batch", "tokens")),
    TensorSpec("positions", "int32", ("batch", "tokens")),
    TensorSpec("block_tables", "int32", ("batch", "past_blocks")),
    TensorSpec("past_lens", "int32", ("batch",)),
    TensorSpec("last_index", "int32", ("batch",)),
    TensorSpec("kv_pool", "float16", ("num_slots", PLANES, HEAD_DIM)),
)
NEW_KV = TensorSpec("new_kv", "float16", ("new_tokens", PLANES, HEAD_DIM))
LAYOUTS = ("per-phase", "unified", "static")


def write_token_major_toy(
    folder: Path,
    layout: str = "per-phase",
    num_blocks: int = NUM_BLOCKS,
    logits_dtype: str = "float32",
    buckets: Sequence[Bucket] = BUCKETS,
    vocab_size: int = VOCAB_SIZE,
) -> Path:
    """Write the bundle and return its folder."""
    outputs = (TensorSpec("logits", logits_dtype, ("batch", vocab_size)), NEW_KV)
    programs, entries = [], []
    for name, group in _groups(layout, buckets).items():
        path = f"programs/{name}.om"
        gears = [_gear(bucket, num_blocks) for bucket in group]
        model = _toy_graph(outputs, vocab_size)
        write_simulated_om(folder / path, model, (_fixed(num_blocks), outputs), gears)
        programs.append(ProgramSpec("step", path, INPUTS, outputs, tuple(group)))
        entries.append(FileEntry(path, (folder / path).stat().st_size, "0" * 64))
    manifest = _manifest(programs, entries, num_blocks, vocab_size)
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return folder


def compile_with_simatc(bundle: Path) -> None:
    """Write the programs of a per-phase bundle anew, with the simulated compiler."""
    manifest = Manifest.read(bundle)
    num_blocks = manifest.kv.num_blocks
    assert num_blocks is not None
    onnx.save(_toy_graph(manifest.programs[0].outputs, VOCAB_SIZE), bundle / "step.onnx")
    tensors = _fixed(num_blocks)
    shapes = [",".join("-1" if isinstance(d, str) else str(d) for d in t.shape) for t in tensors]
    names = (tensor.name for tensor in tensors)
    input_shape = ";".join(f"{name}:{shape}" for name, shape in zip(names, shapes, strict=True))
    open_dims = [dim for tensor in tensors for dim in tensor.shape if isinstance(dim, str)]
    for spec in manifest.programs:
        gears = [_gear(bucket, num_blocks) for bucket in spec.buckets]
        dims = ";".join(",".join(str(gear[dim]) for dim in open_dims) for gear in gears)
        code = simatc([
            "--framework=5", f"--model={bundle / 'step.onnx'}",
            f"--output={bundle / spec.path.removesuffix('.om')}", f"--soc_version={SOC}",
            "--input_format=ND", f"--input_shape={input_shape}", f"--dynamic_dims={dims}",
        ])  # fmt: skip
        assert code == 0
    sizes = {entry.path: (bundle / entry.path).stat().st_size for entry in manifest.files}
    files = tuple(replace(entry, size_bytes=sizes[entry.path]) for entry in manifest.files)
    text = replace(manifest, files=files).to_json()
    (bundle / MANIFEST_NAME).write_text(text, encoding="utf-8")


def _groups(layout: str, buckets: Sequence[Bucket]) -> dict[str, list[Bucket]]:
    if layout == "unified":
        return {"step": list(buckets)}
    if layout == "static":
        return {f"{b.phase.value}_b{b.batch}_q{b.tokens}_m{b.past_blocks}": [b] for b in buckets}
    return {phase.value: [b for b in buckets if b.phase is phase] for phase in Phase}


def _gear(bucket: Bucket, num_blocks: int) -> dict[str, int]:
    return {
        "batch": bucket.batch,
        "tokens": bucket.tokens,
        "past_blocks": bucket.past_blocks,
        "new_tokens": bucket.batch * bucket.tokens,
        "num_slots": num_blocks * BLOCK_SIZE,
    }


def _fixed(num_blocks: int) -> tuple[TensorSpec, ...]:
    """The inputs as they are compiled: the pool has one size."""
    pool = TensorSpec("kv_pool", "float16", (num_blocks * BLOCK_SIZE, PLANES, HEAD_DIM))
    return (*INPUTS[:-1], pool)


def _manifest(
    programs: Sequence[ProgramSpec],
    entries: Sequence[FileEntry],
    num_blocks: int,
    vocab_size: int,
) -> Manifest:
    model = ModelFacts(
        name="toy",
        architecture="ToyForCausalLM",
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=HEAD_DIM,
        vocab_size=vocab_size,
        max_model_len=_longest(programs),
        max_num_seqs=max(b.batch for p in programs for b in p.buckets if b.phase is Phase.DECODE),
        dtype="float16",
        bos_token_id=None,
        eos_token_ids=(EOS_TOKEN_ID,),
        eos_source="toy",
        sampling_defaults=SamplingDefaults(),
    )
    bytes_per_block = BLOCK_SIZE * PLANES * HEAD_DIM * 2
    return Manifest(
        format_version=FORMAT_VERSION,
        graph_contract=GRAPH_CONTRACT,
        profile="ascend310p",
        soc=SOC,
        kv_identity="toy",
        model=model,
        kv=KVSpec(KVLayout.TOKEN_MAJOR, BLOCK_SIZE, "float16", bytes_per_block, num_blocks),
        programs=tuple(programs),
        files=tuple(entries),
        parity=ParitySummary(0.0, 0.0, 0, 0, 0),
        provenance={},
    )


def _longest(programs: Sequence[ProgramSpec]) -> int:
    return max(b.past_blocks for p in programs for b in p.buckets) * BLOCK_SIZE


def _toy_graph(outputs: Sequence[TensorSpec], vocab_size: int) -> onnx.ModelProto:
    constants = {
        "zero": np.array(0, np.int64), "one": np.array(1, np.int64),
        "one_f": np.array(1, np.float32), "axis_1": np.array([1], np.int64),
        "axis_2": np.array([2], np.int64), "block_size": np.array(BLOCK_SIZE, np.int64),
        "offsets": np.arange(BLOCK_SIZE, dtype=np.int64), "flat": np.array([-1], np.int64),
        "rows": np.array([0, -1], np.int64), "vocab": np.array(vocab_size, np.int64),
        "vocab_f": np.array(vocab_size, np.float32), "hot": np.array([0.0, 10.0], np.float32),
        "first": np.array([0], np.int64), "second": np.array([1], np.int64),
        "third": np.array([2], np.int64), "half": np.array(0.5, np.float32),
        "position_shape": np.array([-1, 1, 2], np.int64),
        "pads": np.array([0, 0, 0, 0, 0, HEAD_DIM - 2], np.int64),
        "past_shape": np.array([0, -1, PLANES * HEAD_DIM], np.int64),
        "key_token": np.array(0, np.int64), "value_token": np.array(HEAD_DIM, np.int64),
        "value_weight": np.array(HEAD_DIM + 1, np.int64),
    }  # fmt: skip
    nodes = [*_new_part(), *_past_part(), *_result_part(outputs[0].dtype)]
    for i, node in enumerate(nodes):
        node.name = f"node_{i}_{node.op_type}"  # the compiler wants names
    graph = helper.make_graph(
        nodes,
        "toy",
        [_value_info(spec) for spec in INPUTS],
        [_value_info(spec) for spec in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def _new_part() -> list[onnx.NodeProto]:
    """The sum over each row's new tokens, and `new_kv`: [token, weight, 0...] in both planes."""
    node = helper.make_node
    return [
        node("Cast", ["input_ids"], ["tokens_f"], to=TensorProto.FLOAT),
        node("Cast", ["positions"], ["positions_f"], to=TensorProto.FLOAT),
        node("Add", ["positions_f", "one_f"], ["weights"]),
        node("Mul", ["tokens_f", "weights"], ["terms"]),
        node("Shape", ["input_ids"], ["ids_shape"]),
        node("Gather", ["ids_shape", "one"], ["num_tokens"], axis=0),
        node("Range", ["zero", "num_tokens", "one"], ["index"]),
        node("Cast", ["last_index"], ["last_64"], to=TensorProto.INT64),
        node("Unsqueeze", ["last_64", "axis_1"], ["last_column"]),
        node("LessOrEqual", ["index", "last_column"], ["is_new"]),
        node("Cast", ["is_new"], ["is_new_f"], to=TensorProto.FLOAT),
        node("Mul", ["terms", "is_new_f"], ["new_terms"]),
        node("ReduceSum", ["new_terms", "axis_1"], ["new_sum"], keepdims=0),
        node("Unsqueeze", ["tokens_f", "axis_2"], ["tokens_3d"]),
        node("Unsqueeze", ["weights", "axis_2"], ["weights_3d"]),
        node("Concat", ["tokens_3d", "weights_3d"], ["pairs_3d"], axis=2),
        node("Reshape", ["pairs_3d", "position_shape"], ["pairs"]),
        node("Pad", ["pairs", "pads"], ["plane_f"]),
        node("Cast", ["plane_f"], ["plane"], to=TensorProto.FLOAT16),
        node("Concat", ["plane", "plane"], ["new_kv"], axis=1),
    ]


def _past_part() -> list[onnx.NodeProto]:
    """The sum over each row's past, once from keys and once from values."""
    node = helper.make_node
    nodes = [
        node("Cast", ["block_tables"], ["tables"], to=TensorProto.INT64),
        node("Unsqueeze", ["tables", "axis_2"], ["tables_3d"]),
        node("Mul", ["tables_3d", "block_size"], ["starts"]),
        node("Add", ["starts", "offsets"], ["slots_3d"]),
        node("Reshape", ["slots_3d", "rows"], ["slots"]),
        node("Gather", ["kv_pool", "slots"], ["past_5d"], axis=0),
        node("Shape", ["slots"], ["slots_shape"]),
        node("Concat", ["slots_shape", "flat"], ["past_dims"], axis=0),
        node("Reshape", ["past_5d", "past_dims"], ["past_half"]),
        node("Cast", ["past_half"], ["past"], to=TensorProto.FLOAT),
        node("Gather", ["slots_shape", "one"], ["past_len"], axis=0),
        node("Range", ["zero", "past_len", "one"], ["past_index"]),
        node("Cast", ["past_lens"], ["lens"], to=TensorProto.INT64),
        node("Unsqueeze", ["lens", "axis_1"], ["lens_column"]),
        node("Less", ["past_index", "lens_column"], ["is_past"]),
        node("Cast", ["is_past"], ["is_past_f"], to=TensorProto.FLOAT),
    ]
    for part, token, weight in (("key", "zero", "one"), ("value", "value_token", "value_weight")):
        nodes += [
            node("Gather", ["past", token], [f"{part}_tokens"], axis=2),
            node("Gather", ["past", weight], [f"{part}_weights"], axis=2),
            node("Mul", [f"{part}_tokens", f"{part}_weights"], [f"{part}_terms"]),
            node("Mul", [f"{part}_terms", "is_past_f"], [f"{part}_masked"]),
            node("ReduceSum", [f"{part}_masked", "axis_1"], [f"{part}_sum"], keepdims=0),
        ]
    return nodes


def _result_part(logits_dtype: str) -> list[onnx.NodeProto]:
    """The mean of both sums over the past plus the new sum, modulo the vocabulary, as logits."""
    node = helper.make_node
    kind = TensorProto.FLOAT if logits_dtype == "float32" else TensorProto.FLOAT16
    return [
        node("Mean", ["key_sum", "value_sum"], ["past_sum"]),
        node("Add", ["past_sum", "new_sum"], ["total"]),
        node("Mod", ["total", "vocab_f"], ["next_f"], fmod=1),
        node("Cast", ["next_f"], ["next"], to=TensorProto.INT64),
        node("OneHot", ["next", "vocab", "hot"], ["logits_f"], axis=-1),
        node("Cast", ["logits_f"], ["logits"], to=kind),
    ]


def _value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    kinds = {
        "int32": TensorProto.INT32,
        "float16": TensorProto.FLOAT16,
        "float32": TensorProto.FLOAT,
    }
    return helper.make_tensor_value_info(spec.name, kinds[spec.dtype], spec.shape)
