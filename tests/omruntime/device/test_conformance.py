"""What every device must do; a backend passes when it is added to `DEVICES`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from omruntime.buckets import Bucket, Phase
from omruntime.device import Device, DeviceTensor, Program, open_device
from omruntime.errors import (
    BundleError,
    ConfigError,
    DeviceError,
    NotBuiltInError,
    OutOfDeviceMemoryError,
)
from omruntime.manifest import ProgramSpec, TensorSpec

DEVICES = ["cpu"]
SMALL, LARGE = Bucket(Phase.DECODE, 2, 1, 1), Bucket(Phase.PREFILL, 3, 4, 1)
SHAPE = ("batch", "tokens")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = open_device(request.param, num_threads=1)
    yield opened
    opened.close()


@pytest.fixture
def spec() -> ProgramSpec:
    return ProgramSpec(
        role="step",
        path="twice.onnx",
        inputs=(TensorSpec("x", "float32", SHAPE),),
        outputs=(TensorSpec("y", "float32", SHAPE),),
        buckets=(SMALL, LARGE),
    )


@pytest.fixture
def program(device: Device, spec: ProgramSpec, tmp_path: Path) -> Program:
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", *zip(tensors))
    opset = helper.make_opsetid("", 18)
    onnx.save(
        helper.make_model(graph, opset_imports=[opset], ir_version=9), tmp_path / "twice.onnx"
    )
    return device.load_program(spec, tmp_path)


def tensor(device: Device, shape: tuple[int, ...], dtype: str = "float32") -> DeviceTensor:
    sized = DeviceTensor(device.alloc(1 << 12), 0, shape, dtype)
    assert sized.nbytes <= 1 << 12
    return sized


def test_what_is_copied_in_comes_out(device: Device) -> None:
    target = tensor(device, (3, 5))
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    device.copy_in(target, values)
    device.synchronize()
    np.testing.assert_array_equal(device.copy_out(target), values)


def test_a_program_runs_each_bound_bucket(device: Device, program: Program) -> None:
    x, y = device.alloc(64), device.alloc(64)
    for bucket in (SMALL, LARGE):
        shape = (bucket.batch, bucket.tokens)
        inputs = {"x": DeviceTensor(x, 0, shape, "float32")}
        outputs = {"y": DeviceTensor(y, 0, shape, "float32")}
        program.bind(bucket, inputs, outputs)
        values = np.random.default_rng(0).random(shape, dtype=np.float32)
        for scale in (1.0, 3.0):
            device.copy_in(inputs["x"], values * scale)
            program.run(bucket)
            np.testing.assert_array_equal(device.copy_out(outputs["y"]), values * scale * 2)


def test_running_an_unbound_bucket_is_refused(program: Program) -> None:
    with pytest.raises(DeviceError, match="never bound"):
        program.run(LARGE)


def test_binding_other_tensors_is_refused(device: Device, program: Program) -> None:
    x = tensor(device, (2, 1))
    with pytest.raises(DeviceError, match=r"\['z'\].*\['y'\]"):
        program.bind(SMALL, {"x": x}, {"z": x})


def test_a_program_that_does_not_fit_the_manifest_is_refused(
    device: Device, program: Program, spec: ProgramSpec, tmp_path: Path
) -> None:
    other = ProgramSpec("step", spec.path, spec.inputs, (), spec.buckets)
    with pytest.raises(BundleError, match=r"outputs are \['y'\]"):
        device.load_program(other, tmp_path)


def test_a_damaged_program_is_refused(device: Device, spec: ProgramSpec, tmp_path: Path) -> None:
    (tmp_path / "twice.onnx").write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"twice\.onnx"):
        device.load_program(spec, tmp_path)


@given(data=st.data())
def test_chunks_go_where_they_are_sent(data: st.DataObject) -> None:
    num_chunks, chunk_bytes = 12, data.draw(st.sampled_from([1, 4, 24, 256]))
    targets = data.draw(st.lists(st.integers(0, num_chunks - 1), unique=True))
    sources = data.draw(
        st.lists(st.integers(0, num_chunks - 1), min_size=len(targets), max_size=len(targets))
    )
    rng = np.random.default_rng(1)
    before = rng.integers(0, 256, (2, num_chunks, chunk_bytes), dtype=np.uint8)
    expected = before[0].copy()
    expected[targets] = before[1][sources]
    for name in DEVICES:
        device = open_device(name, num_threads=1)
        shape = (num_chunks, chunk_bytes)
        target = tensor(device, shape, "uint8")
        source = tensor(device, shape, "uint8")
        device.copy_in(target, before[0])
        device.copy_in(source, before[1])
        device.copy_chunks(
            target, np.array(targets, np.int64), source, np.array(sources, np.int64), chunk_bytes
        )
        device.synchronize()
        np.testing.assert_array_equal(device.copy_out(target), expected)
        device.close()


def test_more_memory_than_there_is_is_refused(device: Device) -> None:
    total = device.memory_info().total_bytes
    with pytest.raises(OutOfDeviceMemoryError, match=rf"{total + 1:,} bytes asked"):
        device.alloc(total + 1)


def test_freeing_twice_is_refused(device: Device) -> None:
    buffer = device.alloc(16)
    device.free(buffer)
    with pytest.raises(DeviceError, match="free"):
        device.free(buffer)


def test_a_window_past_its_buffer_is_refused(device: Device) -> None:
    window = DeviceTensor(device.alloc(16), 8, (4,), "float32")
    with pytest.raises(DeviceError, match="end"):
        device.copy_in(window, np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ascend:0", NotBuiltInError), ("sim:0", NotBuiltInError), ("gpu", ConfigError)],
)
def test_other_names_are_refused_by_name(name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"{name}.*cpu"):
        open_device(name)
