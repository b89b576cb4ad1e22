"""The public entry of the exporter: checkpoint in, step graph, tokenizer and reports out.

Owns the order of the stages. Each stage is a module of its own.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from export.architectures import require_length
from export.checkpoint import Checkpoint, load_model, load_tokenizer, open_checkpoint
from export.checkpoint_files import file_sha256, find_checkpoint
from export.facts import kv_identity_inputs, kv_spec, max_model_len, model_facts, step_shape
from export.graphs import StepGraph
from export.paged_runner import open_session
from export.parity import ParityReport, check_parity
from export.parity_input import parity_input
from export.reference import REFERENCE_PATH, record_case, write_reference
from export.result import (
    PARITY_REPORT_PATH,
    PROGRAM_PATH,
    TOKENIZER_FOLDER,
    WEIGHTS_PATH,
    ExportResult,
)
from export.spec import ExportSpec, default_buckets, require_cover
from export.step_shape import StepShape, input_specs, output_specs
from export.tokenizer_files import named_templates, tokens_beyond, write_tokenizer
from export.trace import write_step_graph
from omruntime.buckets import Bucket, BucketTable
from omruntime.manifest import ModelFacts, ProgramSpec

Progress = Callable[[str], None]

_TOOLS = ("onnx", "onnxruntime", "torch", "transformers", "tokenizers")


def export_step_graph(spec: ExportSpec, out_dir: Path, progress: Progress) -> ExportResult:
    """Export a checkpoint as one ONNX step graph and prove it equal to the checkpoint.

    Writes `programs/step.onnx`, `programs/step.weights`, `tokenizer/`, `reports/parity.json`
    and `reports/reference.json` below `out_dir`, which exists. Equal input and tools give equal
    bytes.

    Args:
        progress: Called with one line at the start of each stage.

    Raises:
        ConfigError: The spec does not fit the checkpoint, or its files are not whole.
        ExportError: The checkpoint is unproven, or fails the parity gate.
    """
    if spec.num_threads:
        torch.set_num_threads(spec.num_threads)
    progress("checking the checkpoint's files")
    files = find_checkpoint(spec.checkpoint)
    with open_checkpoint(files, spec) as checkpoint:
        length = max_model_len(checkpoint.config, spec)
        require_length(checkpoint.config, length)
        buckets = spec.buckets or default_buckets(length, spec.max_num_seqs, spec.block_size)
        require_cover(buckets, spec, length)
        progress("writing the tokenizer")
        tokenizer = load_tokenizer(checkpoint)
        add_bos = checkpoint.gguf.add_bos if checkpoint.gguf else None
        tokenizer_files = write_tokenizer(tokenizer, out_dir / TOKENIZER_FOLDER, add_bos)
        progress("loading the weights")
        model = load_model(checkpoint, spec)
        shape = step_shape(model, spec.block_size)
        facts = model_facts(checkpoint, spec, shape, tokenizer)
        export = _Export(spec, out_dir, checkpoint, tokenizer, model, shape, facts, buckets)
        progress("tracing the step graph")
        _write_program(export)
        report = _prove(export, progress)
        names = [f"{TOKENIZER_FOLDER}/{name}" for name in tokenizer_files]
        return _result(export, report, names)


@dataclass(frozen=True, slots=True)
class _Export:
    """What the stages after loading share."""

    spec: ExportSpec
    out_dir: Path
    checkpoint: Checkpoint
    tokenizer: PreTrainedTokenizerFast
    model: PreTrainedModel
    shape: StepShape
    facts: ModelFacts
    buckets: tuple[Bucket, ...]


def _write_program(export: _Export) -> None:
    program = export.out_dir / PROGRAM_PATH
    program.parent.mkdir()
    graph = StepGraph(export.model, export.shape)
    try:
        write_step_graph(graph, program, export.out_dir / WEIGHTS_PATH)
    finally:
        graph.release()


def _prove(export: _Export, progress: Progress) -> ParityReport:
    """Run the parity gate and write its two reports."""
    progress("loading the graph into ONNX Runtime")
    session = open_session(export.out_dir / PROGRAM_PATH, export.spec.num_threads)
    table = BucketTable(export.buckets, export.spec.block_size)
    given = parity_input(export.tokenizer, export.shape, table, export.facts.max_model_len)
    report, answers = check_parity(export.model, session, given, progress)
    path = export.out_dir / PARITY_REPORT_PATH
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(report), indent=2, sort_keys=True) + "\n")
    cases = zip(given.prompts, answers, strict=True)
    write_reference(export.out_dir, tuple(record_case(p, a.logits) for p, a in cases))
    return report


def _result(export: _Export, report: ParityReport, tokenizer_files: list[str]) -> ExportResult:
    written = [PROGRAM_PATH, WEIGHTS_PATH, PARITY_REPORT_PATH, REFERENCE_PATH, *tokenizer_files]
    kv = kv_spec(export.shape)
    program_sha256, weights_sha256 = (
        file_sha256(export.out_dir / path) for path in (PROGRAM_PATH, WEIGHTS_PATH)
    )
    config = export.checkpoint.config
    return ExportResult(
        model=export.facts,
        kv=kv,
        program=ProgramSpec(
            role="step",
            path=PROGRAM_PATH,
            inputs=input_specs(export.shape),
            outputs=output_specs(export.shape),
            buckets=export.buckets,
        ),
        files=tuple(sorted(written)),
        kv_identity_inputs=kv_identity_inputs(config, program_sha256, weights_sha256, kv),
        checkpoint_sha256=export.checkpoint.files.sha256(),
        tool_versions={name: importlib.metadata.version(name) for name in _TOOLS},
        parity=report.summary(),
        warnings=tuple(_warnings(export)),
    )


def _warnings(export: _Export) -> Iterator[str]:
    if not export.facts.eos_token_ids:
        yield "the checkpoint names no end token; answers end at their length limit only"
    elif export.facts.eos_source not in ("generation_config.json", "config.json"):
        yield f"the end tokens come from {export.facts.eos_source}"
    if not named_templates(export.tokenizer):
        yield "the checkpoint has no chat template; chat requests will be refused"
    beyond = tokens_beyond(export.tokenizer, export.shape.vocab_size)
    if beyond:
        yield (
            f"the tokenizer has tokens that the model has no embedding for, prompts with them "
            f"will be refused: {', '.join(beyond)}"
        )
    if export.checkpoint.files.ignored:
        yield f"ignored weight files: {', '.join(export.checkpoint.files.ignored)}"
