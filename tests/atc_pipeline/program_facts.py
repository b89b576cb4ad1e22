"""The facts of an OM that is exactly what its job asked for."""

from __future__ import annotations

import math

from atc_pipeline.atc import shapes
from atc_pipeline.atc.jobs import CompileJob
from atc_pipeline.atc.options import build_atc_argv
from atc_pipeline.om_facts import ProgramFacts
from atc_pipeline.om_inspect.facts import GearFacts, TensorFacts
from omruntime.manifest import TensorSpec
from omruntime.om_file import GEAR_INPUT

_ITEM_BYTES = {"int32": 4, "float16": 2, "float32": 4}


def facts_of(job: CompileJob) -> ProgramFacts:
    """Facts without a problem."""
    names = tuple(spec.name for spec in job.inputs)
    inputs = [_tensor(job, spec, spec.name) for spec in job.inputs]
    gears = None
    if job.has_gears:
        gears = GearFacts("dims", job.gears, names)
        inputs.append(TensorFacts(GEAR_INPUT, "int32", (8,), "ND", 32))
    command = ["/usr/bin/atc.bin", *build_atc_argv(job.options)]
    outputs = [_tensor(job, spec, f"/node:0:{spec.name}") for spec in job.outputs]
    return ProgramFacts(
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        gears=gears,
        external_weights=(),
        soc_version=job.options.soc_version,
        atc_version="8.5.0",
        atc_cmdline=" ".join(command).replace("--model=../", "--model=/elsewhere/"),
        ai_cpu_operators=(),
        weight_bytes=1000,
        memory_bytes=2000,
        is_simulated=False,
    )


def _tensor(job: CompileJob, spec: TensorSpec, name: str) -> TensorFacts:
    largest = max(
        math.prod(shapes.static_dims(spec, shapes.bucket_sizes(bucket, job.kv)))
        for bucket in job.buckets
    )
    sizes = shapes.bucket_sizes(job.buckets[0], job.kv)
    dims = shapes.gear_dims(spec, job.kv) if job.has_gears else shapes.static_dims(spec, sizes)
    return TensorFacts(name, spec.dtype, dims, "ND", largest * _ITEM_BYTES[spec.dtype])
