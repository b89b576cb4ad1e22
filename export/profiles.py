"""Lowering profiles: how a model is lowered for one kind of device, as data.

Owns the table and the limits that a profile puts on a model's sizes. What the graph of a profile
looks like stands in `past.py` (the pool), `lower_cpu.py` and `lower_ascend.py`.

Source of the limits: pyACL manual, runtime/memory/function-memcpy_async.md (addresses on both
sides are multiples of 64 bytes); hicann/ge, parser/parser/onnx (the element count of a tensor is
held in 32 bits); hicann/docs, atlas_infer_ops_list/ops/RotaryMul.md (fewer than 1000 rows).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from export.weight_format import WeightFormat
from omruntime.errors import ConfigError
from omruntime.manifest import KVLayout

# The null block and one to hand out.
LEAST_BLOCKS = 2
_MAX_ELEMENTS = 2**31 - 1
_COPY_ALIGNMENT_BYTES = 64
_MAX_ROWS = 999
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class PastGather(Enum):
    """How a graph reads past keys and values out of its pool.

    BLOCKS: whole blocks of a head-major pool.
    ROWS: single heads of single positions, by row numbers computed from the block tables.
    AXES: whole blocks of all layers, then layer and part by constant indices.
    """

    BLOCKS = "blocks"
    ROWS = "rows"
    AXES = "axes"


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of device.

    Attributes:
        name: As the manifest names it.
        targets: The devices' own names, which are what a build is asked for.
        revision: Part of kv_identity; raised when the profile computes other keys or values
            from the same checkpoint.
        dtype: Of pool and new keys and values, as NumPy names it, or `bfloat16`; of weights too
            unless their format is chosen.
        block_size: Tokens a block unless the spec says otherwise.
        uses_npu_ops: Whether operators of ATC's npu domain may stand in the graph.
        has_slice: Whether Slice runs on the device's AI Core; else constant Gathers stand in.
        has_gears: Whether programs are compiled for fixed shapes and one fixed pool.
    """

    name: str
    targets: tuple[str, ...]
    revision: str
    dtype: str
    layout: KVLayout
    past_gather: PastGather
    block_size: int
    uses_npu_ops: bool
    has_slice: bool
    has_gears: bool


CPU = Profile(
    name="cpu",
    targets=("cpu",),
    revision="cpu-1",
    dtype="float32",
    layout=KVLayout.HEAD_MAJOR,
    past_gather=PastGather.BLOCKS,
    block_size=16,
    uses_npu_ops=False,
    has_slice=True,
    has_gears=False,
)
# The host's cores through OpenVINO, computing in bfloat16; asked for by a weight format.
OPENVINO = replace(CPU, name="openvino", revision="openvino-1", dtype="bfloat16")
ASCEND310P = Profile(
    name="ascend310p",
    targets=("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"),
    revision="ascend310p-1",
    dtype="float16",
    layout=KVLayout.TOKEN_MAJOR,
    past_gather=PastGather.ROWS,
    block_size=128,
    uses_npu_ops=True,
    has_slice=True,
    has_gears=True,
)
ASCEND310B = Profile(
    name="ascend310b",
    targets=("Ascend310B1", "Ascend310B2", "Ascend310B3", "Ascend310B4"),
    revision="ascend310b-1",
    dtype="float16",
    layout=KVLayout.TOKEN_MAJOR,
    past_gather=PastGather.AXES,
    block_size=64,
    uses_npu_ops=False,
    has_slice=False,
    has_gears=True,
)
# What a target alone chooses.
PROFILES = (CPU, ASCEND310P, ASCEND310B)


def profile_for_target(target: str, weights: WeightFormat | None = None) -> Profile:
    """The profile of a device, by the device's own name.

    Args:
        weights: How to keep the weights; None leaves it to the profile.

    Raises:
        ConfigError: No profile has such a device; the message lists those that there are. Or it
            does not let the weights be chosen.
    """
    for profile in PROFILES:
        if target in profile.targets:
            return _with_weights(profile, weights)
    known = ", ".join(name for profile in PROFILES for name in profile.targets)
    raise ConfigError(f"target is {target!r}, wanted one of {known}")


def profile_named(name: str) -> Profile:
    """The profile that a manifest names.

    Raises:
        ConfigError: There is none of this name.
    """
    profiles = {profile.name: profile for profile in (*PROFILES, OPENVINO)}
    if name not in profiles:
        raise ConfigError(f"profile is {name!r}, wanted one of {', '.join(profiles)}")
    return profiles[name]


def _with_weights(profile: Profile, weights: WeightFormat | None) -> Profile:
    if weights is None or (profile is CPU and weights is WeightFormat.FLOAT32):
        return profile
    if profile is not CPU:
        raise ConfigError(
            f"weights is {weights.value}, but {profile.name} keeps them in {profile.dtype} alone; "
            f"leave it out"
        )
    return OPENVINO


@dataclass(frozen=True, slots=True)
class PoolNeeds:
    """What a fixed pool has to hold.

    Attributes:
        token_elements: Key and value elements of one token, all layers.
        blocks_per_sequence: Of a sequence at its longest.
    """

    token_elements: int
    block_size: int
    blocks_per_sequence: int
    max_num_seqs: int


def fixed_num_blocks(profile: Profile, needs: PoolNeeds, asked: int | None) -> int | None:
    """The pool size that programs are compiled for; None where it is free.

    Args:
        asked: What the spec says; None means every sequence at its longest and the null block,
            or as many blocks as ATC can count if that is less.

    Raises:
        ConfigError: No pool of a model with such heads works, the asked one is too large or
            too small; the message names size, limit and remedy.
    """
    if not profile.has_gears:
        return None
    _require_whole_copies(profile, needs.token_elements)
    most = _MAX_ELEMENTS // (needs.token_elements * needs.block_size)
    if most < LEAST_BLOCKS:
        raise ConfigError(
            f"block_size is {needs.block_size}: {LEAST_BLOCKS} blocks have above {_MAX_ELEMENTS} "
            f"elements, which ATC counts in 32 bits; lower block_size"
        )
    least = max(LEAST_BLOCKS, needs.blocks_per_sequence + 1)
    wanted = needs.max_num_seqs * needs.blocks_per_sequence + 1
    num_blocks = min(wanted, most) if asked is None else asked
    if num_blocks > most:
        raise ConfigError(
            f"num_blocks is {num_blocks}, wanted at most {most}: a pool of more has above "
            f"{_MAX_ELEMENTS} elements, which ATC counts in 32 bits; lower num_blocks"
        )
    if num_blocks < least:
        raise ConfigError(
            f"num_blocks is {num_blocks}, wanted at least {least}, the null block and one "
            f"sequence at its longest; at most {most} can be counted; lower max_model_len or "
            f"raise num_blocks"
        )
    return num_blocks


def _require_whole_copies(profile: Profile, token_elements: int) -> None:
    token_bytes = token_elements * _ITEM_BYTES[profile.dtype]
    if token_bytes % _COPY_ALIGNMENT_BYTES:
        raise ConfigError(
            f"the keys and values of one token take {token_bytes} bytes, wanted a multiple of "
            f"{_COPY_ALIGNMENT_BYTES}, in steps of which {profile.name} copies; a model of such "
            f"heads cannot be built for it"
        )


def require_rows_fit(profile: Profile, max_num_seqs: int) -> None:
    """Refuse more rows a step than the device's operators take.

    Raises:
        ConfigError: The message names the limit.
    """
    if profile.uses_npu_ops and max_num_seqs > _MAX_ROWS:
        raise ConfigError(
            f"max_num_seqs is {max_num_seqs}, wanted at most {_MAX_ROWS}, which the rotary "
            f"operator of {profile.name} takes; lower it"
        )
