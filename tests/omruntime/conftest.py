"""Fixtures of the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.omruntime.toy_model import write_toy_bundle


@pytest.fixture(scope="session", autouse=True)
def _cache_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads what was measured in another run, or writes into the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def toy_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the toy model, read only."""
    return write_toy_bundle(tmp_path_factory.mktemp("toy") / "bundle")
