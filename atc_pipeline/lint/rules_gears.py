"""Rules on sizes: gears of an OM, and tensors with more elements than the compiler counts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from atc_pipeline.lint.graph import LintGraph
from atc_pipeline.lint.report import Severity
from atc_pipeline.lint.rule import Fault, Rule

MAX_GEARS = 100
MAX_ELEMENTS = 2**31 - 1
_DYNAMIC_DIMS = "hicann/ge docs/zh/user_guides/atc_tools/CLI_options/--dynamic_dims.md"


def _gear_counts(graph: LintGraph) -> Iterator[Fault]:
    for name, buckets in graph.gears.programs if graph.gears is not None else ():
        if len(buckets) > MAX_GEARS:
            yield Fault(name, f"the OM would have {len(buckets)} gears, ATC takes 2 to {MAX_GEARS}")


def _equal_gears(graph: LintGraph) -> Iterator[Fault]:
    for name, buckets in graph.gears.programs if graph.gears is not None else ():
        shapes = [(b.batch, b.tokens, b.past_blocks) for b in buckets]
        twice = next((shape for shape in shapes if shapes.count(shape) > 1), None)
        if twice is not None:
            rows, tokens, past = twice
            yield Fault(
                name,
                f"two gears are {rows} rows of {tokens} tokens over {past} blocks; ATC would give "
                f"E10039",
            )


def _missing_past(graph: LintGraph) -> Iterator[Fault]:
    takes_table = any(value.name == "block_tables" for value in graph.inputs)
    for name, buckets in graph.gears.programs if graph.gears is not None and takes_table else ():
        if any(b.past_blocks < 1 for b in buckets):
            yield Fault(name, "a bucket has 0 past blocks, but a gear's sizes must be positive")


def _element_counts(graph: LintGraph) -> Iterator[Fault]:
    for name in graph.values():
        sizes = graph.sizes(name)
        if sizes is None or None in sizes:
            continue
        count = math.prod(size for size in sizes if size is not None)
        if count > MAX_ELEMENTS:
            yield Fault(name, f"the tensor has {count} elements, counted in 32 bits")


RULES = (
    Rule(
        "gear-count",
        Severity.ERROR,
        f"plan with --max-gears {MAX_GEARS} or fewer, or build one OM per bucket",
        _DYNAMIC_DIMS,
        _gear_counts,
    ),
    Rule(
        "equal-gears",
        Severity.ERROR,
        "drop one of the two",
        "hicann/ge api, multi_batch_options.cc (E10039)",
        _equal_gears,
    ),
    Rule(
        "gear-without-past",
        Severity.ERROR,
        "give every bucket at least one block",
        "hicann/ge api, multi_batch_options.cc (E10038)",
        _missing_past,
    ),
    Rule(
        "too-many-elements",
        Severity.ERROR,
        "lower num_blocks, or split the tensor",
        "hicann/ge parser/parser/onnx/onnx_parser.cc",
        _element_counts,
    ),
)
