"""A saved model and the flags to compile it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.atc_pipeline.simatc.graphs import Flags, save, step_model


@pytest.fixture
def flags(tmp_path: Path) -> Flags:
    save(step_model(), tmp_path)
    return Flags(tmp_path)
