"""The chips that step graphs are compiled for: their profile and what their chip file says.

Owns the names that `--target` and `--soc` take. What a figure means for time or memory is the
planner's; which graph suits a profile is the exporter's.

Source: hicann/runtime src/platform/platform_config/cann/<chip>.ini, sections SoCInfo, AICoreSpec,
AICoreMemoryRates, VectorCoreSpec and VectorCoreMemoryRates.
"""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.errors import ConfigError

ASCEND_310P = "ascend310p"
ASCEND_310B = "ascend310b"
DEFAULT_SOC = "Ascend310P3"
# A multiply and an add for each element of a 16 x 16 x 16 step of the matrix unit.
_FLOPS_PER_CYCLE = 2 * 16 * 16 * 16


@dataclass(frozen=True, slots=True)
class Soc:
    """One chip.

    Attributes:
        cube_mhz: Clock of an AI core.
        core_ddr_rate: Device memory per AI core and cycle; taken as bytes (the file names no
            unit; the sums come near the boards' data sheets).
        vector_ddr_rate: The same of a vector core.
        memory_bytes: 0 where the chip file leaves it open, as the boards differ.
    """

    name: str
    profile: str
    num_ai_cores: int
    cube_mhz: int
    core_ddr_rate: int
    num_vector_cores: int
    vector_mhz: int
    vector_ddr_rate: int
    memory_bytes: int

    @property
    def float16_flops_per_s(self) -> float:
        """Peak of all matrix units."""
        return self.num_ai_cores * _FLOPS_PER_CYCLE * self.cube_mhz * 1e6

    @property
    def memory_bytes_per_s(self) -> float:
        """Peak of what all cores together can take from device memory."""
        ai_cores = self.num_ai_cores * self.core_ddr_rate * self.cube_mhz
        if self.profile == ASCEND_310B:
            # One core; its file counts the same engine under both names.
            return ai_cores * 1e6
        return (ai_cores + self.num_vector_cores * self.vector_ddr_rate * self.vector_mhz) * 1e6


SOCS = {
    soc.name: soc
    for soc in (
        Soc("Ascend310P1", ASCEND_310P, 10, 1060, 17, 8, 1000, 9, 24_000_000_000),
        Soc("Ascend310P3", ASCEND_310P, 8, 1060, 17, 7, 1000, 9, 24_000_000_000),
        Soc("Ascend310P5", ASCEND_310P, 8, 800, 17, 7, 1000, 9, 24_000_000_000),
        Soc("Ascend310P7", ASCEND_310P, 8, 550, 17, 7, 1000, 9, 24_000_000_000),
        Soc("Ascend310B1", ASCEND_310B, 1, 1224, 17, 1, 1224, 17, 34_359_738_368),
        Soc("Ascend310B2", ASCEND_310B, 1, 1224, 17, 1, 1224, 17, 0),
        Soc("Ascend310B3", ASCEND_310B, 1, 1224, 17, 1, 1224, 17, 0),
        Soc("Ascend310B4", ASCEND_310B, 1, 500, 8, 1, 500, 8, 0),
    )
}


def find_soc(name: str) -> Soc:
    """The chip of a name.

    Raises:
        ConfigError: It is none of `SOCS`; the message lists them.
    """
    soc = SOCS.get(name)
    if soc is None:
        raise ConfigError(
            f"{name!r} is not a chip this tool knows; wanted one of {', '.join(SOCS)} "
            f"(`npu-smi info` shows the name without Ascend)"
        )
    return soc
