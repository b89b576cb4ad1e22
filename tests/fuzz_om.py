"""Seeded damage to OM files: every one must end in facts or in a BundleError.

`python -m tests.fuzz_om --count 100000` runs many and reports crashes, hangs and peak memory; the
test suite runs a few. Real files join the starting set when OMSERVE_OM_SAMPLES names their folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from atc_pipeline.om_inspect.as_json import to_plain
from atc_pipeline.om_inspect.gather import read_om_facts
from atc_pipeline.om_inspect.text import describe
from omruntime.errors import BundleError
from omruntime.om_file import OmHeader, Partition, PartitionType, om_bytes, read_om
from omruntime.om_file.simulated import SimulatedProgram, SimulatedWeight, pack_simulated_program
from omruntime.om_file.wire import bytes_field
from tests.atc_pipeline.made_om import ALL_FORMS, info_part, model_part
from tests.omruntime.om_file.samples import SAMPLES_VARIABLE

HANG_SECONDS = 20.0
_EXTREMES = (0, 1, 2, 7, 0x7F, 0x80, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1)
_Mutation = Callable[[random.Random, bytearray, list[bytes]], None]


class HangError(Exception):
    """One input took longer than `HANG_SECONDS`."""


@dataclass
class Tally:
    """How the runs ended."""

    num_read: int = 0
    num_refused: int = 0
    num_hangs: int = 0
    crashes: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


def starting_set() -> list[bytes]:
    """Valid files of all forms."""
    files = [make() for make in ALL_FORMS.values()]
    weights = (SimulatedWeight("w", "float16", (2, 3), "", 0),)
    program = Partition(
        PartitionType.WEIGHTS_DATA, pack_simulated_program(b"onnx", weights, [bytes(12)])
    )
    files.append(om_bytes(OmHeader("simatc_x"), [[info_part(), model_part(()), program]]))
    folder = os.environ.get(SAMPLES_VARIABLE)
    return files + [p.read_bytes() for p in sorted(Path(folder).glob("*.om"))] if folder else files


def truncate(rng: random.Random, data: bytearray, others: list[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def flip(rng: random.Random, data: bytearray, others: list[bytes]) -> None:
    for _ in range(rng.randint(1, 8)):
        if data:
            data[_place(rng, data)] = rng.randrange(256)


def splice(rng: random.Random, data: bytearray, others: list[bytes]) -> None:
    """A run of another file over, or into, this one."""
    other = rng.choice(others)
    start = rng.randrange(len(other))
    run = other[start : start + rng.randint(1, 400)]
    at = _place(rng, data) if data else 0
    data[at : at + rng.choice((0, len(run)))] = run


def set_extreme(rng: random.Random, data: bytearray, others: list[bytes]) -> None:
    """An extreme number where a length or count may stand."""
    layout = rng.choice("BHIQ")
    width = struct.calcsize("<" + layout)
    if len(data) >= width:
        value = rng.choice(_EXTREMES) % (1 << 8 * width)
        struct.pack_into("<" + layout, data, min(_place(rng, data), len(data) - width), value)


def nest(rng: random.Random, data: bytearray, others: list[bytes]) -> None:
    """Messages within messages, as deep as they get, over a run of the file."""
    inner = bytes(rng.randrange(256) for _ in range(rng.randrange(8)))
    number = rng.choice((1, 2, 3, 6, 7, 10, 11, 14, 33))
    for _ in range(rng.randint(1, 200)):
        inner = bytes_field(number, inner)
    at = _place(rng, data) if data else 0
    data[at : at + len(inner)] = inner


MUTATIONS: tuple[_Mutation, ...] = (truncate, flip, splice, set_extreme, nest)


def _place(rng: random.Random, data: bytearray) -> int:
    """Mostly in the headers, tables and descriptions at the front."""
    return rng.randrange(min(len(data), rng.choice((256, 600, 3000, len(data)))))


def _repair_length(data: bytearray) -> None:
    """Let the payload length fit, so that damage behind the header is reached."""
    if len(data) >= 256:
        is_wide = any(data[184:192])
        struct.pack_into("<Q" if is_wide else "<I", data, 184 if is_wide else 76, len(data) - 256)


def mutated(rng: random.Random, files: list[bytes]) -> bytes:
    """One damaged file."""
    data = bytearray(rng.choice(files))
    for _ in range(rng.randint(1, 3)):
        rng.choice(MUTATIONS)(rng, data, files)
    if rng.random() < 0.8:
        _repair_length(data)
    return bytes(data)


def read_everything(data: bytes) -> None:
    """All that the product does with an OM file of unknown origin."""
    facts = read_om_facts(data)
    describe(facts, "fuzzed.om")
    json.dumps(to_plain(facts))
    om = read_om(data)
    if om.header.name.startswith("simatc"):
        program = SimulatedProgram.read(om)
        for weight in program.weights:
            weight.array(program.constants)


def run(count: int, seed: int) -> Tally:
    """Damage and read `count` files; the same seed, the same files."""
    rng, files, tally = random.Random(seed), starting_set(), Tally()
    before = signal.signal(signal.SIGALRM, _raise_hang)
    try:
        for number in range(count):
            _run_one(mutated(rng, files), f"seed {seed} number {number}", tally)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return tally


def _run_one(data: bytes, label: str, tally: Tally) -> None:
    start = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        read_everything(data)
        tally.num_read += 1
    except BundleError:
        tally.num_refused += 1
    except HangError:
        tally.num_hangs += 1
    except Exception as error:
        tally.crashes.append(f"{label}: {type(error).__name__}: {error}")
    tally.slowest_s = max(tally.slowest_s, time.monotonic() - start)


def _raise_hang(number: int, frame: FrameType | None) -> None:
    raise HangError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tally = run(options.count, options.seed)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{options.count} files: {tally.num_read} read, {tally.num_refused} refused, "
        f"{len(tally.crashes)} crashes, {tally.num_hangs} hangs, "
        f"slowest {tally.slowest_s:.2f} s, peak memory {peak_mib:.0f} MiB"
    )
    for crash in tally.crashes[:20]:
        print(crash)
    return int(bool(tally.crashes or tally.num_hangs))


if __name__ == "__main__":
    sys.exit(main())
