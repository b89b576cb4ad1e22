"""SHA256SUMS files as coreutils writes them: what changed since one was written."""

from __future__ import annotations

import re
from pathlib import Path

from atc_pipeline.bundle import hash_file

SUMS_NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([^\x00]+)")


def find_changes(folder: Path, wanted: tuple[str, ...]) -> list[str]:
    """One line for each file that is not as the folder's SHA256SUMS says.

    Args:
        folder: Where the sums lie; names in them are relative to it.
        wanted: Names that must be listed.
    """
    try:
        lines = (folder / SUMS_NAME).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return [f"{SUMS_NAME}: cannot be read ({error})"]
    matches = [_LINE.fullmatch(line) for line in lines]
    listed = {match[2]: match[1] for match in matches if match}
    problems = [f"{SUMS_NAME}: line {n} is none" for n, m in enumerate(matches, 1) if not m]
    problems += [f"{name}: not in {SUMS_NAME}" for name in wanted if name not in listed]
    for name, digest in listed.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name}: missing")
        elif hash_file(path) != digest:
            problems.append(f"{name}: changed since {SUMS_NAME} was written")
    return problems
