"""Models: what a simulated OM says, what was loaded of it, and the objects around a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from omruntime.device.simacl.objects import Context
from omruntime.device.simacl.program import ProgramSession
from omruntime.device.simacl.spans import Span
from omruntime.om_file import GEAR_INPUT, InoutInfo, gear_input_shapes
from omruntime.om_file.simulated import SimulatedProgram


@dataclass(frozen=True, slots=True)
class SimulatedOm:
    """A parsed simulated OM.

    Attributes:
        identity: Equal for two loads of the same OM.
        folder: Where weights that lie outside of the OM are looked for; None for loads from
            memory.
        declared_pairs: Output -> input that must have one address (compile option
            ge.exec.outputReuseInputMemIndexes).
        ref_pairs: Output -> input that the program changes in place.
    """

    identity: str
    folder: Path | None
    inout: InoutInfo
    soc_version: str
    work_bytes: int
    weight_bytes: int
    program: SimulatedProgram
    declared_pairs: Mapping[int, int]
    ref_pairs: Mapping[int, int]

    @property
    def gear_index(self) -> int | None:
        """The position of the gear input; None for a model without gears."""
        names = [tensor.name for tensor in self.inout.inputs]
        return names.index(GEAR_INPUT) if GEAR_INPUT in names else None

    @property
    def open_dims(self) -> tuple[int, ...]:
        """All dims of all inputs in the order of --input_shape; -1 where a gear decides."""
        by_name = {tensor.name: tensor.dims for tensor in self.inout.inputs}
        return tuple(dim for name in self.inout.input_order for dim in by_name[name])

    @property
    def full_gears(self) -> tuple[tuple[int, ...], ...]:
        """All dims of all inputs of each gear, in the order of --input_shape."""
        return tuple(
            tuple(dim for shape in gear_input_shapes(self.inout, gear).values() for dim in shape)
            for gear in self.inout.dim_gears
        )


@dataclass(eq=False, slots=True)
class LoadedModel:
    """One load of an OM.

    Attributes:
        weight_spans: Where its weights lie, those given by the user included.
        user_spans: Memory of the user that it was loaded into; must outlive it.
        owned: Device addresses that the loader took.
        style: `execute` or `execute_async`, whichever came first.
        is_work_written: Whether its work memory holds anything else than poison.
        weights_destroyed_by: What overwrote its weights; empty when nothing did.
        gear: The index of the gear that was set last.
    """

    om: SimulatedOm
    session: ProgramSession
    context: Context
    work: Span
    weight_spans: tuple[Span, ...]
    user_spans: tuple[Span, ...]
    owned: tuple[int, ...]
    style: str = ""
    is_work_written: bool = True
    weights_destroyed_by: str = ""
    gear: int | None = None
    is_executing: bool = False


@dataclass(eq=False, slots=True)
class ModelDesc:
    """What `create_desc` makes; empty until filled."""

    om: SimulatedOm | None = None
    model: LoadedModel | None = None


@dataclass(eq=False, slots=True)
class DataBuffer:
    """An address and a size."""

    address: int
    size: int


@dataclass(eq=False, slots=True)
class Dataset:
    """Data buffers by handle; `gear` is the index set last."""

    buffers: list[int] = field(default_factory=list)
    gear: int | None = None


@dataclass(eq=False, slots=True)
class LoadConfig:
    """What `create_config_handle` makes.

    Attributes:
        options: Values by attribute number.
        external: (address, size) by the name of the weight file.
    """

    options: dict[int, int | str] = field(default_factory=dict)
    external: dict[str, tuple[int, int]] = field(default_factory=dict)
