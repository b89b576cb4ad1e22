"""What the constants of a bundle's OMs take on disk and on the device, and what sharing saves.

Owns the sum. Constants in files are shared by name, which is a hash of their content in the
compiler's layout; a constant that two OMs want in different layouts exists twice.

Source: hicann/ge base/common/file_constant_utils.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atc_pipeline.resources import MIB, mib


@dataclass(frozen=True, slots=True)
class WeightReport:
    """Constants of all OMs.

    Attributes:
        num_oms: How many there are.
        are_files: Whether constants lie in files beside the OMs.
        separate_bytes: What one copy for each OM takes.
        stored_bytes: What is there, each shared constant once.
        largest_bytes: Of the OM with the most: what perfect sharing would take.
    """

    num_oms: int
    are_files: bool
    separate_bytes: int
    stored_bytes: int
    largest_bytes: int

    @staticmethod
    def of_files(files: Sequence[Mapping[str, int]]) -> WeightReport:
        """Constants in files: for each OM, file names to sizes."""
        sums = [sum(sizes.values()) for sizes in files]
        union: dict[str, int] = {}
        for sizes in files:
            union |= sizes
        return WeightReport(len(files), True, sum(sums), sum(union.values()), max(sums, default=0))

    @staticmethod
    def inside(sizes: Sequence[int]) -> WeightReport:
        """Constants inside of the OMs: the size for each."""
        return WeightReport(len(sizes), False, sum(sizes), sum(sizes), max(sizes, default=0))

    def to_plain(self) -> dict[str, object]:
        """For the build report."""
        return {
            "shared_files": self.are_files,
            "stored_bytes": self.stored_bytes,
            "separate_bytes": self.separate_bytes,
            "saved_bytes": self.separate_bytes - self.stored_bytes,
            "duplicate_bytes": self.stored_bytes - self.largest_bytes,
        }

    def describe(self) -> str:
        """One line for the end of a build."""
        stored = f"weights: {_size(self.stored_bytes)}"
        if self.num_oms < 2:
            return f"{stored} in one program"
        duplicate = self.stored_bytes - self.largest_bytes
        if not self.are_files:
            return (
                f"{stored} in {self.num_oms} programs, each with its own copy, which costs "
                f"{_size(duplicate)} of device memory more than one copy"
            )
        saved = f"saves {_size(self.separate_bytes - self.stored_bytes)} against separate copies"
        rest = f"; {_size(duplicate)} differ between programs" if duplicate else ""
        return f"{stored} shared by {self.num_oms} programs, which {saved}{rest}"


def _size(num_bytes: int) -> str:
    return mib(num_bytes) if num_bytes >= MIB else f"{num_bytes:,} bytes"
