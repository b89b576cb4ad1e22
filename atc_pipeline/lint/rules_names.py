"""Rules on names: of nodes, of values, and of the graph's inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator

from atc_pipeline.lint.graph import LintGraph
from atc_pipeline.lint.report import Severity
from atc_pipeline.lint.rule import Fault, Rule
from atc_pipeline.lint.value_types import graphs_below

_PARSER = "hicann/ge parser/parser/onnx/onnx_parser.cc"
# The runtime reports longer names as synthetic ones.
_MAX_NAME = 127


def _unnamed(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        if not placed.node.name:
            yield Fault(placed, "the node has no name; ATC's messages call it <type>_<number>")


def _duplicates(graph: LintGraph) -> Iterator[Fault]:
    seen: set[str] = set()
    for placed in graph.nodes:
        name = placed.node.name
        if name and name in seen:
            yield Fault(placed, f"an earlier node is called {name!r} too; ATC would give E13009")
        seen.add(name)


def _empty_outputs(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        if not all(placed.node.output):
            index = list(placed.node.output).index("")
            yield Fault(
                placed,
                f'output {index} is called ""; the parser wires it to every input that is left out',
            )


def _trailing_inputs(graph: LintGraph) -> Iterator[Fault]:
    for placed in graph.nodes:
        if placed.node.input and not placed.node.input[-1]:
            yield Fault(placed, 'its last input is ""; the parser counts it as given')


def _undefined(graph: LintGraph) -> Iterator[Fault]:
    known = {""}
    for inner in graphs_below(graph.model.graph):
        known.update(value.name for value in inner.input)
        known.update(tensor.name for tensor in inner.initializer)
        known.update(tensor.values.name for tensor in inner.sparse_initializer)
        known.update(name for node in inner.node for name in node.output)
    for placed in graph.nodes:
        for name in placed.node.input:
            if name not in known:
                yield Fault(placed, f"it reads {name!r}, which nothing writes")
    for value in graph.model.graph.output:
        if value.name not in known:
            yield Fault(value.name, "nothing writes this output of the graph")


def _written_twice(graph: LintGraph) -> Iterator[Fault]:
    for inner in graphs_below(graph.model.graph):
        written = {value.name for value in inner.input}
        written.update(tensor.name for tensor in inner.initializer)
        for name in (name for node in inner.node for name in node.output if name):
            if name in written:
                yield Fault(name, "two places write this value; its readers get one of them")
            written.add(name)


def _no_ends(graph: LintGraph) -> Iterator[Fault]:
    counts = {"inputs": len(graph.inputs), "outputs": len(graph.model.graph.output)}
    missing = " and no ".join(name for name, count in counts.items() if not count)
    if missing:
        yield Fault("", f"the graph has no {missing}; ATC would give E16001")


def _long_names(graph: LintGraph) -> Iterator[Fault]:
    for value in graph.inputs:
        if len(value.name) > _MAX_NAME:
            yield Fault(value.name, f"the input's name has {len(value.name)} characters")
    writers = {name: p.node for p in graph.nodes if p.depth == 0 for name in p.node.output}
    for value in graph.model.graph.output:
        node = writers.get(value.name)
        if node is None:
            continue
        compiled = f"{node.name}:{list(node.output).index(value.name)}:{value.name}"
        if len(compiled) > _MAX_NAME:
            yield Fault(
                value.name, f"the OM calls this output {compiled!r}, {len(compiled)} characters"
            )


RULES = (
    Rule(
        "unnamed-node",
        Severity.WARNING,
        "give every node a name of its own, so that ATC's messages lead to it",
        _PARSER,
        _unnamed,
    ),
    Rule(
        "duplicate-node-name",
        Severity.ERROR,
        "give every node a name of its own",
        "hicann/ge base/common/error_registry/error_registry.cc (E13009)",
        _duplicates,
    ),
    Rule(
        "empty-output",
        Severity.ERROR,
        "name the output, used or not, or drop it when it is the last one",
        _PARSER,
        _empty_outputs,
    ),
    Rule(
        "trailing-empty-input",
        Severity.WARNING,
        "leave the input out of the list",
        _PARSER,
        _trailing_inputs,
    ),
    Rule(
        "undefined-value",
        Severity.ERROR,
        "export the model again; the graph is not valid ONNX",
        "onnx/onnx docs/IR.md",
        _undefined,
    ),
    Rule(
        "value-written-twice",
        Severity.ERROR,
        "export the model again; the graph is not valid ONNX",
        "onnx/onnx docs/IR.md",
        _written_twice,
    ),
    Rule(
        "no-inputs-or-outputs",
        Severity.ERROR,
        "compile a graph that computes something of its inputs; constants need no compiler",
        f"{_PARSER} (E16001)",
        _no_ends,
    ),
    Rule(
        "long-name",
        Severity.ERROR,
        f"use at most {_MAX_NAME} characters, for an output those of <node>:<index>:<name>",
        "CANN pyACL reference, aclmdlIODims; hicann/ge runtime, the model's descriptions",
        _long_names,
    ),
)
