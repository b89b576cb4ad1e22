"""What a user should know about an OM file before serving it.

Owns the rules; the facts are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atc_pipeline.om_inspect.facts import ModelFacts
from omruntime.om_file import Block, OmFile, PartitionType, parse_inout_info
from omruntime.om_file.simulated import NAME_PREFIX

_INFO_LIST_LENGTHS = (4, 5)


def find_warnings(om: OmFile, models: Sequence[ModelFacts]) -> Iterator[str]:
    """One line for each thing worth knowing."""
    if om.header.is_encrypted:
        yield "the payload is encrypted; only the header can be read"
    if om.header.name.startswith(NAME_PREFIX):
        yield "made by simatc, a simulator of atc: it runs on simulated devices only"
    if om.num_extra_bytes:
        yield f"{om.num_extra_bytes:,} bytes follow the last partition; the loader ignores them"
    for number, (block, model) in enumerate(zip(om.blocks, models, strict=True)):
        where = f"model {number}: " if len(om.blocks) > 1 else ""
        yield from (where + warning for warning in _of_block(block))
        yield from (where + warning for warning in _of_model(model))


def _of_block(block: Block) -> Iterator[str]:
    if not block.has_running_offsets:
        yield "the partition table's offsets disagree with its sizes; the loader uses the sizes"
    known = set(PartitionType)
    unknown = [entry.type for entry in block.entries if entry.type not in known]
    if unknown:
        yield f"partitions of unknown types {unknown} were skipped"
    if [entry.type for entry in block.entries] == [PartitionType.MODEL_DEF]:
        yield "only a graph (as of atc --save_original_model); no device can run it"
    info = block.partitions.get(PartitionType.MODEL_INOUT_INFO)
    skipped = parse_inout_info(info).unknown_types if info is not None else ()
    if skipped:
        yield f"MODEL_INOUT_INFO entries of unknown types {list(skipped)} were skipped"


def _of_model(model: ModelFacts) -> Iterator[str]:
    for name, what in (("needCheckCpu", "AI CPU"), ("needCheckTf", "TensorFlow AI CPU")):
        operators = model.attribute(name)
        if operators:
            yield f"operators left the AI Core for the {what}: {operators}"
    if model.graph is not None and model.graph.external_weights:
        yield "weights lie in files beside the OM; keep them together"
    sizes = model.attributes.get("om_info_list")
    if isinstance(sizes, tuple) and len(sizes) not in _INFO_LIST_LENGTHS:
        yield f"om_info_list has {len(sizes)} entries, wanted 4 or 5"
