"""The emitted folder: all that a machine with CANN needs to compile, and nothing of ours.

Owns its files and their reading back:

    emit.json                 what was asked for: layout, weights, flags, simulated or not
    draft.json                the manifest over the graph, from which the bundle will be made
    programs/step.onnx, .weights, tokenizer/, reports/
    SHA256SUMS                of all of these
    compile.sh                one run of `atc` for each program, into programs/<name>/
    compile-in-container.sh   the same inside of a CANN image
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.atc.jobs import CompileJob, JobSettings, Layout, plan_jobs
from atc_pipeline.atc.options import build_atc_argv
from atc_pipeline.building_folder import FolderKind
from atc_pipeline.bundle import hash_file, product_version
from atc_pipeline.checksums import SUMS_NAME
from atc_pipeline.draft import DRAFT_NAME, draft_program, read_draft
from omruntime.errors import BundleError, ConfigError
from omruntime.manifest import Manifest

EMIT_NAME = "emit.json"
SCRIPT_NAME = "compile.sh"
_CONTAINER_SCRIPT_NAME = "compile-in-container.sh"
_FORMAT_VERSION = 1
EMITTED = FolderKind(
    word="emitted folder",
    index_name=EMIT_NAME,
    index_keys=frozenset({"emit_version", "is_simulated"}),
    entries=frozenset(
        {
            EMIT_NAME,
            DRAFT_NAME,
            SCRIPT_NAME,
            _CONTAINER_SCRIPT_NAME,
            SUMS_NAME,
            "programs",
            "tokenizer",
            "reports",
        }
    ),
)


@dataclass(frozen=True, slots=True)
class Emitted:
    """An emitted folder as it was asked for.

    Attributes:
        is_simulated: Whether `simatc` is to compile it, and nothing else.
    """

    draft: Manifest
    jobs: tuple[CompileJob, ...]
    is_simulated: bool


def write_emitted(folder: Path, settings: JobSettings, is_simulated: bool) -> Emitted:
    """Complete a folder that holds a draft and its files.

    Raises:
        ConfigError: The buckets or flags do not fit ATC.
    """
    draft = read_draft(folder)
    jobs = plan_jobs(draft_program(draft), draft.kv, draft.soc, settings)
    plain = {
        "emit_version": _FORMAT_VERSION,
        "omserve": product_version(),
        "layout": settings.layout.value,
        "share_weights": settings.share_weights,
        "extra_flags": [list(pair) for pair in settings.extra_flags],
        "is_simulated": is_simulated,
    }
    _write(folder / EMIT_NAME, json.dumps(plain, indent=2, sort_keys=True) + "\n")
    sums = {entry.path: entry.sha256 for entry in draft.files}
    sums |= {name: hash_file(folder / name) for name in (EMIT_NAME, DRAFT_NAME)}
    _write(folder / SUMS_NAME, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))
    _write(folder / SCRIPT_NAME, compile_script(draft, jobs, is_simulated))
    if not is_simulated:  # an image has CANN, not this package
        _write(folder / _CONTAINER_SCRIPT_NAME, _CONTAINER_SCRIPT)
    return Emitted(draft, jobs, is_simulated)


def read_emitted(folder: Path) -> Emitted:
    """Read the folder back.

    Raises:
        BundleError: It is no emitted folder, or of another version.
    """
    draft = read_draft(folder)
    path = folder / EMIT_NAME
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["emit_version"] != _FORMAT_VERSION:
            raise BundleError(f"{path}: emit_version is {plain['emit_version']}; emit it again")
        settings = _settings(plain)
        is_simulated = bool(plain["is_simulated"])
        jobs = plan_jobs(draft_program(draft), draft.kv, draft.soc, settings)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        ConfigError,
    ) as error:
        raise BundleError(f"cannot read {path}: {error}; emit the folder again") from error
    return Emitted(draft, jobs, is_simulated)


def require_nothing_compiled(folder: Path) -> None:
    """Refuse to replace an emitted folder with programs in it: they took hours.

    Raises:
        ConfigError: There is one.
    """
    found = sorted(folder.glob("programs/*/*.om"))
    if found:
        raise ConfigError(
            f"{folder} holds compiled programs ({found[0].relative_to(folder)}); take them with "
            f"--from-compiled {folder}, remove them, or emit into another folder"
        )


def compile_script(draft: Manifest, jobs: Sequence[CompileJob], is_simulated: bool) -> str:
    """`compile.sh`: plain sh, with every command line written out."""
    calls = [
        f"compile {shlex.quote(job.name)} \\\n"
        + " \\\n".join(f"  {shlex.quote(word)}" for word in build_atc_argv(job.options))
        for job in jobs
    ]
    tool = "python3 -m atc_pipeline.simatc" if is_simulated else "atc"
    label = "SIMULATED: no card runs what this makes.\n# " if is_simulated else ""
    # A line end in the name must not begin a command.
    name = " ".join(draft.model.name.split())
    names = " ".join(job.name for job in jobs)
    head = _SCRIPT_HEAD.format(model=name, soc=draft.soc, label=label, tool=tool, names=names)
    if is_simulated:
        calls = [_SIMULATION_CHECK, *calls]
    return "\n\n".join([head, *calls, _SCRIPT_TAIL.format(names=names)])


def _settings(plain: Mapping[str, object]) -> JobSettings:
    pairs = plain["extra_flags"]
    if not isinstance(pairs, list):
        raise TypeError(f"extra_flags is {pairs!r}, wanted a list")
    return JobSettings(
        Layout(plain["layout"]),
        bool(plain["share_weights"]),
        tuple((str(name), str(value)) for name, value in pairs),
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


_SCRIPT_HEAD = """\
#!/bin/sh
# {label}Compiles the programs of {model} for {soc}.
# Needs sh, coreutils and CANN: source its set_env.sh first, with the ops package of the chip
# installed. `sh compile.sh NAME...` compiles only the programs named, so that several machines
# can share the work. ATC=/path/to/atc takes another compiler than the one in PATH.
set -eu
cd "$(dirname "$0")"
ATC=${{ATC:-{tool}}}
wanted=" $* "
for name in "$@"; do
  case " {names} " in
  *" $name "*) ;;
  *)
    echo "there is no program $name, wanted some of: {names}" >&2
    exit 2
    ;;
  esac
done

case $(pwd -P) in
*[!A-Za-z0-9./_-]*)
  echo "atc takes paths of letters, digits and ./_- only, this folder is $(pwd -P)" >&2
  exit 2
  ;;
esac
if ! command -v ${{ATC%% *}} >/dev/null; then
  echo "${{ATC%% *}} was not found: source set_env.sh of CANN, or set ATC" >&2
  exit 2
fi
sha256sum --check --quiet SHA256SUMS

compile() {{
  name=$1
  shift
  case $wanted in
  "  " | *" $name "*) ;;
  *) return 0 ;;
  esac
  rm -rf "programs/$name"
  mkdir "programs/$name"
  echo "compiling $name.om, log in programs/$name/atc.log"
  code=0
  # ATC may be several words.
  (cd "programs/$name" && $ATC "$@" >atc.log 2>&1) || code=$?
  if [ "$code" -ne 0 ] || [ ! -f "programs/$name/$name.om" ]; then
    tail -n 20 "programs/$name/atc.log" >&2
    echo "$name.om: failed with exit code $code" >&2
    exit 4
  fi
  # What was made, and from what, so that neither damage nor another build's program goes unseen.
  (
    cd "programs/$name"
    sha256sum ../../SHA256SUMS "$name.om" >sums.partial
    if [ -d weight ]; then find weight -type f | LC_ALL=C sort | xargs sha256sum >>sums.partial; fi
    mv sums.partial SHA256SUMS
  )
}}"""
_SIMULATION_CHECK = """\
echo "SIMULATION: simatc compiles in place of atc, and no card runs what it makes" >&2
if [ "$ATC" = "python3 -m atc_pipeline.simatc" ] &&
  ! python3 -c "import atc_pipeline.simatc.cli"; then
  echo "the python3 in PATH has no omserve[export], which holds simatc; put the bin folder of" >&2
  echo "its environment first in PATH" >&2
  exit 1
fi"""
_SCRIPT_TAIL = """\
missing=
for name in {names}; do
  # Written last, so a program without it is not whole.
  [ -f "programs/$name/SHA256SUMS" ] || missing="$missing $name"
done
if [ -n "$missing" ]; then
  echo "done; not compiled here yet:$missing; compile them here, or copy their folders in"
  echo "programs/ from another machine, before export-om build --from-compiled"
  exit 0
fi
echo "done; now: export-om build --from-compiled $(pwd -P) --output BUNDLE"
"""
_CONTAINER_SCRIPT = """\
#!/bin/sh
# Runs compile.sh in a CANN image; no card and no driver are needed to compile.
set -eu
: "${IMAGE:?set IMAGE to a CANN image with the ops package of the chip, such as \\
ascendai/cann:8.5.1-310p}"
here=$(cd "$(dirname "$0")" && pwd -P)
exec ${DOCKER:-docker} run --rm --user "$(id -u):$(id -g)" --volume "$here:/work" \\
  --workdir /work --env HOME=/tmp "$IMAGE" bash -c '
    for file in /usr/local/Ascend/cann/set_env.sh /usr/local/Ascend/ascend-toolkit/set_env.sh; do
      if [ -f "$file" ]; then . "$file"; break; fi
    done
    exec sh compile.sh "$@"' compile.sh "$@"
"""
