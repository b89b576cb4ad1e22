from __future__ import annotations

import pytest

from atc_pipeline.atc.find import AtcTool
from atc_pipeline.atc.limits import default_num_jobs, memory_need_bytes, num_runs
from omruntime.errors import AtcError, ConfigError

GIB = 1 << 30


def test_memory_bounds_the_number_of_runs() -> None:
    """BL-11: an estimate before the start, and a refusal that states need and have."""
    assert num_runs(4, 3 * GIB, have_bytes=10 * GIB) == 3
    assert num_runs(2, 3 * GIB, have_bytes=10 * GIB) == 2
    with pytest.raises(AtcError, match=r"about 3,072 MiB, this process can have 2,048 MiB"):
        num_runs(1, 3 * GIB, have_bytes=2 * GIB)


def test_the_machine_is_asked() -> None:
    assert num_runs(1, 1) == 1
    with pytest.raises(AtcError, match="too little memory for atc"):
        num_runs(1, 1 << 60)


def test_no_run_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="--jobs is 0"):
        num_runs(0, 1, have_bytes=1)


def test_the_estimate_grows_with_the_weights() -> None:
    atc = AtcTool(("atc",), "1", False, "")
    simatc = AtcTool(("simatc",), "1", True, "")
    assert memory_need_bytes(atc, GIB) == 5 * GIB
    assert memory_need_bytes(simatc, GIB) < memory_need_bytes(atc, GIB)
    assert default_num_jobs() >= 1
