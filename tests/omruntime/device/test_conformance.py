"""What every device must do; a backend passes when it is added to `DEVICES`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.buckets import Bucket, Phase
from omruntime.device import Device, DeviceTensor, Program, open_device
from omruntime.errors import BundleError, ConfigError, DeviceError, OutOfDeviceMemoryError
from omruntime.manifest import ProgramSpec
from tests.omruntime.device.backends import DEVICES, opened, write_program
from tests.omruntime.device.simulated_oms import TWICE_TENSORS
from tests.omruntime.native.kernels import needs_library

SMALL, LARGE = Bucket(Phase.DECODE, 2, 1, 1), Bucket(Phase.PREFILL, 3, 4, 1)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with opened(request.param) as device:
        yield device


@pytest.fixture
def spec(device: Device, tmp_path: Path) -> ProgramSpec:
    return write_program(device, ProgramSpec("step", "", *TWICE_TENSORS, (SMALL, LARGE)), tmp_path)


@pytest.fixture
def program(device: Device, spec: ProgramSpec, tmp_path: Path) -> Program:
    return device.load_program(spec, tmp_path)


def tensor(device: Device, shape: tuple[int, ...], dtype: str = "float32") -> DeviceTensor:
    sized = DeviceTensor(device.alloc(1 << 13), 0, shape, dtype)
    assert sized.nbytes <= 1 << 13
    return sized


def content(device: Device, source: DeviceTensor) -> np.ndarray:
    array = device.copy_out(source)
    device.synchronize()
    return array.copy()


@pytest.mark.parametrize("is_pinned", [False, True])
def test_what_is_copied_in_comes_out(device: Device, is_pinned: bool) -> None:
    target = tensor(device, (3, 5))
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    if is_pinned:
        host = device.host_array(values.nbytes)
        assert not host.any()
        host[:] = values.view(np.uint8).ravel()
        values = host.view(np.float32).reshape(3, 5)
    device.copy_in(target, values)
    np.testing.assert_array_equal(content(device, target), values)


def test_copied_rows_of_a_larger_array_arrive(device: Device) -> None:
    target = tensor(device, (2, 4))
    values = np.arange(32, dtype=np.float32).reshape(4, 8)[::2, ::2]
    device.copy_in(target, values)
    np.testing.assert_array_equal(content(device, target), values)


def test_cleared_memory_is_zero(device: Device) -> None:
    target = tensor(device, (3, 5))
    device.copy_in(target, np.ones((3, 5), np.float32))
    window = DeviceTensor(target.buffer, 0, (2, 5), "float32")
    device.clear(window)
    assert content(device, target).sum() == 5


def test_work_is_done_in_order(device: Device) -> None:
    target = tensor(device, (4,))
    for value in range(5):
        device.copy_in(target, np.full(4, value, np.float32))
    assert content(device, target).tolist() == [4.0] * 4


def test_a_program_runs_each_bound_bucket(device: Device, program: Program) -> None:
    x, y = device.alloc(64), device.alloc(64)
    for bucket in (SMALL, LARGE):
        shape = (bucket.batch, bucket.tokens)
        inputs = {"x": DeviceTensor(x, 0, shape, "float32")}
        outputs = {"y": DeviceTensor(y, 0, shape, "float32")}
        program.bind(bucket, inputs, outputs)
    for bucket in (SMALL, LARGE, SMALL):
        shape = (bucket.batch, bucket.tokens)
        values = np.random.default_rng(0).random(shape, dtype=np.float32)
        for scale in (1.0, 3.0):
            device.copy_in(DeviceTensor(x, 0, shape, "float32"), values * scale)
            program.run(bucket)
            y_of = DeviceTensor(y, 0, shape, "float32")
            np.testing.assert_array_equal(content(device, y_of), values * scale * 2)
    program.unload()


def test_a_bucket_may_be_bound_anew(device: Device, program: Program) -> None:
    x, y = tensor(device, (2, 1)), tensor(device, (2, 1))
    program.bind(SMALL, {"x": x}, {"y": tensor(device, (2, 1))})
    program.run(SMALL)
    program.bind(SMALL, {"x": x}, {"y": y})
    device.copy_in(x, np.ones((2, 1), np.float32))
    program.run(SMALL)
    assert content(device, y).tolist() == [[2.0], [2.0]]


def test_an_unloaded_program_runs_no_more(device: Device, program: Program) -> None:
    x, y = tensor(device, (2, 1)), tensor(device, (2, 1))
    program.bind(SMALL, {"x": x}, {"y": y})
    program.run(SMALL)
    program.unload()
    program.unload()
    with pytest.raises(DeviceError, match="never bound"):
        program.run(SMALL)


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
    (tmp_path / spec.path).write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=spec.path):
        device.load_program(spec, tmp_path)


@pytest.mark.parametrize(
    "name", ["cpu", "openvino", pytest.param("native", marks=needs_library), "sim:0"]
)
@given(data=st.data())
def test_chunks_go_where_they_are_sent(name: str, data: st.DataObject) -> None:
    with opened(name) as device:
        num_chunks = 12
        chunk_bytes = device.alignment * data.draw(st.sampled_from([1, 3, 8]))
        targets = data.draw(st.lists(st.integers(0, num_chunks - 1), unique=True))
        sources = data.draw(
            st.lists(st.integers(0, num_chunks - 1), min_size=len(targets), max_size=len(targets))
        )
        rng = np.random.default_rng(1)
        before = rng.integers(0, 256, (2, num_chunks, chunk_bytes), dtype=np.uint8)
        expected = before[0].copy()
        expected[targets] = before[1][sources]
        shape = (num_chunks, chunk_bytes)
        target, source = tensor(device, shape, "uint8"), tensor(device, shape, "uint8")
        device.copy_in(target, before[0])
        device.copy_in(source, before[1])
        device.copy_chunks(
            target, np.array(targets, np.int64), source, np.array(sources, np.int64), chunk_bytes
        )
        np.testing.assert_array_equal(content(device, target), expected)


def test_more_memory_than_there_is_is_refused(device: Device) -> None:
    total = device.memory_info().total_bytes
    with pytest.raises(OutOfDeviceMemoryError, match=rf"{total + 1:,} bytes asked"):
        device.alloc(total + 1)


def test_memory_counts(device: Device) -> None:
    info = device.memory_info()
    assert 0 < info.free_bytes <= info.total_bytes


def test_freeing_twice_is_refused(device: Device) -> None:
    buffer = device.alloc(16)
    device.free(buffer)
    with pytest.raises(DeviceError, match="free"):
        device.free(buffer)


def test_freeing_waits_for_queued_work(device: Device) -> None:
    target = tensor(device, (4,))
    device.copy_in(target, np.ones(4, np.float32))
    device.free(target.buffer)


def test_a_window_past_its_buffer_is_refused(device: Device) -> None:
    window = DeviceTensor(device.alloc(128), 64, (32,), "float32")
    with pytest.raises(DeviceError, match="end"):
        device.copy_in(window, np.zeros(32, np.float32))


@pytest.mark.parametrize(
    "name", ["gpu", "", "CPU", "cpu:0", "ascend", "ascend:", "ascend:-1", "ascend:x", "sim",
             "sim:0@", "sim:0@Intel", "sim:0@Ascend310P9",
             "ascend:0@Ascend310P3", "simacl:0", "ascend:0 ", "native:0"],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"wanted one of: cpu, openvino, native, ascend:N .*, sim:N"
    ):
        open_device(name)
