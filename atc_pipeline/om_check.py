"""Whether an OM is what its job asked for: chip, tensors, gears, command line.

Owns the comparison. A build runs it on every OM, its own or one that came from another machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from atc_pipeline.atc import shapes
from atc_pipeline.atc.jobs import CompileJob
from atc_pipeline.atc.options import PATH_FLAGS
from atc_pipeline.om_facts import ProgramFacts
from atc_pipeline.om_inspect.facts import TensorFacts
from omruntime.manifest import TensorSpec
from omruntime.om_file import GEAR_INPUT

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int8": 1}


def find_om_problems(job: CompileJob, facts: ProgramFacts) -> list[str]:
    """One line for each thing that differs from what the job asked for; empty when nothing."""
    return [*find_shape_problems(job, facts), *_command_problems(job, facts)]


def find_shape_problems(job: CompileJob, facts: ProgramFacts) -> list[str]:
    """The same without the flags of the command line, which a manifest does not hold."""
    return [
        *_soc_problems(job, facts),
        *_input_problems(job, facts),
        *_gear_problems(job, facts),
        *_output_problems(job, facts),
    ]


def find_weight_file_problems(facts: ProgramFacts, folder: Path) -> list[str]:
    """One line for each external constant that is not whole in `folder`."""
    problems = []
    for weight in facts.external_weights:
        path = folder / Path(weight.location).name
        have_bytes = path.stat().st_size if path.is_file() else 0
        if have_bytes < weight.offset + weight.length:
            problems.append(
                f"wants {weight.offset + weight.length} bytes of {path.name} in {folder.name}/, "
                f"there are {have_bytes}"
            )
    return problems


def _soc_problems(job: CompileJob, facts: ProgramFacts) -> Iterator[str]:
    if facts.soc_version != job.options.soc_version:
        yield f"is for {facts.soc_version or 'no named chip'}, wanted {job.options.soc_version}"


def _input_problems(job: CompileJob, facts: ProgramFacts) -> Iterator[str]:
    wanted = [spec.name for spec in job.inputs] + ([GEAR_INPUT] if job.has_gears else [])
    got = [tensor.name for tensor in facts.inputs]
    if got != wanted:
        yield f"has the inputs {', '.join(got)}, wanted {', '.join(wanted)}"
        return
    for spec, tensor in zip(job.inputs, facts.inputs, strict=False):
        where = f"input {spec.name}"
        yield from _dtype_problems(where, spec, tensor)
        dims = _wanted_dims(job, spec)
        if tensor.dims != dims:
            yield f"{where} has the shape {list(tensor.dims)}, wanted {list(dims)}"
        yield from _size_problems(where, job, spec, tensor)


def _gear_problems(job: CompileJob, facts: ProgramFacts) -> Iterator[str]:
    gears = facts.gears
    if gears is not None and gears.kind != "dims":
        yield f"has {gears.kind} gears, wanted those of --dynamic_dims"
        return
    got = () if gears is None else gears.values
    if gears is not None and gears.input_order != tuple(spec.name for spec in job.inputs):
        yield f"orders its gears by {', '.join(gears.input_order)}, wanted the inputs' order"
    missing = [gear for gear in job.gears if gear not in got]
    surplus = [gear for gear in got if gear not in job.gears]
    if missing or surplus:
        yield f"lacks the gears {_gears(missing)}, has {_gears(surplus)} that nobody asked for"
    elif len(got) != len(job.gears):
        yield "has a gear twice"


def _output_problems(job: CompileJob, facts: ProgramFacts) -> Iterator[str]:
    outputs = facts.outputs
    if len(outputs) != len(job.outputs):
        yield f"has {len(outputs)} outputs, wanted {', '.join(spec.name for spec in job.outputs)}"
        return
    for spec, tensor in zip(job.outputs, outputs, strict=True):
        where = f"output {spec.name}"
        # `node:index` or `node:index:tensor`; without the tensor's name the place must do.
        parts = tensor.name.split(":")
        if len(parts) > 2 and parts[-1] != spec.name:
            yield f"{where} is called {tensor.name}"
        yield from _dtype_problems(where, spec, tensor)
        yield from _size_problems(where, job, spec, tensor)


def _command_problems(job: CompileJob, facts: ProgramFacts) -> Iterator[str]:
    """The flags in the OM against the job's; the folders of paths may differ.

    Source: hicann/ge api/atc, the OM holds the command line of atc.bin, its words joined by
    spaces.
    """
    words = [word for word in facts.atc_cmdline.split() if word.startswith("-")]
    if not words:
        yield "does not hold the command line of atc"
        return
    pairs = (word.lstrip("-").partition("=") for word in words)
    got = {name: _plain(name, value.strip("\"'")) for name, _, value in pairs}
    wanted = {name: _plain(name, value) for name, value in job.options.flags().items()}
    for name in sorted(wanted.keys() | got.keys()):
        if got.get(name) != wanted.get(name):
            yield f"was compiled with --{name} {_said(got, name)}, wanted {_said(wanted, name)}"


def _plain(name: str, value: str) -> str:
    return PurePosixPath(value).name if name in PATH_FLAGS else value


def _said(flags: dict[str, str], name: str) -> str:
    return repr(flags[name]) if name in flags else "left out"


def _dtype_problems(where: str, spec: TensorSpec, tensor: TensorFacts) -> Iterator[str]:
    if tensor.dtype != spec.dtype:
        yield f"{where} is {tensor.dtype}, wanted {spec.dtype}"


def _size_problems(
    where: str, job: CompileJob, spec: TensorSpec, tensor: TensorFacts
) -> Iterator[str]:
    """Buffers smaller than the largest bucket needs; the compiler may pad, and may say nothing."""
    largest = max(
        math.prod(shapes.static_dims(spec, shapes.bucket_sizes(bucket, job.kv)))
        for bucket in job.buckets
    )
    need_bytes = largest * _ITEM_BYTES[spec.dtype]
    if 0 < tensor.size_bytes < need_bytes:
        yield f"{where} takes {tensor.size_bytes} bytes, its largest bucket needs {need_bytes}"


def _wanted_dims(job: CompileJob, spec: TensorSpec) -> tuple[int, ...]:
    if job.has_gears:
        return shapes.gear_dims(spec, job.kv)
    return shapes.static_dims(spec, shapes.bucket_sizes(job.buckets[0], job.kv))


def _gears(gears: Sequence[tuple[int, ...]]) -> str:
    return " ".join(",".join(map(str, gear)) for gear in gears) or "none"
