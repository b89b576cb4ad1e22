from __future__ import annotations

import platform
from pathlib import Path

import pytest

from atc_pipeline.atc.find import find_atc, toolkit_version
from omruntime.errors import AtcError, ConfigError


def install(home: Path, version: str | None = "8.5.0") -> Path:
    """A folder like an installed toolkit; returns its `atc`."""
    atc = home / "bin" / "atc"
    atc.parent.mkdir(parents=True)
    atc.write_text("#!/bin/sh\n")
    atc.chmod(0o755)
    if version is not None:
        info = home / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
        info.parent.mkdir()
        info.write_text(f"package_name=Ascend-cann-toolkit\nversion={version}\n")
    return atc


def test_the_lookup_order(tmp_path: Path) -> None:
    """Each place is taken when nothing stands before it."""
    places = {
        "flag": install(tmp_path / "flag"),
        "variable": install(tmp_path / "variable"),
        "toolkit": install(tmp_path / "toolkit"),
        "home": install(tmp_path / "ascend home"),
        "default": install(tmp_path / "usr/local/Ascend/ascend-toolkit/latest"),
        "user": install(tmp_path / "me/Ascend/cann"),
        "path": install(tmp_path / "path"),
    }
    environ = {
        "OMSERVE_ATC": str(places["variable"]),
        "ASCEND_TOOLKIT_HOME": str(tmp_path / "toolkit"),
        "ASCEND_HOME_PATH": str(tmp_path / "ascend home"),
        "HOME": str(tmp_path / "me"),
        "PATH": str(places["path"].parent),
    }
    named: str | None = str(places["flag"])
    for place, atc in places.items():
        assert find_atc(named, environ, tmp_path).command == (str(atc),), place
        named = None
        environ.pop("OMSERVE_ATC", None) if place == "variable" else atc.unlink()


def test_nothing_found_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(AtcError) as caught:
        find_atc(None, {"PATH": str(tmp_path), "HOME": "/nowhere"}, tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[1] == "  1. --atc: not given"
    assert lines[3] == "  3. ASCEND_TOOLKIT_HOME: not set"
    assert "  9. PATH: no atc in it" in lines
    assert "set_env.sh" in lines[-1]
    assert "--atc simatc" in lines[-1]


def test_the_simulator_is_taken_by_name_only(tmp_path: Path) -> None:
    tool = find_atc("simatc", {}, tmp_path)
    assert tool.is_simulated
    assert tool.command[-2:] == ("-m", "atc_pipeline.simatc")
    assert find_atc(None, {"OMSERVE_ATC": "simatc"}, tmp_path) == tool.__class__(
        tool.command, tool.version, True, "OMSERVE_ATC: simatc", tool.python_path
    )


@pytest.mark.parametrize("name", ["absent", "folder", "plain", "simATC"])
def test_a_name_that_is_no_program(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").touch()
    value = str(tmp_path / name)
    with pytest.raises(ConfigError, match=r"--atc is .* no program"):
        find_atc(value, {}, tmp_path)
    with pytest.raises(ConfigError, match="OMSERVE_ATC is"):
        find_atc(None, {"OMSERVE_ATC": value}, tmp_path)


def test_the_version_comes_from_the_installation(tmp_path: Path) -> None:
    """Whether `atc` is reached directly or by a link elsewhere."""
    atc = install(tmp_path / "cann-8.5.0")
    (tmp_path / "link").symlink_to(atc)
    assert toolkit_version(atc) == "8.5.0"
    assert find_atc(str(tmp_path / "link"), {}, tmp_path).version == "8.5.0"


def test_a_compiler_without_a_version_is_known_by_its_content(tmp_path: Path) -> None:
    first, second = install(tmp_path / "a", None), install(tmp_path / "b", None)
    assert toolkit_version(first) == toolkit_version(second)
    second.write_text("#!/bin/bash\n")
    assert toolkit_version(first) != toolkit_version(second)
