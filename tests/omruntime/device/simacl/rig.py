"""A correct small program over the simulator; tests spoil one step of it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omruntime.device.simacl import Delays, SimulatedCard, Simulation
from omruntime.device.simacl.signatures import load_signatures
from tests.omruntime.device.simulated_oms import LARGE_GEAR, SMALL_GEAR, write_twice

H2H, H2D, D2H, D2D = range(4)
OK = 0
LARGE_BYTES = 3 * 4 * 4


class Rig:
    """One process with a device set, a stream, and helpers that check every code."""

    def __init__(
        self, folder: Path, card: SimulatedCard | None = None, delays: Delays | None = None
    ) -> None:
        self.folder = folder
        self.simulation = Simulation(card, delays)
        self.acl: Any = self.simulation.module
        assert self.acl.init() == OK
        assert self.acl.rt.set_device(0) == OK
        self.stream = self.value(self.acl.rt.create_stream())

    @staticmethod
    def value(result: tuple[Any, int]) -> Any:
        """The value of a call that must succeed."""
        *values, code = result
        assert code == OK, code
        return values[0] if len(values) == 1 else tuple(values)

    def call(self, name: str) -> Any:
        """A call by name with zeros, empty texts and None for arguments."""
        values = {"s": "", "O": None, "f": 0.0}
        arguments = [values.get(p.format, 0) for p in load_signatures()[name].parameters]
        part, _, function = name.rpartition(".")
        return getattr(getattr(self.acl, part) if part else self.acl, function)(*arguments)

    def text(self) -> str:
        return self.acl.get_recent_err_msg() or ""

    def malloc(self, size: int) -> int:
        return self.value(self.acl.rt.malloc(size, 2))

    def pinned(self, content: bytes) -> tuple[int, NDArray[np.uint8]]:
        """A pinned block with content, and an array over it."""
        address = self.value(self.acl.rt.malloc_host(len(content)))
        array = np.ctypeslib.as_array((ctypes.c_uint8 * len(content)).from_address(address))
        array[:] = np.frombuffer(content, np.uint8)
        return address, array

    def device_bytes(self, content: bytes) -> int:
        """Device memory with content."""
        address, source = self.malloc(len(content)), self.acl.util.bytes_to_ptr(content)
        assert self.acl.rt.memcpy(address, len(content), source, len(content), H2D) == OK
        return address

    def read(self, address: int, size: int) -> bytes:
        """Device memory, read at once."""
        target = self.value(self.acl.rt.malloc_host(size))
        assert self.acl.rt.memcpy(target, size, address, size, D2H) == OK
        content = self.acl.util.ptr_to_bytes(target, size)
        assert self.acl.rt.free_host(target) == OK
        return content

    def synchronize(self) -> int:
        return self.acl.rt.synchronize_stream(self.stream)

    def static_om(self, **attributes: str | int) -> str:
        """y = x + x in the large shape."""
        return str(write_twice(self.folder / "static.om", **attributes))

    def geared_om(self) -> str:
        """y = x + x with two gears."""
        return str(write_twice(self.folder / "geared.om", (SMALL_GEAR, LARGE_GEAR)))

    def load(self, path: str) -> int:
        return self.value(self.acl.mdl.load_from_file(path))

    def dataset(self, buffers: Sequence[tuple[int, int]]) -> int:
        """A dataset over (address, size) of each tensor."""
        dataset = self.acl.mdl.create_dataset()
        for address, size in buffers:
            buffer = self.acl.create_data_buffer(address, size)
            assert self.acl.mdl.add_dataset_buffer(dataset, buffer) == (dataset, OK)
        return dataset


class StaticRun(Rig):
    """The static model loaded, with datasets over x = 0, 1, 2 ... and y."""

    def __init__(self, folder: Path, **attributes: str | int) -> None:
        super().__init__(folder)
        self.model = self.load(self.static_om(**attributes))
        self.values = np.arange(12, dtype=np.float32)
        self.x = self.device_bytes(self.values.tobytes())
        self.y = self.malloc(LARGE_BYTES)
        self.inputs = self.dataset([(self.x, LARGE_BYTES)])
        self.outputs = self.dataset([(self.y, LARGE_BYTES)])

    def launch(self) -> int:
        return self.acl.mdl.execute_async(self.model, self.inputs, self.outputs, self.stream)

    def result(self) -> list[float]:
        return np.frombuffer(self.read(self.y, LARGE_BYTES), np.float32).tolist()


class GearedRun(Rig):
    """The model with gears loaded; no gear set yet."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.model = self.load(self.geared_om())
        self.x = self.device_bytes(np.arange(12, dtype=np.float32).tobytes())
        self.y = self.malloc(LARGE_BYTES)
        self.gear = self.malloc(64)
        self.inputs = self.dataset([(self.x, LARGE_BYTES), (self.gear, 16)])
        self.outputs = self.dataset([(self.y, LARGE_BYTES)])

    def set_gear(self, *dims: int, dataset: int | None = None) -> int:
        chosen = {"dimCount": len(dims), "name": "", "dims": list(dims)}
        return self.acl.mdl.set_input_dynamic_dims(
            self.model, self.inputs if dataset is None else dataset, 1, chosen
        )

    def launch(self) -> int:
        return self.acl.mdl.execute_async(self.model, self.inputs, self.outputs, self.stream)
