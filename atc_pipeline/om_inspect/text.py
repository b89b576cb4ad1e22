"""The facts about an OM file for people: one section for each question.

Owns what is shown and what is left to `--json`. Texts of the file are shown without their control
characters, so that a hostile file cannot write to the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from atc_pipeline.om_inspect.as_json import model_type_name
from atc_pipeline.om_inspect.facts import GearFacts, ModelFacts, OmFacts, TensorFacts

_MAX_SHOWN = 16
_MAX_TEXT = 2000
_SIZES = (
    "memory_size",
    "weight_size",
    "zero_copy_memory_size",
    "session_scope_memory_size",
    "p2p_memory_size",
    "variable_size",
)
_BUILD = (
    "soc_version",
    "arch_type",
    "framework_type",
    "target_type",
    "core_type",
    "atc_version",
    "opp_version",
    "compiler_version",
    "host_env_os",
    "host_env_cpu",
    "stream_num",
    "event_num",
    "om_info_list",
    "om_compress_version",
    "atc_cmdline",
)

Rows = list[tuple[str, str]]


def describe(facts: OmFacts, title: str) -> str:
    """The whole text; `title` names the file."""
    sections = [_section(f"OM file {printable(title)}", _file_rows(facts))]
    for number, model in enumerate(facts.models):
        prefix = f"model {number}: " if len(facts.models) > 1 else ""
        sections += [_section(prefix + name, rows) for name, rows in _model_sections(model) if rows]
    sections += [
        describe(sub_file, f"{number} of the bundle {title}")
        for number, sub_file in enumerate(facts.sub_files)
    ]
    if facts.warnings:
        sections.append(_section("warnings", [("-", warning) for warning in facts.warnings]))
    return "\n".join(sections)


def printable(text: str) -> str:
    """Text without control characters, cut to a length that a terminal bears."""
    shown = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + f"... ({len(text):,} characters)"
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    shown = [(printable(name), printable(value)) for name, value in rows]
    width = min(40, max((len(name) for name, _ in shown), default=0))
    return f"{title}\n" + "".join(f"  {name:<{width}}  {value}\n" for name, value in shown)


def _file_rows(facts: OmFacts) -> Rows:
    header = facts.header
    rows = [
        ("name", header.name),
        ("size", f"{facts.size_bytes:,} bytes"),
        ("header", f"{header.version:#010x} ({'old' if header.is_old else 'new'})"),
        ("kind", model_type_name(header.model_type)),
        ("models", str(header.model_num)),
        (
            "shapes",
            "open until run time" if header.has_unknown_shape else "known (one, or gears)",
        ),
        ("platform", f"{header.platform_version} type {header.platform_type}".strip()),
        ("encrypted", "yes" if header.is_encrypted else "no"),
    ]
    if header.needs_os_cpu_check:
        rows.append(("host", "libraries of one host system are inside"))
    return rows


def _model_sections(model: ModelFacts) -> Iterator[tuple[str, Rows]]:
    yield f"model {printable(model.name)}", _attribute_rows(model)
    yield "inputs", [_tensor_row(tensor) for tensor in model.inputs]
    yield "outputs", [_tensor_row(tensor) for tensor in model.outputs]
    if model.gears is not None:
        yield f"gears ({model.gears.kind})", _gear_rows(model.gears)
    yield "partitions", [(name, f"{size:,} bytes") for name, size in model.partitions]
    if model.graph is not None:
        total = sum(model.graph.op_counts.values())
        yield f"operators ({total:,} in {model.graph.num_graphs:,} graphs)", _op_rows(model)
        yield "weights in other files", _weight_rows(model)


def _attribute_rows(model: ModelFacts) -> Rows:
    sizes = [(n, model.attribute(n)) for n in _SIZES]
    rows = [(n, f"{int(v):,} bytes" if v.isdecimal() else v) for n, v in sizes if v]
    return rows + [(name, text) for name in _BUILD if (text := model.attribute(name))]


def _tensor_row(tensor: TensorFacts) -> tuple[str, str]:
    size = f"{tensor.size_bytes:,} bytes" if tensor.size_bytes else "size unknown"
    return tensor.name, f"{tensor.dtype} {_dims(tensor.dims)} {tensor.layout}, {size}"


def _dims(dims: Iterable[int]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _gear_rows(gears: GearFacts) -> Rows:
    rows = [("input order", ", ".join(gears.input_order))] if gears.input_order else []
    for number, values in enumerate(gears.values):
        shapes = ", ".join(map(_dims, gears.output_shapes[number])) if gears.output_shapes else ""
        text = _dims(values) + (f" -> {shapes}" if shapes else "")
        rows.append((f"gear {number}", text))
    return rows


def _op_rows(model: ModelFacts) -> Rows:
    assert model.graph is not None
    counts = sorted(model.graph.op_counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(name or "(no type)", f"{count:,}") for name, count in counts[:_MAX_SHOWN]]
    if len(counts) > _MAX_SHOWN:
        rest = sum(count for _, count in counts[_MAX_SHOWN:])
        rows.append((f"{len(counts) - _MAX_SHOWN} other types", f"{rest:,}"))
    return rows


def _weight_rows(model: ModelFacts) -> Rows:
    """Files and the bytes taken from each."""
    assert model.graph is not None
    sizes: dict[str, int] = {}
    for weight in model.graph.external_weights:
        sizes[weight.location] = sizes.get(weight.location, 0) + weight.length
    rows = [(name, f"{size:,} bytes") for name, size in sorted(sizes.items())]
    if len(rows) > _MAX_SHOWN:
        rest = sum(sizes.values())
        rows = [*rows[:_MAX_SHOWN], (f"{len(rows):,} files", f"{rest:,} bytes together")]
    return rows
