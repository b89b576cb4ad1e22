from __future__ import annotations

import numpy as np
import pytest

from omruntime.errors import BundleError
from omruntime.om_file import OmHeader, Partition, PartitionType, om_bytes, read_om
from omruntime.om_file.simulated import SimulatedProgram, SimulatedWeight, pack_simulated_program

VALUES = np.arange(6, dtype=np.float16).reshape(2, 3)
WEIGHTS = (
    SimulatedWeight("w", "float16", (2, 3), "", 64),
    SimulatedWeight("v", "float32", (4,), "weight/weight_ab", 0),
)


def make_om(name: str, chunks: tuple[bytes | memoryview, ...]) -> bytes:
    return om_bytes(OmHeader(name), [[Partition(PartitionType.WEIGHTS_DATA, chunks)]])


def test_the_program_comes_back() -> None:
    chunks = pack_simulated_program(b"onnx", WEIGHTS, [bytes(64), VALUES.tobytes()])
    program = SimulatedProgram.read(read_om(make_om("simatc_x", chunks)))
    assert (program.model, program.weights) == (b"onnx", WEIGHTS)
    array = program.weights[0].array(program.constants)
    assert np.array_equal(array, VALUES)
    assert not array.flags.writeable


def test_the_parts_are_aligned() -> None:
    data = b"".join(pack_simulated_program(b"onnx", WEIGHTS, [b"constants"]))
    assert data.index(b"onnx") % 64 == 0
    assert data.index(b"constants") % 64 == 0


def test_a_real_om_is_refused() -> None:
    with pytest.raises(BundleError, match="compiled for a real device"):
        SimulatedProgram.read(read_om(make_om("step", (b"weights",))))


def test_an_om_without_program_is_refused() -> None:
    data = om_bytes(OmHeader("simatc_x"), [[Partition(PartitionType.MODEL_DEF, (b"m",))]])
    with pytest.raises(BundleError, match="holds no program"):
        SimulatedProgram.read(read_om(data))


def test_every_truncation_of_head_and_index_is_an_error() -> None:
    data = b"".join(pack_simulated_program(b"onnx", WEIGHTS, []))
    for length in range(1, len(data) - 60):
        with pytest.raises(BundleError):
            SimulatedProgram.read(read_om(make_om("simatc", (data[:length],))))


@pytest.mark.parametrize("offset", [-1, 60, 2**70])
def test_a_constant_beyond_its_bytes_is_refused(offset: int) -> None:
    weight = SimulatedWeight("w", "float16", (2, 3), "", offset)
    with pytest.raises(BundleError, match="constant w"):
        weight.array(memoryview(bytes(64)))


@pytest.mark.parametrize("index", [b"nonsense", b"[3]", b'[{"name":1}]', b"[" * 5000])
def test_a_damaged_index_is_named(index: bytes) -> None:
    data = bytearray(b"".join(pack_simulated_program(b"", (), [])))
    data[12:16] = len(index).to_bytes(4, "little")
    whole = bytes(data[:24]) + index + bytes(-(24 + len(index)) % 64)
    with pytest.raises(BundleError, match="cannot read its index"):
        SimulatedProgram.read(read_om(make_om("simatc", (whole,))))
