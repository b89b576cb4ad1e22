"""Real OM files, read from a folder outside of the project that a variable names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SAMPLES_VARIABLE = "OMSERVE_OM_SAMPLES"
STATIC = "static-v2-header.om"
DYNAMIC = "dynamic-three-blocks.om"
OLD = "a3c-pong-v1-header-ascend310.om"


def sample(name: str) -> Path:
    """One of the real files; skips the test where the folder is not there."""
    folder = os.environ.get(SAMPLES_VARIABLE)
    if not folder:
        pytest.skip(f"{SAMPLES_VARIABLE} does not name the folder with real OM files")
    path = Path(folder) / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path
