"""A toy model in graph contract 1 whose answers are exact integers.

The next token is the sum of token * (position + 1) over the whole context, modulo the
vocabulary, read from the paged cache for the past. A lost, doubled, stale or misplaced position
changes it, so engine tests compare with `toy_answer` token by token.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
from onnx import TensorProto, helper

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

VOCAB_SIZE = 61
BLOCK_SIZE = 4
HEAD_DIM = 2
MAX_MODEL_LEN = 64
MAX_NUM_SEQS = 16
EOS_TOKEN_ID = 60

POOL_SHAPE = (1, "num_blocks", BLOCK_SIZE, HEAD_DIM)
INPUTS = (
    TensorSpec("input_ids", "int32", ("batch", "tokens")),
    TensorSpec("positions", "int32", ("batch", "tokens")),
    TensorSpec("block_tables", "int32", ("batch", "past_blocks")),
    TensorSpec("past_lens", "int32", ("batch",)),
    TensorSpec("last_index", "int32", ("batch",)),
    TensorSpec("kv_pool.0.key", "float32", POOL_SHAPE),
    TensorSpec("kv_pool.0.value", "float32", POOL_SHAPE),
)
OUTPUTS = (
    TensorSpec("logits", "float32", ("batch", VOCAB_SIZE)),
    TensorSpec("new_kv", "float32", (2, "new_tokens", HEAD_DIM)),
)
BUCKETS = (
    *(Bucket(Phase.DECODE, b, 1, m) for b in (1, 4, 16) for m in (2, 16)),
    *(Bucket(Phase.PREFILL, b, q, m) for b, q in ((1, 4), (1, 16), (4, 4)) for m in (1, 16)),
)


# Buckets over prompts of thousands of tokens, and logits that nobody can keep many of by accident.
LONG_MODEL_LEN = 2048
LARGE_VOCAB_SIZE = 4001
LONG_BUCKETS = tuple(
    Bucket(*shape, LONG_MODEL_LEN // BLOCK_SIZE)
    for shape in ((Phase.DECODE, 1, 1), (Phase.DECODE, 16, 1), (Phase.PREFILL, 1, 256))
)

BYTES_VOCAB_SIZE = 266
BYTES_MODEL_LEN = 256
BYTES_BUCKETS = tuple(
    Bucket(*shape, BYTES_MODEL_LEN // BLOCK_SIZE)
    for shape in ((Phase.DECODE, 1, 1), (Phase.DECODE, 16, 1), (Phase.PREFILL, 1, 64))
)


def toy_answer(prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """What the model generates greedily, end tokens ignored."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(sum(t * (p + 1) for p, t in enumerate(tokens)) % VOCAB_SIZE)
    return tuple(tokens[len(prompt) :])


def write_toy_bundle(folder: Path) -> Path:
    """Write the toy model as a bundle and return its folder."""
    return _write(folder, _toy_manifest(_ENTRY), VOCAB_SIZE)


def write_long_toy_bundle(folder: Path) -> Path:
    """The same model for long prompts, with a large vocabulary."""
    short = _toy_manifest(_ENTRY)
    model = replace(short.model, vocab_size=LARGE_VOCAB_SIZE, max_model_len=LONG_MODEL_LEN)
    logits = replace(OUTPUTS[0], shape=("batch", LARGE_VOCAB_SIZE))
    program = replace(short.programs[0], outputs=(logits, OUTPUTS[1]), buckets=LONG_BUCKETS)
    return _write(folder, replace(short, model=model, programs=(program,)), LARGE_VOCAB_SIZE)


def write_bytes_toy_bundle(folder: Path) -> Path:
    """The same model with the vocabulary of `byte_level_backend`, for a short page of text."""
    short = _toy_manifest(_ENTRY)
    model = replace(
        short.model, vocab_size=BYTES_VOCAB_SIZE, max_model_len=BYTES_MODEL_LEN, eos_token_ids=(2,)
    )
    logits = replace(OUTPUTS[0], shape=("batch", BYTES_VOCAB_SIZE))
    program = replace(short.programs[0], outputs=(logits, OUTPUTS[1]), buckets=BYTES_BUCKETS)
    return _write(folder, replace(short, model=model, programs=(program,)), BYTES_VOCAB_SIZE)


_ENTRY = FileEntry("programs/step.onnx", 0, "0" * 64)


def _write(folder: Path, manifest: Manifest, vocab_size: int) -> Path:
    program = folder / _ENTRY.path
    program.parent.mkdir(parents=True)
    onnx.save(_toy_graph(vocab_size), program)
    entry = replace(_ENTRY, size_bytes=program.stat().st_size)
    manifest = replace(manifest, files=(entry,))
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return folder


def _toy_manifest(entry: FileEntry) -> Manifest:
    model = ModelFacts(
        name="toy",
        architecture="ToyForCausalLM",
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=HEAD_DIM,
        vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        dtype="float32",
        bos_token_id=None,
        eos_token_ids=(EOS_TOKEN_ID,),
        eos_source="toy",
        sampling_defaults=SamplingDefaults(),
    )
    return Manifest(
        format_version=FORMAT_VERSION,
        graph_contract=GRAPH_CONTRACT,
        profile="cpu",
        soc="cpu",
        kv_identity="toy",
        model=model,
        kv=KVSpec(KVLayout.HEAD_MAJOR, BLOCK_SIZE, "float32", 2 * BLOCK_SIZE * HEAD_DIM * 4),
        programs=(ProgramSpec("step", entry.path, INPUTS, OUTPUTS, BUCKETS),),
        files=(entry,),
        parity=ParitySummary(0.0, 0.0, 0, 0, 0),
        provenance={},
    )


def _toy_graph(vocab_size: int) -> onnx.ModelProto:
    constants = {
        "zero": 0, "one": 1, "vocab": vocab_size,
        "float_zero": 0.0, "float_vocab": float(vocab_size),
        "axis_1": [1], "axis_2": [2], "flat": [-1],
        "kv_shape": [1, -1, HEAD_DIM], "hot": [0.0, 10.0],
        "first": [0], "third_dim": [HEAD_DIM],
    }  # fmt: skip
    outputs = (replace(OUTPUTS[0], shape=("batch", vocab_size)), OUTPUTS[1])
    graph = helper.make_graph(
        [*_new_part(), *_past_part("key"), *_past_part("value"), *_result_part()],
        "toy",
        [_value_info(spec) for spec in INPUTS],
        [_value_info(spec) for spec in outputs],
        [_constant(name, value) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def _new_part() -> list[onnx.NodeProto]:
    """Each new token's term, their masked sum, and `new_kv`."""
    node = helper.make_node
    return [
        node("Cast", ["input_ids"], ["tokens_f"], to=TensorProto.FLOAT),
        node("Cast", ["positions"], ["positions_f"], to=TensorProto.FLOAT),
        node("Cast", ["one"], ["one_f"], to=TensorProto.FLOAT),
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
        node("Unsqueeze", ["terms", "axis_2"], ["terms_3d"]),
        node("Concat", ["tokens_3d", "terms_3d"], ["kv"], axis=2),
        node("Reshape", ["kv", "kv_shape"], ["kv_row"]),
        node("Concat", ["kv_row", "kv_row"], ["new_kv"], axis=0),
    ]


def _past_part(part: str) -> list[onnx.NodeProto]:
    """The masked sum of the terms in one pool."""
    node = helper.make_node
    n = part
    return [
        node("Reshape", ["block_tables", "flat"], [f"{n}_blocks"]),
        node("Gather", [f"kv_pool.0.{part}", f"{n}_blocks"], [f"{n}_gathered"], axis=1),
        node("Shape", ["block_tables"], [f"{n}_tables_shape"]),
        node("Gather", [f"{n}_tables_shape", "first"], [f"{n}_batch"], axis=0),
        node("Concat", [f"{n}_batch", "flat", "third_dim"], [f"{n}_shape"], axis=0),
        node("Reshape", [f"{n}_gathered", f"{n}_shape"], [f"{n}_past"]),
        node("Gather", [f"{n}_past", "one"], [f"{n}_terms"], axis=2),
        node("Shape", [f"{n}_terms"], [f"{n}_terms_shape"]),
        node("Gather", [f"{n}_terms_shape", "one"], [f"{n}_len"], axis=0),
        node("Range", ["zero", f"{n}_len", "one"], [f"{n}_index"]),
        node("Cast", ["past_lens"], [f"{n}_lens"], to=TensorProto.INT64),
        node("Unsqueeze", [f"{n}_lens", "axis_1"], [f"{n}_lens_column"]),
        node("Less", [f"{n}_index", f"{n}_lens_column"], [f"{n}_valid"]),
        node("Cast", [f"{n}_valid"], [f"{n}_valid_f"], to=TensorProto.FLOAT),
        node("Mul", [f"{n}_terms", f"{n}_valid_f"], [f"{n}_masked"]),
        node("ReduceSum", [f"{n}_masked", "axis_1"], [f"{n}_sum"], keepdims=0),
    ]


def _result_part() -> list[onnx.NodeProto]:
    """Half of each pool's sum, plus the new sum, modulo the vocabulary, as logits.

    A sum that is no number gives logits that are none, as a model's would be.
    """
    node = helper.make_node
    return [
        node("Mean", ["key_sum", "value_sum"], ["past_sum"]),
        node("Add", ["past_sum", "new_sum"], ["total"]),
        node("Mod", ["total", "float_vocab"], ["next_f"], fmod=1),
        node("Cast", ["next_f"], ["next"], to=TensorProto.INT64),
        node("OneHot", ["next", "vocab", "hot"], ["exact_logits"], axis=-1),
        node("Mul", ["total", "float_zero"], ["zero_or_nan"]),
        node("Unsqueeze", ["zero_or_nan", "axis_1"], ["zero_or_nan_column"]),
        node("Add", ["exact_logits", "zero_or_nan_column"], ["logits"]),
    ]


def _value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    kind = TensorProto.INT32 if spec.dtype == "int32" else TensorProto.FLOAT
    return helper.make_tensor_value_info(spec.name, kind, spec.shape)


def _constant(name: str, value: int | float | list[int] | list[float]) -> onnx.TensorProto:
    values = value if isinstance(value, list) else [value]
    kind = TensorProto.FLOAT if isinstance(values[0], float) else TensorProto.INT64
    dims = [len(values)] if isinstance(value, list) else []
    return helper.make_tensor(name, kind, dims, values)
