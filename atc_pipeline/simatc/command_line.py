"""The command line of atc: flags, and what is wrong with them before a model is read.

Owns which flags simatc acts on, which change nothing here, and which it cannot simulate. The
table of flags is `atc_table.py`.

Source: hicann/ge api/atc/{cmd_flag_info,main_impl}.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atc_pipeline.atc_table import Refusal, load_atc_table
from atc_pipeline.simatc.refusal import AtcRefusalError, NotSimulatedError

_ONNX = "5"
_BUILD_OM = "0"
_MAX_PATH_BYTES = 4096
_MAX_NAME_BYTES = 255
_ACTED_ON = frozenset(
    {
        "model",
        "output",
        "framework",
        "mode",
        "soc_version",
        "input_format",
        "input_shape",
        "dynamic_dims",
        "external_weight",
        "log",
    }
)
# With another value than these, the OM would have other inputs, outputs or shapes.
_NEUTRAL = {
    "dynamic_batch_size": "",
    "dynamic_image_size": "",
    "input_shape_range": "",
    "insert_op_conf": "",
    "input_fp16_nodes": "",
    "out_nodes": "",
    "output_type": "",
    "singleop": "",
    "raw_ge_options": "",
    "save_original_model": "false",
    "om": "",
    "json": "",
    "auto_tune_mode": "",
}


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A command line that is in order.

    Attributes:
        output: The OM without its suffix.
        external_weight: 0 inside of the OM, 1 a file for each constant, 2 one file.
        argv: As given, for the OM.
        without_effect: Flags that change nothing in a simulation.
    """

    model: Path
    output: Path
    soc_version: str
    input_shape: str
    dynamic_dims: str
    external_weight: int
    argv: tuple[str, ...]
    without_effect: tuple[str, ...]


def parse_command_line(argv: Sequence[str]) -> CompileRequest:
    """Read and check the flags.

    Raises:
        AtcRefusalError: atc would refuse them.
        NotSimulatedError: atc takes them, simatc does not.
    """
    flags = _split(argv)
    _raise_first(load_atc_table().find_refusals(flags))
    _require_simulated(flags)
    _raise_first(_missing(flags))
    model, output = Path(flags["model"]), flags["output"]
    _raise_first(_path_refusals(model, output, flags["soc_version"]))
    return CompileRequest(
        model=model,
        output=Path(output),
        soc_version=flags["soc_version"],
        input_shape=flags.get("input_shape", ""),
        dynamic_dims=flags.get("dynamic_dims", ""),
        external_weight=int(flags.get("external_weight") or 0),
        argv=tuple(argv),
        without_effect=tuple(name for name in flags if name not in _ACTED_ON),
    )


def _split(argv: Sequence[str]) -> dict[str, str]:
    """`--flag=value` or `-flag=value`; a later one of the same name wins."""
    flags: dict[str, str] = {}
    for word in argv:
        name, sign, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not word.startswith("-") or not name:
            raise AtcRefusalError("", f"got the argument {word!r}, wanted --flag=value")
        if name not in load_atc_table().options:
            raise AtcRefusalError("", f"unknown command line flag {name!r}")
        if not sign:
            raise AtcRefusalError(
                "", f"flag --{name} is missing its argument, wanted --{name}=value"
            )
        flags[name] = value
    return flags


def _raise_first(refusals: Iterable[Refusal]) -> None:
    for refusal in refusals:
        raise AtcRefusalError(refusal.code, refusal.reason)


def _missing(flags: Mapping[str, str]) -> Iterable[Refusal]:
    if not flags.get("framework") or flags["framework"] == "-1":
        yield Refusal("E10007", "--framework is missing, wanted 0, 1, 3 or 5 (ONNX)")
    for name in ("model", "output", "soc_version"):
        if not flags.get(name):
            yield Refusal("E10054", f"--{name} is required and must not be empty")


def _require_simulated(flags: Mapping[str, str]) -> None:
    if flags.get("mode", _BUILD_OM) != _BUILD_OM:
        raise NotSimulatedError(f"--mode={flags['mode']} is not simulated, only --mode=0 is")
    if flags.get("framework", _ONNX) not in (_ONNX, "-1", ""):
        raise NotSimulatedError(f"--framework={flags['framework']} is not simulated, only 5 (ONNX)")
    for name, neutral in _NEUTRAL.items():
        if flags.get(name, neutral) not in ("", neutral):
            raise NotSimulatedError(f"--{name}={flags[name]} is not simulated")


def _path_refusals(model: Path, output: str, soc_version: str) -> Iterable[Refusal]:
    if soc_version not in load_atc_table().soc_versions:
        yield Refusal("E10001", f"--soc_version is {soc_version!r}, which no chip file is for")
    name = output.rpartition("/")[2]
    if name in ("", ".", ".."):
        yield Refusal("E10022", f"--output is {output!r}, which has no file name")
    if len(output.encode()) > _MAX_PATH_BYTES or len(name.encode()) > _MAX_NAME_BYTES - 3:
        yield Refusal("E10021", f"--output is longer than {_MAX_PATH_BYTES} bytes or its name is")
    if not model.is_file():
        yield Refusal("E13026", f"--model is {str(model)!r}, which is no file")
