"""Fixtures of the runtime's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.omruntime.toy_model import write_toy_bundle


@pytest.fixture(scope="session")
def toy_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the toy model, read only."""
    return write_toy_bundle(tmp_path_factory.mktemp("toy") / "bundle")
