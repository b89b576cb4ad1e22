"""Whether a loaded OM is the program that the manifest speaks of.

The OM is trusted for what it is, and refused where the manifest says something else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from omruntime.buckets import Bucket
from omruntime.device.ascend.om_interface import OmInterface, OmTensor
from omruntime.errors import BundleError
from omruntime.manifest import ProgramSpec, TensorSpec

logger = logging.getLogger(__name__)

_REMEDY = "build the bundle again"


def with_known_outputs(spec: ProgramSpec, interface: OmInterface) -> OmInterface:
    """The interface with the manifest's output names where the OM's say nothing of tensors.

    ATC keeps the graph's order of outputs and names them `node:index:tensor`; the library
    replaces names of 128 characters and more.

    Source: hicann/ge api/acl/acl_model/model/model.cpp (ACL_MAX_TENSOR_NAME_LEN).
    """
    wanted, got = spec.outputs, interface.outputs
    names = {tensor.name for tensor in wanted}
    if len(wanted) != len(got) or names & {tensor.name for tensor in got}:
        return interface
    logger.warning(
        "%s: the outputs are called %s; they are taken in their order as %s",
        spec.path, [t.name for t in got], [t.name for t in wanted],
    )  # fmt: skip
    pairs = zip(wanted, got, strict=True)
    return replace(interface, outputs=tuple(replace(o, name=w.name) for w, o in pairs))


def check_interface(spec: ProgramSpec, interface: OmInterface) -> None:
    """Compare names, types and gears.

    Raises:
        BundleError: Something differs; the message says what was got and what was wanted.
    """
    _check_tensors(spec, "inputs", spec.inputs, interface.data_inputs)
    _check_tensors(spec, "outputs", spec.outputs, interface.outputs)
    _check_gears(spec, interface)


def bucket_dims(
    spec: ProgramSpec, interface: OmInterface, bucket: Bucket
) -> Mapping[str, tuple[int, ...]]:
    """The inputs' shapes in a bucket, in the OM's order; the pool's is the OM's own.

    Raises:
        BundleError: An input has another number of dims than the manifest says.
    """
    sizes = {
        "batch": bucket.batch,
        "tokens": bucket.tokens,
        "past_blocks": bucket.past_blocks,
        "new_tokens": bucket.batch * bucket.tokens,
    }
    specs = {tensor.name: tensor for tensor in spec.inputs}
    shapes = {}
    for tensor in interface.data_inputs:
        wanted = specs[tensor.name].shape
        if len(wanted) != len(tensor.dims):
            raise BundleError(
                f"{spec.path}: input {tensor.name} has the dims {list(tensor.dims)}, the manifest "
                f"says {list(wanted)}; {_REMEDY}"
            )
        shapes[tensor.name] = tuple(
            sizes.get(dim, fixed) if isinstance(dim, str) else dim
            for dim, fixed in zip(wanted, tensor.dims, strict=True)
        )
    return shapes


def _check_tensors(
    spec: ProgramSpec, kind: str, wanted: Sequence[TensorSpec], got: Sequence[OmTensor]
) -> None:
    wanted_names, got_names = [t.name for t in wanted], [t.name for t in got]
    if sorted(wanted_names) != sorted(got_names):
        raise BundleError(
            f"{spec.path}: the graph's {kind} are {got_names}, the manifest lists "
            f"{wanted_names}; {_REMEDY}"
        )
    dtypes = {tensor.name: tensor.dtype for tensor in got}
    for tensor in wanted:
        if dtypes[tensor.name] != tensor.dtype:
            raise BundleError(
                f"{spec.path}: {tensor.name} is {dtypes[tensor.name]}, the manifest says "
                f"{tensor.dtype}; {_REMEDY}"
            )


def _check_gears(spec: ProgramSpec, interface: OmInterface) -> None:
    wanted = {
        tuple(dim for shape in bucket_dims(spec, interface, bucket).values() for dim in shape)
        for bucket in spec.buckets
    }
    static = tuple(dim for tensor in interface.data_inputs for dim in tensor.dims)
    got = set(interface.gears) if interface.gear_index is not None else {static}
    if wanted != got:
        raise BundleError(
            f"{spec.path}: the OM's gears and the manifest's buckets differ. In the OM alone: "
            f"{sorted(got - wanted)}; in the manifest alone: {sorted(wanted - got)} (all dims of "
            f"{[t.name for t in interface.data_inputs]}); {_REMEDY}"
        )
