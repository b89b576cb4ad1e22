"""The facts about an OM file, as plain values.

Owns the types alone; `gather.py` fills them in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omruntime.om_file import OmHeader
from omruntime.om_file.attributes import Attributes


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """An input or output; `dims` has -1 where a gear or the run decides."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    layout: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GearFacts:
    """The shape profiles of a model.

    Attributes:
        kind: `batch`, `image` or `dims`, by the option of atc that made them.
        values: One tuple for each gear.
        input_order: The inputs in the order in which a gear's values go to them.
        input_shapes: For each gear each input's shape, where the file tells.
        output_shapes: For each gear the outputs' shapes, where the file tells.
    """

    kind: str
    values: tuple[tuple[int, ...], ...]
    input_order: tuple[str, ...]
    input_shapes: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    output_shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ExternalWeight:
    """A constant that lies in another file."""

    location: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What the operators of a ModelDef say.

    Attributes:
        inputs, outputs: Of the main graph.
        gears: As the Case operator says; None without one.
        op_counts: Operators by type, over all graphs.
    """

    num_graphs: int
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    gears: GearFacts | None
    op_counts: Mapping[str, int]
    external_weights: tuple[ExternalWeight, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model of the file: a block of partitions.

    Attributes:
        partitions: Name and size in bytes, in their order.
        attributes: Of the model, see `omruntime/om_file/attributes.py`.
        graph: None where there is no MODEL_DEF.
    """

    name: str
    partitions: tuple[tuple[str, int], ...]
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    gears: GearFacts | None
    attributes: Attributes = field(default_factory=dict)
    graph: GraphFacts | None = None

    def attribute(self, name: str) -> str:
        """An attribute as text; empty when it is absent."""
        value = self.attributes.get(name, "")
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True)
class OmFacts:
    """A whole file.

    Attributes:
        sub_files: The complete OM files inside of a bundle.
        warnings: What a user should know, in words.
    """

    header: OmHeader
    size_bytes: int
    models: tuple[ModelFacts, ...]
    sub_files: tuple[OmFacts, ...]
    warnings: tuple[str, ...]
