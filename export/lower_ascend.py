"""Lowering for the Ascend profiles: a traced graph -> float16 and operators that ATC compiles well.

Owns which rules a profile uses. The rules are `ascend_rules.py`, the precisions
`half_precision.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from export import ascend_rules as rules
from export.half_precision import Kind, Rebuild, Rule
from export.onnx_writer import GraphWriter
from export.profiles import Profile
from omruntime.manifest import TensorSpec

_KINDS = {"float16": Kind.HALF, "float32": Kind.SINGLE}


def lower_ascend(
    writer: GraphWriter,
    profile: Profile,
    inputs: Sequence[TensorSpec],
    outputs: dict[str, TensorSpec],
) -> tuple[GraphWriter, dict[str, TensorSpec]]:
    """Rebuild a traced graph for a profile.

    Args:
        outputs: By value name in the traced graph.

    Returns:
        The new graph, and the outputs by value name in it.
    """
    rules.MarkNorms(writer).rewrite()
    if profile.uses_npu_ops:
        rules.MarkRotaries(writer).rewrite()
    rebuild = Rebuild(writer, {spec.name: _kind(spec) for spec in inputs})
    wanted = {name: _kind(spec) for name, spec in outputs.items()}
    names = rebuild.run(wanted, _rules(profile))
    return rebuild.writer, dict(zip(names, outputs.values(), strict=True))


def _rules(profile: Profile) -> dict[str, Rule]:
    chosen: dict[str, Rule] = {
        rules.RMS_NORM: rules.npu_rms_norm if profile.uses_npu_ops else rules.plain_rms_norm,
        rules.ROTARY: rules.npu_rotary,
        "LayerNormalization": rules.layer_norm,
        "MatMul": rules.product,
        "Gather": rules.int32_gather,
        "TopK": rules.top_k,
    }
    if not profile.has_slice:
        chosen["Slice"] = rules.gather_for_slice
    return chosen


def _kind(spec: TensorSpec) -> Kind:
    return _KINDS.get(spec.dtype, Kind.OTHER)
