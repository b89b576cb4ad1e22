"""Which `atc` to run: the lookup order, and what version of CANN it belongs to.

Owns finding alone. The simulator is taken when named, never because nothing else was found.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from omruntime.errors import AtcError, ConfigError

SIMATC = "simatc"
ATC_VARIABLE = "OMSERVE_ATC"
# What set_env.sh exports. Source: CANN installation guide, environment variables of set_env.sh.
_HOME_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
# Where the installers put a toolkit, for shells that did not source set_env.sh: releases up to
# 8.3 as ascend-toolkit/latest, later ones as cann.
_INSTALLED = ("Ascend/cann", "Ascend/ascend-toolkit/latest")
_NOTHING = {"PATH": "no atc in it"}
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class AtcTool:
    """A compiler that was found.

    Attributes:
        command: The program, and what comes before its flags.
        version: Of the toolkit, for the compile cache and the manifest.
        found: Where, in words.
        python_path: What the program's PYTHONPATH needs beside the caller's; empty for `atc`,
            whose own interpreter must not see our packages.
    """

    command: tuple[str, ...]
    version: str
    is_simulated: bool
    found: str
    python_path: str = ""


def find_atc(named: str | None, environ: Mapping[str, str], root: Path = Path("/")) -> AtcTool:
    """Look up the compiler.

    The order: `--atc`, OMSERVE_ATC, the toolkit that ASCEND_TOOLKIT_HOME or ASCEND_HOME_PATH
    name, the default folders of an installation, PATH. The first that exists is taken.

    Args:
        named: The value of `--atc`: a path, or `simatc` for the simulator.
        root: Below which the default folders are looked for.

    Raises:
        ConfigError: What `--atc` or OMSERVE_ATC names is no program.
        AtcError: There is none anywhere; the message lists the places.
    """
    for source, value in (("--atc", named), (ATC_VARIABLE, environ.get(ATC_VARIABLE))):
        if value:
            return _named(source, value)
    looked = []
    for source, path in _places(environ, root):
        if path is not None and _is_program(path):
            return AtcTool((str(path),), toolkit_version(path), False, f"{source}: {path}")
        looked.append(f"{source}: {path or _NOTHING.get(source, 'not set')}")
    lines = "".join(f"\n  {number}. {line}" for number, line in enumerate(_order(looked), 1))
    raise AtcError(
        f"atc was not found; looked, in this order, at{lines}\n"
        f"install the CANN toolkit and the ops package of the chip, then source its set_env.sh, "
        f"or name the program with --atc; --atc {SIMATC} takes the simulator, whose programs no "
        f"card runs"
    )


def toolkit_version(atc: Path) -> str:
    """The release of the CANN installation that a program belongs to.

    A program of unknown origin is known by its content, so that the cache tells two of them
    apart.

    Source: hicann/docs, quick installation, "check the CANN version".
    """
    real = atc.resolve()
    info = f"{platform.machine()}-linux/ascend_toolkit_install.info"
    for folder in list(real.parents)[1:4]:
        for path in (folder / info, folder / "ascend_toolkit_install.info"):
            version = _read_version(path)
            if version:
                return version
    try:
        return f"unknown-{hashlib.sha256(real.read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        raise AtcError(f"cannot read {atc}: {error}") from error


def _order(looked: list[str]) -> list[str]:
    return ["--atc: not given", f"{ATC_VARIABLE}: not set", *looked]


def _named(source: str, value: str) -> AtcTool:
    if value == SIMATC:
        command = (sys.executable, "-m", "atc_pipeline.simatc")
        version = f"{SIMATC}-{_hash_simatc()}"
        return AtcTool(command, version, True, f"{source}: {SIMATC}", str(_PACKAGE.parent))
    path = Path(value).absolute()
    if not _is_program(path):
        raise ConfigError(
            f"{source} is {value!r}, which is no program that can be run; wanted the path of "
            f"atc, or {SIMATC} for the simulator"
        )
    return AtcTool((str(path),), toolkit_version(path), False, f"{source}: {value}")


def _places(environ: Mapping[str, str], root: Path) -> Iterator[tuple[str, Path | None]]:
    for variable in _HOME_VARIABLES:
        home = environ.get(variable)
        yield variable, Path(home) / "bin" / "atc" if home else None
    for base in (root / "usr/local", Path(environ.get("HOME") or root / "root")):
        for installed in _INSTALLED:
            yield "default folder", base / installed / "bin" / "atc"
    found = shutil.which("atc", path=environ.get("PATH", ""))
    yield "PATH", Path(found) if found else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _read_version(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    pairs = (line.partition("=") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == "version"), "")


def _hash_simatc() -> str:
    """Over the simulator's sources: another simulator makes other programs."""
    digest = hashlib.sha256()
    for path in sorted((_PACKAGE / SIMATC).glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
