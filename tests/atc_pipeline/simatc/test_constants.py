from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc_pipeline.simatc.constants import (
    Constant,
    place_constants,
    replacing,
    take_constants,
    write_files,
)
from atc_pipeline.simatc.refusal import NotSimulatedError

SIZES = (1030, 1100, 2050)
CONSTANTS = [
    Constant(f"w{i}", "int8", (size,), memoryview(bytes([i + 1]) * size))
    for i, size in enumerate(SIZES)
]


@pytest.mark.parametrize(("external_weight", "step"), [(0, 64), (2, 512)])
def test_constants_are_aligned_and_found_at_their_places(external_weight: int, step: int) -> None:
    placed = place_constants(CONSTANTS, external_weight, "om")
    (chunks,) = placed.files.values() if external_weight else [placed.inside]
    data = memoryview(b"".join(chunks))
    for weight, constant in zip(placed.weights, CONSTANTS, strict=True):
        assert weight.offset % step == 0
        assert weight.array(data).tobytes() == constant.data


def test_equal_constants_share_one_file() -> None:
    twin = Constant("twin", "int8", (1030,), CONSTANTS[0].data)
    placed = place_constants([*CONSTANTS, twin], 1, "om")
    assert len(placed.files) == 3
    assert placed.weights[3].file == placed.weights[0].file


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    placed = place_constants(CONSTANTS[:1], 1, "om")
    write_files(placed, tmp_path)
    (path,) = (tmp_path / "weight").iterdir()
    before = path.stat().st_ino
    write_files(placed, tmp_path)
    assert path.stat().st_ino == before
    path.write_bytes(b"cut short")
    write_files(placed, tmp_path)
    assert path.read_bytes() == CONSTANTS[0].data


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError), replacing(tmp_path / "x") as file:
        file.writelines([b"half", "text"])
    assert list(tmp_path.iterdir()) == []


def test_small_constants_stay_in_the_model() -> None:
    tensors = [
        numpy_helper.from_array(np.zeros(count, np.float32), f"t{count}") for count in (255, 256)
    ]
    graph = helper.make_graph([], "g", [], [], tensors)
    assert [c.name for c in take_constants(graph, Path())] == ["t256"]
    assert graph.initializer[0].raw_data
    assert not graph.initializer[1].raw_data


def test_constants_in_typed_fields_are_read() -> None:
    tensor = helper.make_tensor("t", TensorProto.FLOAT16, [512], np.arange(512))
    (constant,) = take_constants(helper.make_graph([], "g", [], [], [tensor]), Path())
    assert constant.data == np.arange(512, dtype=np.float16).tobytes()


def test_types_that_numpy_lacks_are_refused_by_name() -> None:
    tensor = helper.make_tensor("t", TensorProto.BFLOAT16, [512], [1.0] * 512)
    with pytest.raises(NotSimulatedError, match="tensor 't': the type bfloat16"):
        take_constants(helper.make_graph([], "g", [], [], [tensor]), Path())
