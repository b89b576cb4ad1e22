from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atc_pipeline.resources import (
    MIB,
    available_memory_bytes,
    require_disk,
    require_memory,
)
from omruntime.errors import ExportError
from tests.limited_memory import limited_memory


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 8 GiB free and no cgroup."""
    write(tmp_path / "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
    write(tmp_path / "proc/self/statm", "1000 500 1 1 1 1 0\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_machine_limits(machine: Path) -> None:
    assert available_memory_bytes(machine) == 8192 * MIB


def test_a_cgroup_of_version_2_limits(machine: Path) -> None:
    """The page cache inside of it can be given back, so it counts as available."""
    write(machine / "proc/self/cgroup", "0::/ci/job\n")
    write(machine / "sys/fs/cgroup/ci/job/memory.max", "max\n")
    write(machine / "sys/fs/cgroup/ci/memory.max", f"{2048 * MIB}\n")
    write(machine / "sys/fs/cgroup/ci/memory.current", f"{600 * MIB}\n")
    write(machine / "sys/fs/cgroup/ci/memory.stat", f"anon 5\ninactive_file {100 * MIB}\n")
    assert available_memory_bytes(machine) == 1548 * MIB


def test_a_cgroup_of_version_1_limits(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "9:cpu:/a\n4:memory:/job\n0::/\n")
    folder = machine / "sys/fs/cgroup/memory/job"
    write(folder / "memory.limit_in_bytes", f"{1024 * MIB}\n")
    write(folder / "memory.usage_in_bytes", f"{24 * MIB}\n")
    assert available_memory_bytes(machine) == 1000 * MIB


def test_a_cgroup_over_its_limit_leaves_nothing(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "0::/\n")
    write(machine / "sys/fs/cgroup/memory.max", "1000\n")
    write(machine / "sys/fs/cgroup/memory.current", "2000\n")
    assert available_memory_bytes(machine) == 0


def test_a_system_without_proc_has_no_limit_but_its_own(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path) > 1 << 50


def test_ulimit_limits() -> None:
    """BL-11: `ulimit -v` counts."""
    code = (
        "from atc_pipeline.resources import available_memory_bytes;print(available_memory_bytes())"
    )
    limit = 512 * MIB
    found = subprocess.run(
        limited_memory([sys.executable, "-c", code], limit),
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=True,
    )
    assert 0 < int(found.stdout) < limit


def test_too_little_memory_states_need_and_have() -> None:
    with pytest.raises(ExportError, match=r"3,072 MiB.*2,048 MiB"):
        require_memory(3072 * MIB, 2048 * MIB)
    require_memory(2048 * MIB, 2048 * MIB)


def test_too_little_disk_states_need_and_have(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"disk space.*about 1,099,511,627,776 MiB.*free are"):
        require_disk(tmp_path, MIB << 40)
    require_disk(tmp_path, 1)
