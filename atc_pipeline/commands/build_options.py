"""The command line of `export-om build`: its flags, and which of them go together.

Owns the refusal of flags that a kind of build would ignore. What a build does is `build.py`.
"""

from __future__ import annotations

import argparse
from enum import Enum
from pathlib import Path

from atc_pipeline.atc.find import ATC_VARIABLE, SIMATC
from atc_pipeline.atc.jobs import Layout
from atc_pipeline.atc.limits import default_num_jobs
from atc_pipeline.cache import CACHE_VARIABLE
from atc_pipeline.commands.arguments import add_traceback
from atc_pipeline.soc import DEFAULT_SOC
from omruntime.command_parser import Commands
from omruntime.errors import ConfigError

DEFAULT_TIMEOUT_S = 4 * 3600.0


class BuildKind(Enum):
    """What a command line asks for."""

    CPU = "a build for cpu"
    ASCEND = "a build for an Ascend chip"
    EMIT = "--emit"
    FROM_COMPILED = "--from-compiled"


_EXPORTS = frozenset({BuildKind.CPU, BuildKind.ASCEND, BuildKind.EMIT})
_COMPILES = frozenset({BuildKind.ASCEND})
_FOR_ATC = frozenset({BuildKind.ASCEND, BuildKind.EMIT})
_CHECKS_OMS = frozenset({BuildKind.ASCEND, BuildKind.FROM_COMPILED})
_ALL = frozenset(BuildKind)
# The kinds of build that a flag says something to.
_USED_BY = {
    "checkpoint": _EXPORTS,
    "--output": frozenset({BuildKind.CPU, BuildKind.ASCEND, BuildKind.FROM_COMPILED}),
    "--target": _EXPORTS,
    "--name": _EXPORTS,
    "--max-model-len": _EXPORTS,
    "--max-num-seqs": _EXPORTS,
    "--block-size": _EXPORTS,
    "--buckets": _EXPORTS,
    "--num-threads": _EXPORTS,
    "--allow-unproven": _EXPORTS,
    "--allow-unused-tensors": _EXPORTS,
    "--weights": frozenset({BuildKind.CPU}),
    "--num-blocks": _FOR_ATC,
    "--allow-fp16-clipping": _FOR_ATC,
    "--layout": _FOR_ATC,
    "--separate-weights": _FOR_ATC,
    "--atc-flag": _FOR_ATC,
    "--strict": frozenset({BuildKind.ASCEND, BuildKind.EMIT, BuildKind.FROM_COMPILED}),
    "--emit": frozenset({BuildKind.EMIT}),
    "--from-compiled": frozenset({BuildKind.FROM_COMPILED}),
    "--atc": _FOR_ATC,
    "--jobs": _COMPILES,
    "--cache-dir": _COMPILES,
    "--no-cache": _COMPILES,
    "--atc-timeout-s": _COMPILES,
    "--keep-intermediates": _COMPILES,
    "--keep-onnx": _CHECKS_OMS,
    "--traceback": _ALL,
}
_SHAPING_SWITCHES = (
    "--allow-unproven",
    "--allow-unused-tensors",
    "--allow-fp16-clipping",
    "--separate-weights",
    "--keep-onnx",
)
_NEEDED = {
    BuildKind.CPU: ("checkpoint", "--target", "--output"),
    BuildKind.ASCEND: ("checkpoint", "--target", "--output"),
    BuildKind.EMIT: ("checkpoint", "--target"),
    BuildKind.FROM_COMPILED: ("--output",),
}


def add_build_parser(commands: Commands, targets: tuple[str, ...]) -> argparse.ArgumentParser:
    """Add the subcommand and its flags; a flag that is not given is None or False."""
    from export.spec import DEFAULT_MAX_MODEL_LEN, DEFAULT_MAX_NUM_SEQS
    from export.weight_format import WeightFormat

    parser = commands.add_parser(
        "build", help="export a checkpoint into a bundle", allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "checkpoint",
        nargs="?",
        help="folder with safetensors, GGUF file, or Hub id when there is a network",
    )
    add("--output", type=Path, metavar="DIR", help="bundle to write or replace")
    add("--target", choices=targets, help="what to build for")
    add("--name", help="the model's name for clients (default: the checkpoint's)")
    own = f"the model's own, at most {DEFAULT_MAX_MODEL_LEN}"
    add("--max-model-len", type=int, metavar="N", help=f"tokens per sequence (default: {own})")
    default = f"default: {DEFAULT_MAX_NUM_SEQS}"
    add("--max-num-seqs", type=int, metavar="N", help=f"sequences that run at once ({default})")
    add("--block-size", type=int, metavar="N", help="tokens per KV block (default: the target's)")
    add("--buckets", type=Path, metavar="FILE", help="shapes that `export-om plan` chose")
    add("--num-threads", type=int, metavar="N", help="threads of the libraries (default: theirs)")
    add(
        "--weights",
        choices=[weights.value for weights in WeightFormat],
        help="how a bundle for cpu keeps them; all but float32 run on --device openvino "
        "(default: float32)",
    )
    add("--allow-unproven", action="store_true", help="let the parity gate alone decide")
    add("--allow-unused-tensors", action="store_true", help="accept tensors the model ignores")
    add_traceback(parser)
    _add_ascend_flags(parser.add_argument_group("Ascend chips"))
    _add_machine_flags(parser.add_argument_group("compiling, here or elsewhere"))
    return parser


def _add_ascend_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--num-blocks",
        type=int,
        metavar="N",
        help="KV blocks that programs are compiled for (default: room for all sequences)",
    )
    add(
        "--layout",
        choices=[layout.value for layout in Layout],
        help="one program for each phase, one for all, or one for each shape (default: per-phase)",
    )
    add("--separate-weights", action="store_true", help="programs do not share their weights")
    add("--allow-fp16-clipping", action="store_true", help="accept values beyond float16")
    add("--strict", action="store_true", help="end the build at warnings of the lint and of atc")
    add("--keep-onnx", action="store_true", help="keep the graph, so that verify can replay it")


def _add_machine_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--emit", type=Path, metavar="DIR", help="write a folder that a CANN machine compiles")
    add("--from-compiled", type=Path, metavar="DIR", help="make a bundle of such a folder")
    places = f"${ATC_VARIABLE}, the CANN installation, PATH"
    add("--atc", metavar="PATH", help=f"the compiler, or {SIMATC} to simulate (default: {places})")
    add(
        "--atc-flag",
        action="append",
        metavar="NAME=VALUE",
        help="one more flag for atc; may be repeated",
    )
    add(
        "--jobs",
        type=int,
        metavar="N",
        help=f"runs of atc at a time; one uses up to 8 processors (default: {default_num_jobs()})",
    )
    add(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help=f"compile cache (default: ${CACHE_VARIABLE}/atc or ~/.cache/omserve/atc)",
    )
    add("--no-cache", action="store_true", help="compile everything again, remember nothing")
    hours = f"default: {DEFAULT_TIMEOUT_S:.0f}"
    add("--atc-timeout-s", type=float, metavar="S", help=f"time limit of one run ({hours})")
    add("--keep-intermediates", action="store_true", help="keep working files in OUTPUT.atc")


def find_build_kind(options: argparse.Namespace) -> BuildKind:
    """Which build the flags ask for.

    Raises:
        ConfigError: A flag is missing, or says nothing to this kind of build; names it.
    """
    if options.from_compiled is not None:
        kind = BuildKind.FROM_COMPILED
    elif options.emit is not None:
        kind = BuildKind.EMIT
    else:
        kind = BuildKind.CPU if options.target == "cpu" else BuildKind.ASCEND
    given = [name for name in _USED_BY if _is_given(options, name)]
    if kind is BuildKind.ASCEND and options.target is None:
        wanted = ", ".join(name for name in _NEEDED[kind] if name not in given)
        raise ConfigError(
            f"{wanted}: missing, wanted for a build; --target is cpu, or a chip such as "
            f"{DEFAULT_SOC}"
        )
    foreign = [name for name in given if kind not in _USED_BY[name]]
    if foreign:
        raise ConfigError(
            f"{', '.join(foreign)}: not used by {kind.value}; leave it out or change the build"
        )
    missing = [name for name in _NEEDED[kind] if name not in given]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: missing, wanted for {kind.value}")
    if kind is BuildKind.EMIT and options.target == "cpu":
        raise ConfigError("--emit: a bundle for cpu needs no compiler; give --output")
    if options.no_cache and options.cache_dir is not None:
        raise ConfigError("--no-cache and --cache-dir exclude each other; leave one out")
    return kind


def accepting_flags(options: argparse.Namespace) -> tuple[str, ...]:
    """The switches that changed what a build accepts or makes, spelled out; paths by last part."""
    flags = [name for name in _SHAPING_SWITCHES if _is_given(options, name)]
    for name in ("--layout", "--weights", "--atc-flag"):
        value = getattr(options, _attribute(name))
        words = value if isinstance(value, list) else [value]
        flags += [word for item in words if item is not None for word in (name, item)]
    if options.buckets is not None:
        flags += ["--buckets", options.buckets.name]
    return tuple(flags)


def _is_given(options: argparse.Namespace, name: str) -> bool:
    value = getattr(options, _attribute(name))
    return value is not None and value is not False


def _attribute(name: str) -> str:
    return name.lstrip("-").replace("-", "_")
