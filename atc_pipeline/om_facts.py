"""What a compiled OM says about itself, as far as a build compares it with what was asked.

Owns the choice of facts; reading them is `om_inspect`. Files are mapped: weights are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.om_inspect.facts import ExternalWeight, GearFacts, ModelFacts, TensorFacts
from atc_pipeline.om_inspect.gather import read_om_facts
from omruntime.errors import BundleError
from omruntime.om_file import ModelType
from omruntime.om_file.simulated import NAME_PREFIX


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """One OM of a single block.

    Attributes:
        atc_cmdline: As `atc.bin` was called; empty when the OM does not say.
        ai_cpu_operators: Device operators that left the AI Core.
        weight_bytes, memory_bytes: Device memory for constants and for intermediate values;
            None when the OM does not say.
    """

    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    gears: GearFacts | None
    external_weights: tuple[ExternalWeight, ...]
    soc_version: str
    atc_version: str
    atc_cmdline: str
    ai_cpu_operators: tuple[str, ...]
    weight_bytes: int | None
    memory_bytes: int | None
    is_simulated: bool


def read_program_facts(path: Path) -> ProgramFacts:
    """Read an OM that a step program may be.

    Raises:
        BundleError: Damaged, or of a kind that no step program is.
    """
    om = read_om_facts(path)
    if om.header.model_type != ModelType.IR_MODEL or len(om.models) != 1:
        raise BundleError(
            f"{path}: got an OM of type {om.header.model_type} with {len(om.models)} models, "
            f"wanted an ordinary one with a single model; a graph with shapes unknown to ATC "
            f"makes others"
        )
    (model,) = om.models
    return ProgramFacts(
        inputs=model.inputs,
        outputs=model.outputs,
        gears=model.gears,
        external_weights=() if model.graph is None else model.graph.external_weights,
        soc_version=model.attribute("soc_version"),
        atc_version=model.attribute("atc_version"),
        atc_cmdline=model.attribute("atc_cmdline"),
        ai_cpu_operators=_ai_cpu_operators(model),
        weight_bytes=_integer(model, "weight_size"),
        memory_bytes=_integer(model, "memory_size"),
        is_simulated=om.header.name.startswith(NAME_PREFIX),
    )


def _ai_cpu_operators(model: ModelFacts) -> tuple[str, ...]:
    names = f"{model.attribute('needCheckCpu')} {model.attribute('needCheckTf')}".split()
    return tuple(sorted(set(names)))


def _integer(model: ModelFacts, name: str) -> int | None:
    value = model.attributes.get(name)
    return value if type(value) is int else None
