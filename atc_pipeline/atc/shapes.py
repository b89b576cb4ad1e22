"""Buckets as ATC's shapes: `--input_shape` and `--dynamic_dims`, and what the OM must say then.

Owns the translation of a tensor table with symbolic dimensions. A bucket is a gear here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from omruntime.buckets import Bucket
from omruntime.errors import BundleError
from omruntime.manifest import KVSpec, TensorSpec

GEAR_AXIS = -1


def bucket_sizes(bucket: Bucket, kv: KVSpec) -> Mapping[str, int]:
    """What each symbolic dimension is in one bucket.

    Raises:
        BundleError: The pool has no fixed number of blocks, which ATC wants.
    """
    return _pool_sizes(kv) | {
        "batch": bucket.batch,
        "tokens": bucket.tokens,
        "past_blocks": bucket.past_blocks,
        "new_tokens": bucket.batch * bucket.tokens,
    }


def static_dims(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A tensor's dimensions in one bucket."""
    return tuple(_size_of(dim, sizes) for dim in spec.shape)


def gear_dims(spec: TensorSpec, kv: KVSpec) -> tuple[int, ...]:
    """A tensor's dimensions in an OM with gears: -1 where the bucket decides."""
    sizes = _pool_sizes(kv)
    return tuple(sizes.get(dim, GEAR_AXIS) if isinstance(dim, str) else dim for dim in spec.shape)


def input_shape(inputs: Iterable[TensorSpec], dims: Iterable[Sequence[int]]) -> str:
    """The value of `--input_shape`; every input is listed, as gears demand.

    Source: hicann/ge docs/zh/user_guides/atc_tools/CLI_options/--input_shape.md.
    """
    pairs = zip(inputs, dims, strict=True)
    return ";".join(f"{spec.name}:{','.join(map(str, sizes))}" for spec, sizes in pairs)


def gear_values(inputs: Iterable[TensorSpec], bucket: Bucket, kv: KVSpec) -> tuple[int, ...]:
    """One gear of `--dynamic_dims`: the value of each -1, in the order of the inputs.

    Source: hicann/ge docs/zh/user_guides/atc_tools/CLI_options/--dynamic_dims.md.
    """
    sizes = bucket_sizes(bucket, kv)
    return tuple(
        size
        for spec in inputs
        for size, shown in zip(static_dims(spec, sizes), gear_dims(spec, kv), strict=True)
        if shown == GEAR_AXIS
    )


def dynamic_dims(gears: Iterable[Sequence[int]]) -> str:
    """The value of `--dynamic_dims`."""
    return ";".join(",".join(map(str, gear)) for gear in gears)


def _pool_sizes(kv: KVSpec) -> dict[str, int]:
    if kv.num_blocks is None:
        raise BundleError(
            "the manifest leaves the pool's number of blocks open, but ATC compiles for one "
            "fixed pool; export again with --num-blocks"
        )
    return {"num_blocks": kv.num_blocks, "num_slots": kv.num_blocks * kv.block_size}


def _size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    try:
        return sizes[dim]
    except KeyError:
        known = ", ".join(sizes)
        raise BundleError(f"a tensor has the dimension {dim!r}, wanted one of {known}") from None
