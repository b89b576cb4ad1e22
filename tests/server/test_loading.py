"""The settings choose the engine; what is wrong with them is said before a port opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from omruntime.async_engine import AsyncEngine
from omruntime.errors import ConfigError
from omruntime.settings import EngineSettings
from omruntime.worker.worker_engine import WorkerEngine
from server.loading import open_engine
from tests.omruntime.toy_model import write_toy_bundle


@pytest.mark.parametrize(
    ("device", "isolate", "cls"),
    [
        ("cpu", None, AsyncEngine),
        ("cpu", True, WorkerEngine),
        ("openvino", None, AsyncEngine),
        ("sim:0", None, AsyncEngine),
        ("sim:0", True, WorkerEngine),
        ("ascend:0", None, WorkerEngine),
        ("ascend:3", False, AsyncEngine),
    ],
)
def test_the_device_gets_its_process(
    tmp_path: Path, device: str, isolate: bool | None, cls: type
) -> None:
    settings = EngineSettings(device=device, isolate_device=isolate)
    assert type(open_engine(write_toy_bundle(tmp_path / "bundle"), settings)) is cls


@pytest.mark.parametrize("device", ["tpu", "ascend", "ascend:x", "cpu:0", "CPU", "sim:"])
def test_a_device_that_does_not_exist_is_refused_at_once(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device is '{device}', wanted one of: cpu, "):
        open_engine(Path("no/bundle"), EngineSettings(device=device))


def test_a_wrong_fault_is_refused_at_once() -> None:
    settings = EngineSettings(allow_faults=True, inject_fault="burn@1")
    with pytest.raises(ConfigError, match="inject_fault has 'burn@1'"):
        open_engine(Path("no/bundle"), settings)
