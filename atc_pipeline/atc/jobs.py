"""Which OMs a bundle consists of: layouts, and one CompileJob for each OM.

Owns names and the split of buckets. Running a job is `compile.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath

from atc_pipeline.atc import shapes
from atc_pipeline.atc.options import AtcOptions, ExternalWeight
from atc_pipeline.atc_table import load_atc_table
from omruntime.buckets import Bucket, Phase
from omruntime.errors import ConfigError
from omruntime.manifest import KVSpec, ProgramSpec, TensorSpec

# Beside each job's folder, see `compile.py`.
MODEL_NAME = "step.onnx"
MODEL_WEIGHTS_NAME = "step.weights"


class Layout(Enum):
    """How buckets are spread over OMs.

    PER_PHASE: One OM with gears for prefill and one for decode: each holds its weights once, and
    neither carries the other's gears. UNIFIED: One OM for all. STATIC: One OM for each bucket,
    the plainest form, with the most OMs.

    Source: hicann/ge docs/zh/user_guides/atc_tools/CLI_options/--dynamic_dims.md.
    """

    PER_PHASE = "per-phase"
    UNIFIED = "unified"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One OM to compile.

    Attributes:
        name: Of the OM, without folder and suffix.
        buckets: Its gears, in the order of `--dynamic_dims`; a single one is a static OM, as ATC
            wants two gears at least (E10035).
    """

    name: str
    buckets: tuple[Bucket, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kv: KVSpec
    options: AtcOptions

    @property
    def has_gears(self) -> bool:
        """Whether the OM takes one of several shapes at run time."""
        return len(self.buckets) > 1

    @property
    def gears(self) -> tuple[tuple[int, ...], ...]:
        """The values of `--dynamic_dims`; empty for a static OM."""
        if not self.has_gears:
            return ()
        return tuple(shapes.gear_values(self.inputs, bucket, self.kv) for bucket in self.buckets)

    @property
    def program(self) -> ProgramSpec:
        """How the manifest names the OM."""
        path = f"programs/{self.name}.om"
        return ProgramSpec("step", path, self.inputs, self.outputs, self.buckets)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What all OMs of a bundle have in common."""

    layout: Layout = Layout.PER_PHASE
    share_weights: bool = True
    extra_flags: tuple[tuple[str, str], ...] = ()


def plan_jobs(
    program: ProgramSpec, kv: KVSpec, soc_version: str, settings: JobSettings
) -> tuple[CompileJob, ...]:
    """The OMs of a bundle, from its symbolic ONNX step program.

    Raises:
        ConfigError: An OM would have more gears than ATC takes or the same twice, a bucket has no
            past, or a flag is wrong.
        BundleError: The tensor table or the pool is not fit for ATC.
    """
    for bucket in program.buckets:
        if bucket.past_blocks < 1:
            raise ConfigError(f"bucket {bucket_name(bucket)} has no past block, wanted 1 or more")
    groups = _split(program.buckets, settings.layout)
    # A single OM has nobody to share with, and one file is easier to handle than a folder.
    shared = settings.share_weights and len(groups) > 1
    common = AtcOptions(
        model=f"../{MODEL_NAME}",
        output="step",
        soc_version=soc_version,
        input_shape="none yet",
        external_weight=ExternalWeight.FILES if shared else ExternalWeight.INSIDE,
        extra=settings.extra_flags,
    )
    return tuple(_job(name, buckets, program, kv, common) for name, buckets in groups.items())


def job_of_program(program: ProgramSpec, kv: KVSpec, soc_version: str) -> CompileJob:
    """The job whose OM a manifest's program is, without the flags that no manifest holds.

    Raises:
        ConfigError: The buckets or the chip are none that ATC takes.
        BundleError: The tensor table or the pool is not fit for ATC.
    """
    common = AtcOptions(f"../{MODEL_NAME}", "step", soc_version, "none yet")
    return _job(PurePosixPath(program.path).stem, program.buckets, program, kv, common)


def bucket_name(bucket: Bucket) -> str:
    """A bucket as a file name, such as `decode_b8_t1_p4`: rows, tokens, past blocks."""
    return f"{bucket.phase.value}_b{bucket.batch}_t{bucket.tokens}_p{bucket.past_blocks}"


def _split(buckets: Iterable[Bucket], layout: Layout) -> Mapping[str, tuple[Bucket, ...]]:
    ordered = sorted(buckets, key=_order)
    if layout is Layout.STATIC:
        return {bucket_name(bucket): (bucket,) for bucket in ordered}
    if layout is Layout.UNIFIED:
        return {"step": tuple(ordered)}
    phases = {phase.value: tuple(b for b in ordered if b.phase is phase) for phase in Phase}
    return {name: found for name, found in phases.items() if found}


def _order(bucket: Bucket) -> tuple[str, int, int, int]:
    return bucket.phase.value, bucket.batch, bucket.tokens, bucket.past_blocks


def _job(
    name: str, buckets: tuple[Bucket, ...], program: ProgramSpec, kv: KVSpec, common: AtcOptions
) -> CompileJob:
    inputs = program.inputs
    gears = tuple(shapes.gear_values(inputs, bucket, kv) for bucket in buckets)
    _require_gears_fit(name, gears)
    if len(buckets) > 1:
        dims = [shapes.gear_dims(spec, kv) for spec in inputs]
    else:
        sizes = shapes.bucket_sizes(buckets[0], kv)
        dims = [shapes.static_dims(spec, sizes) for spec in inputs]
    options = dataclasses.replace(
        common,
        output=name,
        input_shape=shapes.input_shape(inputs, dims),
        dynamic_dims=shapes.dynamic_dims(gears) if len(buckets) > 1 else "",
    )
    return CompileJob(name, buckets, inputs, program.outputs, kv, options)


def _require_gears_fit(name: str, gears: tuple[tuple[int, ...], ...]) -> None:
    most = load_atc_table().max_gears
    if len(gears) > most:
        raise ConfigError(
            f"programs/{name}.om would have {len(gears)} gears, ATC documents {most} at most; "
            f"give fewer buckets or take --layout static"
        )
    if len(set(gears)) != len(gears):
        raise ConfigError(f"programs/{name}.om has the same gear twice; give each bucket once")
