"""Gather the facts about an OM file.

Owns which source of a fact wins: the flat description before the operators, for inputs, outputs
and gears. Weights, kernels and tasks are never read, so a file of any size takes no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atc_pipeline.om_inspect.facts import GearFacts, ModelFacts, OmFacts, TensorFacts
from atc_pipeline.om_inspect.graph_facts import read_graph_facts
from atc_pipeline.om_inspect.warnings import find_warnings
from omruntime.errors import BundleError
from omruntime.om_file import (
    Block,
    InoutInfo,
    OmFile,
    PartitionType,
    TensorDesc,
    data_type_name,
    format_name,
    gear_input_shapes,
    gear_output_shapes,
    parse_inout_info,
    read_om,
)
from omruntime.om_file.attributes import AttributeDictionary
from omruntime.om_file.model_def import MAX_FIELDS, read_model_def
from omruntime.om_file.wire import FieldBudget

# Each gear has shapes for all tensors. 100 gears, the most that atc makes, of 100 outputs have a
# million; more would let a file of a megabyte take hours and gigabytes.
_MAX_GEAR_FACTS = 4_000_000


def read_om_facts(source: Path | bytes) -> OmFacts:
    """All facts about the file at a path, or about bytes that hold one.

    Raises:
        BundleError: Not a readable OM file; says the offset, what was got and what was wanted.
    """
    om = read_om(source)
    try:
        return _facts_of(om, FieldBudget(MAX_FIELDS))
    except BundleError as error:
        where = f"{source}: " if isinstance(source, Path) else ""
        raise BundleError(f"{where}{error}") from error


def _facts_of(om: OmFile, budget: FieldBudget) -> OmFacts:
    models = tuple(_models(om, budget))
    sub_files = tuple(_facts_of(sub_model, budget) for sub_model in om.sub_models)
    return OmFacts(om.header, om.size_bytes, models, sub_files, tuple(find_warnings(om, models)))


def _models(om: OmFile, budget: FieldBudget) -> Iterator[ModelFacts]:
    first: AttributeDictionary | None = None
    for block in om.blocks:
        model, dictionary = _model_of(block, first, budget)
        first = first or dictionary
        yield model


def _model_of(
    block: Block, first: AttributeDictionary | None, budget: FieldBudget
) -> tuple[ModelFacts, AttributeDictionary | None]:
    partitions = tuple((entry.type_name, entry.size_bytes) for entry in block.entries)
    info = _inout_info(block)
    if PartitionType.MODEL_DEF not in block.partitions:
        inputs, outputs = _tensors(info.inputs), _tensors(info.outputs)
        return ModelFacts("", partitions, inputs, outputs, _flat_gears(info)), first
    data = block.partitions[PartitionType.MODEL_DEF]
    offset = block.partition_offset(PartitionType.MODEL_DEF)
    model = read_model_def(data, offset, first, budget)
    graph = read_graph_facts(model)
    facts = ModelFacts(
        name=model.name,
        partitions=partitions,
        inputs=_tensors(info.inputs) or graph.inputs,
        outputs=_tensors(info.outputs) or graph.outputs,
        gears=_flat_gears(info) or graph.gears,
        attributes=model.attributes,
        graph=graph,
    )
    return facts, model.dictionary


def _inout_info(block: Block) -> InoutInfo:
    partition = PartitionType.MODEL_INOUT_INFO
    if partition not in block.partitions:
        return InoutInfo()
    return parse_inout_info(block.partitions[partition], block.partition_offset(partition))


def _tensors(descs: tuple[TensorDesc, ...]) -> tuple[TensorFacts, ...]:
    return tuple(
        TensorFacts(d.name, data_type_name(d.dtype), d.dims, format_name(d.format), d.size_bytes)
        for d in descs
    )


def _flat_gears(info: InoutInfo) -> GearFacts | None:
    num_gears = len(info.dim_gears) + len(info.image_gears) + len(info.batch_gears)
    num_named = sum(map(len, (info.inputs, info.outputs, info.input_order, info.output_shapes)))
    if num_gears * num_named > _MAX_GEAR_FACTS:
        raise BundleError(
            f"MODEL_INOUT_INFO: got {num_gears} gears of {num_named} tensors, orders and shapes, "
            f"wanted at most {_MAX_GEAR_FACTS} together"
        )
    batches = tuple((size,) for size in info.batch_gears)
    for kind, values in (
        ("dims", info.dim_gears),
        ("image", info.image_gears),
        ("batch", batches),
    ):
        if values:
            return GearFacts(
                kind,
                values,
                info.input_order,
                tuple(gear_input_shapes(info, gear) for gear in values) if kind == "dims" else (),
                tuple(gear_output_shapes(info, i) for i in range(len(values)))
                if info.output_shapes
                else (),
            )
    return None
