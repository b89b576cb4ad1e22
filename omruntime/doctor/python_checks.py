"""Checks of what this process would load: environment, libraries, acl, atc, torch_npu."""

from __future__ import annotations

from collections.abc import Mapping

from omruntime.doctor.compatibility import as_numbers, find_python_row, find_torch_row, matches
from omruntime.doctor.finding import Verdict, not_applicable, ok, problem, warning
from omruntime.doctor.installs import set_env_script
from omruntime.doctor.software_checks import ASK_VENDOR
from omruntime.doctor.survey import Survey

_NO_CANN = not_applicable("CANN was not found")


def environment(facts: Survey) -> Verdict:
    """Whether CANN's set_env.sh was sourced in the shell that started this process."""
    if facts.cann is None:
        return _NO_CANN
    environ = facts.machine.environ
    missing = [name for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH") if not environ.get(name)]
    on_path = {
        name: any(facts.cann.folder in part or "/Ascend/" in part for part in _parts(environ, name))
        for name in ("LD_LIBRARY_PATH", "PYTHONPATH")
    }
    missing += [f"a CANN folder in {name}" for name, is_there in on_path.items() if not is_there]
    if missing:
        return problem(
            f"not in the environment: {', '.join(missing)}",
            f"source {set_env_script(facts.machine, facts.cann)}",
        )
    named = environ["ASCEND_HOME_PATH"]
    if named != facts.cann.folder:
        # It is looked at first, so what was found is another.
        return problem(
            f"ASCEND_HOME_PATH is {named}, where no CANN is; there is one in {facts.cann.folder}",
            f"source {set_env_script(facts.machine, facts.cann)}",
        )
    return ok("set_env.sh was sourced")


def _parts(environ: Mapping[str, str], name: str) -> list[str]:
    return [part for part in environ.get(name, "").split(":") if part]


def libraries(facts: Survey) -> Verdict:
    """Whether the linker finds AscendCL and the driver's library below it."""
    if facts.cann is None:
        return _NO_CANN
    missing = [name for name, path in facts.libraries.items() if path is None]
    if not facts.has_card:
        # A build machine has CANN's own library and no driver.
        missing = [name for name in missing if name != "libascend_hal.so"]
    if not missing:
        return ok(", ".join(path for path in facts.libraries.values() if path is not None))
    return problem(
        f"not found through LD_LIBRARY_PATH or /etc/ld.so.conf.d: {', '.join(missing)}",
        "libascendcl.so: source CANN's set_env.sh; libascend_hal.so: add /usr/local/Ascend/driver/"
        "lib64/driver and /usr/local/Ascend/driver/lib64/common to LD_LIBRARY_PATH, in a "
        "container mount /usr/local/Ascend/driver/lib64",
    )


def acl_module(facts: Survey) -> Verdict:
    """Whether Python imports the acl module, tried in a child process."""
    output = facts.acl_import
    if output is None:
        return _NO_CANN
    said = " ".join(output.text.split())[-300:]
    if output.code == 0:
        return ok(said or "imported")
    return problem(
        f"import acl failed: {said or output.code}",
        "source CANN's set_env.sh, which sets PYTHONPATH; with an interpreter that CANN was not "
        "built for, install a CANN that was",
    )


def python_fits_cann(facts: Survey) -> Verdict:
    """The running Python against the range that the CANN release states for acl.so."""
    if facts.cann is None or not facts.cann.version:
        return _NO_CANN
    version = ".".join(map(str, facts.machine.python))
    row = find_python_row(facts.cann.version)
    found = f"Python {version}, CANN {facts.cann.version}"
    if row is None:
        return warning(
            f"{found}: unknown, no source at hand names a range",
            "the acl module check decides: when it imports, it fits",
        )
    newest = as_numbers(row.newest)
    if as_numbers(row.oldest) <= facts.machine.python and facts.machine.python[:2] <= newest[:2]:
        return ok(f"{found}: acl.so is for {row.oldest} to {row.newest}")
    return warning(
        f"{found}: acl.so is stated for {row.oldest} to {row.newest} ({row.source})",
        "omserve needs Python 3.11 or newer: use CANN 8.5.0 or later",
    )


def atc(facts: Survey) -> Verdict:
    """Whether the compiler is there; only building needs it."""
    if facts.atc is not None:
        return ok(facts.atc)
    if facts.cann is None:
        return _NO_CANN
    if facts.cann.name == "nnrt":
        return not_applicable("nnrt has no compiler: bring compiled bundles")
    return warning("atc is not on PATH", "source CANN's set_env.sh")


def torch_npu(facts: Survey) -> Verdict:
    """torch_npu against torch and CANN; only `verify --reference npu` needs it."""
    version = facts.machine.package_version("torch-npu")
    if version is None:
        return not_applicable("torch-npu is not installed; only verify --reference npu needs it")
    torch = facts.machine.package_version("torch")
    if torch is None:
        return problem(f"torch-npu {version} without torch", f"install torch {_release(version)}")
    if _release(version) != _release(torch):
        return problem(
            f"torch-npu {version} with torch {torch}",
            f"install torch {_release(version)}, or the torch-npu of torch {_release(torch)}",
        )
    return _torch_npu_fits_cann(facts, f"torch-npu {version}, torch {torch}", version)


def _torch_npu_fits_cann(facts: Survey, found: str, version: str) -> Verdict:
    row = find_torch_row(version)
    if row is None or not row.cann:
        why = row.source if row is not None else "no table at hand names this release"
        return warning(f"{found}: the CANN it needs is unknown ({why})", ASK_VENDOR)
    if facts.cann is None or not facts.cann.version:
        return problem(f"{found} needs CANN {row.cann}", f"install CANN {row.cann}")
    if matches(facts.cann.version, row.cann):
        return ok(f"{found}, CANN {facts.cann.version}: listed in {row.source}")
    return warning(
        f"{found} is listed with CANN {row.cann}, here is {facts.cann.version} ({row.source})",
        f"install CANN {row.cann}, or the torch-npu that is listed with {facts.cann.version}",
    )


def _release(version: str) -> str:
    """The X.Y.Z of a version: torch-npu X.Y.Z.postN is for torch X.Y.Z."""
    return ".".join(map(str, as_numbers(version.partition("+")[0])[:3]))
