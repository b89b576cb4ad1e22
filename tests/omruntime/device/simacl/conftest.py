"""Fixtures of the simulator's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.omruntime.device.simacl.rig import GearedRun, Rig, StaticRun


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def static(tmp_path: Path) -> StaticRun:
    return StaticRun(tmp_path)


@pytest.fixture
def geared(tmp_path: Path) -> GearedRun:
    return GearedRun(tmp_path)
