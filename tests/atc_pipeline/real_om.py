"""An OM as `atc` would answer a job, without a model in it."""

from __future__ import annotations

from pathlib import Path

from atc_pipeline.atc.jobs import CompileJob
from atc_pipeline.om_inspect.facts import TensorFacts
from omruntime.om_file import (
    DataType,
    InoutInfo,
    OmHeader,
    Partition,
    PartitionType,
    TensorDesc,
    pack_inout_info,
    write_om,
)
from omruntime.om_file.attributes import AttrValue
from omruntime.om_file.model_pack import pack_graph, pack_model
from tests.atc_pipeline.program_facts import facts_of


def write_real_om(job: CompileJob, folder: Path, **attributes: AttrValue) -> Path:
    """Write the OM that the job asks for into `folder`; `attributes` are the model's."""
    facts = facts_of(job)
    info = InoutInfo(
        inputs=tuple(_desc(tensor) for tensor in facts.inputs),
        outputs=tuple(_desc(tensor) for tensor in facts.outputs),
        dim_gears=job.gears,
        input_order=tuple(spec.name for spec in job.inputs) if job.has_gears else (),
    )
    known: dict[str, AttrValue] = {
        "soc_version": facts.soc_version,
        "atc_version": facts.atc_version,
        "atc_cmdline": facts.atc_cmdline,
        "weight_size": 1000,
        "memory_size": 2000,
    }
    model = pack_model(job.name, 2, [pack_graph("main", [])], known | attributes)
    parts = [
        Partition(PartitionType.MODEL_INOUT_INFO, (pack_inout_info(info),)),
        Partition(PartitionType.MODEL_DEF, model),
        Partition(PartitionType.TASK_INFO, (bytes(16),)),
    ]
    path = folder / f"{job.name}.om"
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        write_om(stream, OmHeader(job.name), [parts])
    return path


def _desc(tensor: TensorFacts) -> TensorDesc:
    return TensorDesc(tensor.name, DataType[tensor.dtype.upper()], tensor.dims, tensor.size_bytes)
