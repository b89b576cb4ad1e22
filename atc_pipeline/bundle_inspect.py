"""What is in a bundle, as text for people and as JSON for programs.

Reads the manifest and the build report alone; whether the files fit is `verify.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from atc_pipeline.bundle import BUILD_REPORT_PATH, is_simulated
from omruntime.buckets import Bucket, Phase
from omruntime.errors import BundleError
from omruntime.manifest import Manifest, ProgramSpec, TensorSpec

# A folder of more is one line of the text: hundreds of weight files say nothing one by one.
MAX_LISTED_FILES = 12


def read_warnings(bundle: Path) -> tuple[str, ...]:
    """What the build warned of; empty without a build report.

    Raises:
        BundleError: The report is not one of ours.
    """
    path = bundle / BUILD_REPORT_PATH
    if not path.exists():
        return ()
    try:
        warnings = json.loads(path.read_text(encoding="utf-8"))["warnings"]
        return tuple(str(warning) for warning in warnings)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise BundleError(f"cannot read {path}: {error}; rebuild the bundle") from error


def describe_as_json(manifest: Manifest, warnings: tuple[str, ...]) -> str:
    """The manifest, its digest and the build's warnings as one JSON object."""
    plain = {
        "manifest": json.loads(manifest.to_json()),
        "manifest_sha256": manifest.digest(),
        "total_bytes": sum(entry.size_bytes for entry in manifest.files),
        "warnings": list(warnings),
    }
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def describe_as_text(manifest: Manifest, warnings: tuple[str, ...]) -> str:
    """The same for people: one section for each question."""
    sections = [
        *(["SIMULATED: no card runs its programs\n"] if is_simulated(manifest) else []),
        _section("model", _model_rows(manifest)),
        _section("KV cache", _kv_rows(manifest)),
    ]
    sections += [_program_section(program) for program in manifest.programs]
    sections += [
        _section("parity with the checkpoint", _parity_rows(manifest)),
        _section("files", _file_rows(manifest)),
        _section("built from", sorted(manifest.provenance.items())),
        _section("identity", _identity_rows(manifest)),
    ]
    if warnings:
        sections.append("warnings\n" + "".join(f"  {warning}\n" for warning in warnings))
    return "\n".join(sections)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    return f"{title}\n" + "".join(f"  {name:<{width}}  {value}\n" for name, value in rows)


def _model_rows(manifest: Manifest) -> list[tuple[str, str]]:
    model = manifest.model
    ends = ", ".join(str(token_id) for token_id in model.eos_token_ids) or "none"
    defaults = model.sampling_defaults
    return [
        ("name", model.name),
        ("architecture", model.architecture),
        ("layers", str(model.num_layers)),
        ("heads", f"{model.num_heads} query, {model.num_kv_heads} key/value of {model.head_dim}"),
        ("vocabulary", str(model.vocab_size)),
        ("dtype", model.dtype),
        ("max_model_len", f"{model.max_model_len} tokens"),
        ("max_num_seqs", str(model.max_num_seqs)),
        ("begin token", "none" if model.bos_token_id is None else str(model.bos_token_id)),
        ("end tokens", f"{ends} (from {model.eos_source})"),
        (
            "sampling defaults",
            f"temperature {defaults.temperature:g}, top_p {defaults.top_p:g}, "
            f"top_k {defaults.top_k}, min_p {defaults.min_p:g}, "
            f"repetition_penalty {defaults.repetition_penalty:g}",
        ),
    ]


def _kv_rows(manifest: Manifest) -> list[tuple[str, str]]:
    kv = manifest.kv
    return [
        ("layout", kv.layout.value),
        ("dtype", kv.dtype),
        ("block_size", f"{kv.block_size} tokens"),
        ("bytes_per_block", f"{kv.bytes_per_block:,}"),
        ("num_blocks", "chosen at start" if kv.num_blocks is None else f"{kv.num_blocks}, fixed"),
    ]


def _program_section(program: ProgramSpec) -> str:
    rows = [("input " + name, text) for name, text in _tensor_rows(program.inputs)]
    rows += [("output " + name, text) for name, text in _tensor_rows(program.outputs)]
    for phase in Phase:
        buckets = [b for b in program.buckets if b.phase is phase]
        rows += [(f"{phase.value} buckets", text) for text in _bucket_rows(buckets)]
    return _section(f"program {program.path} ({program.role})", rows)


def _tensor_rows(specs: Iterable[TensorSpec]) -> Iterator[tuple[str, str]]:
    """One row for each tensor; the layers' pools, alike but for the name, share one."""
    for (prefix, dtype, shape), alike in groupby(specs, key=_kind_of):
        count = len(list(alike))
        times = f"{count} times " if count > 1 else ""
        yield prefix, f"{times}{dtype} [{', '.join(str(size) for size in shape)}]"


def _kind_of(spec: TensorSpec) -> tuple[str, str, tuple[int | str, ...]]:
    return spec.name.partition(".")[0], spec.dtype, spec.shape


def _bucket_rows(buckets: list[Bucket]) -> Iterator[str]:
    """`batch x tokens` of all shapes that come with the same numbers of past blocks."""
    pasts: dict[tuple[int, int], list[int]] = {}
    for bucket in buckets:
        pasts.setdefault((bucket.batch, bucket.tokens), []).append(bucket.past_blocks)
    grids: dict[tuple[int, ...], list[str]] = {}
    for (batch, tokens), past in sorted(pasts.items()):
        grids.setdefault(tuple(sorted(past)), []).append(f"{batch}x{tokens}")
    for grid, shapes in grids.items():
        yield f"{', '.join(shapes)}; each over {', '.join(map(str, grid))} past blocks"


def _file_rows(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """One row for each file, or for a folder of many."""
    for folder, group in groupby(manifest.files, key=lambda e: e.path.rpartition("/")[0]):
        entries = list(group)
        if len(entries) > MAX_LISTED_FILES:
            size_bytes = sum(entry.size_bytes for entry in entries)
            yield f"{folder}/", f"{size_bytes:,} bytes in {len(entries)} files"
        else:
            yield from ((entry.path, f"{entry.size_bytes:,} bytes") for entry in entries)


def _parity_rows(manifest: Manifest) -> list[tuple[str, str]]:
    parity = manifest.parity
    return [
        ("cases", str(parity.num_cases)),
        (
            "largest logits difference",
            f"{parity.max_abs_logits_diff:.3g} (tolerance {parity.tolerance:.3g})",
        ),
        ("greedy tokens compared", str(parity.num_greedy_tokens)),
        ("near ties", str(parity.num_near_ties)),
    ]


def _identity_rows(manifest: Manifest) -> list[tuple[str, str]]:
    return [
        ("format_version", str(manifest.format_version)),
        ("graph_contract", str(manifest.graph_contract)),
        ("profile", manifest.profile),
        ("soc", manifest.soc),
        ("kv_identity", manifest.kv_identity),
        ("manifest sha256", manifest.digest()),
    ]


def summarise(manifest: Manifest) -> str:
    """One line on what was built and how well it agrees with the checkpoint."""
    parity = manifest.parity
    num_buckets = sum(len(program.buckets) for program in manifest.programs)
    label = " (SIMULATED: no card runs it)" if is_simulated(manifest) else ""
    return (
        f"{manifest.model.name}{label}, {num_buckets} buckets, logits within "
        f"{parity.max_abs_logits_diff:.2g} of the checkpoint over {parity.num_cases} cases"
    )
