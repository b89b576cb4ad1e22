"""The public entry of the exporter: checkpoint in, step graph, tokenizer and reports out.

Owns the order of the stages. Each stage is a module of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from export.architectures import require_length
from export.bucket_grids import blocks_for, default_buckets, require_cover
from export.build_warnings import bucket_warnings, checkpoint_warnings, range_warnings
from export.checkpoint import Checkpoint, load_model, load_tokenizer, open_checkpoint
from export.checkpoint_files import file_sha256, find_checkpoint
from export.facts import kv_identity_inputs, kv_spec, max_model_len, model_facts, step_shape
from export.float16_range import (
    RANGE_REPORT_PATH,
    RangeReport,
    measure_weights,
    measured_activations,
    require_activations_fit,
    require_weights_fit,
)
from export.graphs import StepGraph
from export.kept_program import open_step_graph
from export.lower_openvino import Storage
from export.paged_runner import StepSession
from export.parity import ParityInput, Reference, check_parity, run_reference, tolerance_for
from export.parity_input import parity_input
from export.parity_report import ParityReport
from export.profiles import PoolNeeds, fixed_num_blocks, require_rows_fit
from export.quality import (
    QUALITY_REPORT_PATH,
    QualityReference,
    measure_quality,
    require_quality,
    run_quality_reference,
    write_quality_report,
)
from export.quality_text import quality_text
from export.reference import REFERENCE_PATH, record_case, write_reference
from export.result import (
    PARITY_REPORT_PATH,
    PROGRAM_PATH,
    TOKENIZER_FOLDER,
    WEIGHTS_PATH,
    ExportResult,
)
from export.spec import ExportSpec
from export.step_shape import StepShape, input_specs, output_specs
from export.tokenizer_files import write_tokenizer
from export.trace import write_step_graph
from omruntime.buckets import Bucket, BucketTable
from omruntime.errors import ConfigError
from omruntime.manifest import KVSpec, ModelFacts, ProgramSpec

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
    _require_openvino(spec)
    if spec.num_threads:
        torch.set_num_threads(spec.num_threads)
    progress("checking the checkpoint's files")
    files = find_checkpoint(spec.checkpoint)
    with open_checkpoint(files, spec) as checkpoint:
        length = max_model_len(checkpoint.config, spec)
        require_length(checkpoint.config, length)
        buckets = _buckets(spec, length)
        progress("writing the tokenizer")
        tokenizer = load_tokenizer(checkpoint)
        add_bos = checkpoint.gguf.add_bos if checkpoint.gguf else None
        tokenizer_files = write_tokenizer(tokenizer, out_dir / TOKENIZER_FOLDER, add_bos)
        progress("loading the weights")
        model = load_model(checkpoint, spec)
        shape = step_shape(model, spec.tokens_per_block, spec.profile)
        facts = model_facts(checkpoint, spec, shape, tokenizer)
        kv = kv_spec(shape, _num_blocks(spec, shape, length))
        export = _Export(spec, out_dir, checkpoint, tokenizer, model, shape, facts, kv, buckets)
        table = BucketTable(buckets, shape.block_size)
        given = replace(parity_input(tokenizer, shape, table, length), weights=spec.weights)
        progress("running the checkpoint itself")
        reference, ranges = _run_checkpoint(export, given)
        wanted_quality = _quality_reference(export)
        progress("tracing the step graph")
        _write_program(export)
        progress("loading the graph")
        session = open_step_graph(
            out_dir / PROGRAM_PATH, shape.layout, shape.dtype, spec.num_threads
        )
        report = _prove(export, given, reference, session, progress)
        if wanted_quality is not None:
            progress("measuring what the weights' format costs")
            _require_quality(export, session, wanted_quality)
        names = [f"{TOKENIZER_FOLDER}/{name}" for name in tokenizer_files]
        return _result(export, report, ranges, names)


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
    kv: KVSpec
    buckets: tuple[Bucket, ...]


def _buckets(spec: ExportSpec, length: int) -> tuple[Bucket, ...]:
    """The grid, given or by default, proven to cover."""
    require_rows_fit(spec.profile, spec.max_num_seqs)
    block_size = spec.tokens_per_block
    buckets = spec.buckets or default_buckets(spec.profile, length, spec.max_num_seqs, block_size)
    require_cover(buckets, block_size, spec.max_num_seqs, length)
    return buckets


def _num_blocks(spec: ExportSpec, shape: StepShape, length: int) -> int | None:
    needs = PoolNeeds(
        token_elements=shape.token_elements,
        block_size=shape.block_size,
        blocks_per_sequence=blocks_for(length, shape.block_size),
        max_num_seqs=spec.max_num_seqs,
    )
    return fixed_num_blocks(spec.profile, needs, spec.num_blocks)


def _write_program(export: _Export) -> None:
    program = export.out_dir / PROGRAM_PATH
    program.parent.mkdir()
    graph = StepGraph(export.model, export.shape, export.spec.profile)
    try:
        write_step_graph(graph, program, export.out_dir / WEIGHTS_PATH, _storage(export))
    finally:
        graph.release()


def _storage(export: _Export) -> Storage | None:
    weights = export.spec.weights
    if weights is None or export.shape.dtype != "bfloat16":
        return None
    return Storage(weights, num_positions=export.facts.max_model_len)


def _require_openvino(spec: ExportSpec) -> None:
    """Refuse a build whose gates cannot run, before anything is loaded.

    Raises:
        ConfigError: OpenVINO is not installed.
    """
    if spec.profile.dtype == "bfloat16" and importlib.util.find_spec("openvino") is None:
        raise ConfigError(
            f"weights in {spec.weight_dtype} run on OpenVINO, which is not installed; install it "
            f"with: pip install '.[openvino]' in omserve's folder"
        )


def _run_checkpoint(export: _Export, given: ParityInput) -> tuple[Reference, RangeReport | None]:
    """The checkpoint's own answers; on the way, what float16 cannot hold of it.

    Raises:
        ExportError: It overflows, and that was not accepted.
    """
    if export.shape.dtype != "float16":
        return run_reference(export.model, given), None
    ranges = RangeReport(measure_weights(export.model))
    require_weights_fit(ranges, export.spec.allow_clipping)
    watching = measured_activations(export.model, ranges)
    reference = run_reference(export.model, given, watching)
    ranges.write(export.out_dir)
    require_activations_fit(ranges, export.spec.allow_clipping)
    return reference, ranges


def _quality_reference(export: _Export) -> QualityReference | None:
    """What a format of weights other than the checkpoint's is held against."""
    if export.shape.dtype != "bfloat16":
        return None
    vocab_size, length = export.shape.vocab_size, export.facts.max_model_len
    text = quality_text(export.tokenizer, vocab_size, length)
    return run_quality_reference(export.model, text)


def _require_quality(export: _Export, session: StepSession, reference: QualityReference) -> None:
    """Measure, report and judge a format of weights.

    Raises:
        QualityError: It costs the checkpoint too much.
    """
    weights = export.spec.weights
    assert weights is not None, "a bfloat16 pool is asked for by a format of weights"
    table = BucketTable(export.buckets, export.shape.block_size)
    quality = measure_quality(session, export.shape, table, reference)
    write_quality_report(export.out_dir, weights, quality, reference.text.source)
    require_quality(quality, weights)


def _prove(
    export: _Export,
    given: ParityInput,
    reference: Reference,
    session: StepSession,
    progress: Progress,
) -> ParityReport:
    """Run the parity gate and write its two reports."""
    if export.shape.dtype != "float32":
        progress(f"measuring what {export.shape.dtype} costs the checkpoint")
    tolerance = tolerance_for(export.model, given, reference, export.spec.allow_clipping)
    report = check_parity(session, given, reference, tolerance, progress)
    path = export.out_dir / PARITY_REPORT_PATH
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report.plain(), indent=2, sort_keys=True) + "\n")
    cases = zip(given.prompts, reference.answers, strict=True)
    write_reference(export.out_dir, tuple(record_case(p, a.logits) for p, a in cases))
    return report


def _result(
    export: _Export,
    report: ParityReport,
    ranges: RangeReport | None,
    tokenizer_files: list[str],
) -> ExportResult:
    written = [PROGRAM_PATH, WEIGHTS_PATH, PARITY_REPORT_PATH, REFERENCE_PATH, *tokenizer_files]
    if ranges is not None:
        written.append(RANGE_REPORT_PATH)
    if export.shape.dtype == "bfloat16":
        written.append(QUALITY_REPORT_PATH)
    hashes = {
        "program_sha256": file_sha256(export.out_dir / PROGRAM_PATH),
        "weights_sha256": file_sha256(export.out_dir / WEIGHTS_PATH),
    }
    return ExportResult(
        model=export.facts,
        kv=export.kv,
        program=ProgramSpec(
            role="step",
            path=PROGRAM_PATH,
            inputs=input_specs(export.shape),
            outputs=output_specs(export.shape),
            buckets=export.buckets,
        ),
        files=tuple(sorted(written)),
        kv_identity_inputs=kv_identity_inputs(
            export.checkpoint.config, export.spec.profile, export.kv, hashes
        ),
        checkpoint_sha256=export.checkpoint.files.sha256(),
        tool_versions={name: importlib.metadata.version(name) for name in _TOOLS},
        parity=report.summary(),
        warnings=(
            *checkpoint_warnings(export.checkpoint, export.facts, export.tokenizer),
            *bucket_warnings(
                BucketTable(export.buckets, export.shape.block_size),
                export.facts.max_num_seqs,
                export.facts.max_model_len,
            ),
            *range_warnings(ranges, report),
        ),
    )
