"""Where the native library comes from, and what is said where there is none."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from omruntime.errors import ConfigError, DeviceError
from omruntime.native import Matrix, NativeProgram, ThreadPool, library
from tests.forked_child import said_by_forked_child
from tests.omruntime.native.kernels import needs_library, run_kernel


@pytest.fixture
def no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the package's own, without a library."""
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    library.load_library.cache_clear()
    yield tmp_path
    library.load_library.cache_clear()


def test_a_library_that_was_not_compiled_is_named_with_its_remedy(no_library: Path) -> None:
    with pytest.raises(ConfigError, match=r"not compiled; install a C\+\+17 compiler .* build_ext"):
        library.load_library()


def test_a_damaged_library_is_refused(no_library: Path) -> None:
    (no_library / library._NAME).write_bytes(b"no library")
    with pytest.raises(ConfigError, match="do not load"):
        library.load_library()


@needs_library
def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ABI_VERSION", library.ABI_VERSION + 1)
    library.load_library.cache_clear()
    with pytest.raises(ConfigError, match="have interface"):
        library.load_library()
    monkeypatch.undo()
    library.load_library.cache_clear()


@needs_library
def test_every_instruction_set_of_this_machine_computes_the_same() -> None:
    loaded = library.load_library()
    own = loaded.om_instruction_set()
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((7, 50), (50, 37)))
    chosen = []
    for name in (b"baseline", b"avx2", b"avx512"):
        if loaded.om_choose_instruction_set(name) is None:
            y = np.empty((7, 37), np.float32)
            run_kernel("linear", [x, Matrix(w), y, None, None])
            np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-4)
            chosen.append(name)
    assert loaded.om_choose_instruction_set(own) is None
    assert own in chosen
    assert b"no instruction set mmx" in loaded.om_choose_instruction_set(b"mmx")


@needs_library
def test_a_matrix_of_another_instruction_set_is_refused() -> None:
    loaded = library.load_library()
    own, matrix = loaded.om_instruction_set(), Matrix(np.ones((4, 4), np.float32))
    if own == b"baseline":
        pytest.skip("this machine has one instruction set")
    loaded.om_choose_instruction_set(b"baseline")
    x = np.ones((1, 4), np.float32)
    with pytest.raises(DeviceError, match="packed for this instruction set"):
        NativeProgram().append("linear", [x, matrix, x.copy(), None, None])
    loaded.om_choose_instruction_set(own)


@needs_library
def test_many_short_loops_lose_no_item() -> None:
    """Helpers come late, or not at all; every item is done once, and before the run returns."""
    pool = ThreadPool(4)
    program = NativeProgram()
    total = np.zeros((512, 40), np.float32)
    one = np.ones((512, 40), np.float32)
    for _ in range(200):
        program.append("add", [total, one, total])
    for _ in range(5):
        program.run(pool)
    assert (total == 1000).all()
    pool.close()
    pool.close()
    with pytest.raises(DeviceError, match="threads have ended"):
        program.run(pool)


@needs_library
def test_the_header_and_the_loader_agree() -> None:
    header = (Path(library.__file__).parent / "src" / "native.h").read_text(encoding="ascii")
    assert f"#define OM_ABI_VERSION {library.ABI_VERSION}\n" in header
    assert f"#define OM_MAX_RANK {library.MAX_RANK}\n" in header
    assert ctypes.sizeof(library.CTensor) == 8 + 2 * 4 + 2 * library.MAX_RANK * 8
    for name in library._SIGNATURES:
        assert f"{name}(" in header


@needs_library
def test_a_forked_child_does_not_wait_for_threads_that_it_has_not() -> None:
    pool = ThreadPool(2)
    assert said_by_forked_child(pool.close) == "None"
    pool.close()
