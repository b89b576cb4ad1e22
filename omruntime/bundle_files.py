"""The files of a bundle as the manifest lists them: where they lie, and the quick check.

Owns paths and sizes, all that a server looks at before it opens a program. Hashing the content
is `atc_pipeline/verify.py`.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from omruntime.errors import BundleError
from omruntime.manifest import MANIFEST_NAME, Manifest


def bundle_path(bundle: Path, relative: str) -> Path:
    """Where a file of the manifest lies.

    Raises:
        BundleError: The path is absolute, leaves the bundle or is not in its plain form.
    """
    path = PurePosixPath(relative)
    plain = bool(path.parts) and str(path) == relative
    if not plain or path.is_absolute() or ".." in path.parts or "\\" in relative:
        raise BundleError(
            f"{MANIFEST_NAME} names the file {relative!r}, wanted a path inside of the bundle; "
            f"build the bundle again"
        )
    return bundle.joinpath(*path.parts)


def find_file_problems(bundle: Path, manifest: Manifest) -> list[str]:
    """One line for each file that is absent, not a file or of another size.

    Raises:
        BundleError: As `bundle_path`.
    """
    problems = []
    listed = {entry.path for entry in manifest.files}
    for program in manifest.programs:
        if program.path not in listed:
            problems.append(f"{program.path}: a program that the file list lacks")
    for entry in manifest.files:
        path = bundle_path(bundle, entry.path)
        if not path.is_file():
            problems.append(f"{entry.path}: missing")
        elif path.stat().st_size != entry.size_bytes:
            got = path.stat().st_size
            problems.append(f"{entry.path}: {got} bytes, the manifest says {entry.size_bytes}")
    return problems


def check_files(bundle: Path, manifest: Manifest) -> None:
    """Check presence and size of every file; takes milliseconds and reads no content.

    Raises:
        BundleError: The message lists every file that does not fit.
    """
    problems = find_file_problems(bundle, manifest)
    if problems:
        raise BundleError(
            f"the bundle {bundle} is damaged: {'; '.join(problems)}; copy it again or rebuild it"
        )
