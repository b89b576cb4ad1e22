"""AtcOptions: one run of `atc` as typed values, checked, and its command line.

Owns which flags a step graph is compiled with and why. Shapes are `shapes.py`; running is
`run.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from atc_pipeline.atc_table import load_atc_table
from omruntime.errors import ConfigError

_ONNX = "5"
# What the build decides itself; another value would make programs that serving cannot run.
_OWN_FLAGS = frozenset(
    {
        "model",
        "output",
        "framework",
        "soc_version",
        "input_format",
        "input_shape",
        "dynamic_dims",
        "precision_mode_v2",
        "external_weight",
        "mode",
    }
)
# Flags whose values are paths, which differ from machine to machine.
PATH_FLAGS = frozenset({"model", "output"})


class ExternalWeight(Enum):
    """Where `atc` puts constants.

    INSIDE: In the OM. FILES: One file for each distinct constant in `weight/` beside the OM, so
    that several OMs share them.

    Source: hicann/ge docs/zh/user_guides/atc_tools/CLI_options/--external_weight.md.
    """

    INSIDE = "0"
    FILES = "1"


@dataclass(frozen=True, slots=True)
class AtcOptions:
    """One compilation of a step graph.

    Attributes:
        model: The ONNX file as `atc` will open it, relative to its working folder.
        output: The OM without its suffix, relative too: both land in the OM's `atc_cmdline`, and
            absolute paths would make equal builds differ.
        soc_version: A chip file's name, such as `Ascend310P3`.
        input_shape: Every input's dimensions; -1 marks the axes that `dynamic_dims` fills.
        dynamic_dims: The gears; empty compiles one static shape.
        extra: More flags by name without dashes, as asked for on the command line.
    """

    model: str
    output: str
    soc_version: str
    input_shape: str
    dynamic_dims: str = ""
    external_weight: ExternalWeight = ExternalWeight.INSIDE
    extra: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Check everything that `atc` would refuse before it reads the model.

        Raises:
            ConfigError: A flag, a value or a combination is wrong; names the code that `atc`
                would answer with.
        """
        for name, _ in self.extra:
            if name in _OWN_FLAGS:
                raise ConfigError(f"--{name} is decided by the build; drop it from --atc-flag")
        if self.soc_version not in load_atc_table().soc_versions:
            known = ", ".join(load_atc_table().soc_versions)
            raise ConfigError(f"soc_version is {self.soc_version!r}, wanted one of {known}")
        refusals = load_atc_table().find_refusals(self.flags())
        if refusals:
            lines = "; ".join(f"{r.code or 'unknown flag'}: {r.reason}" for r in refusals)
            raise ConfigError(f"atc would refuse this command line: {lines}")

    def flags(self) -> Mapping[str, str]:
        """Flag names without dashes to values, in the order of the command line.

        - `input_format=ND`: for ONNX the default is NCHW, and gears want ND.
        - `precision_mode_v2=origin`: the graph is float16 with float32 islands on purpose; the
          default would turn the islands into float16 too.
        - `log=error`: the default `null` hides why an operator failed to compile.

        Source: hicann/ge docs/zh/user_guides/atc_tools/CLI_options, the page of each flag.
        """
        flags = {
            "framework": _ONNX,
            "model": self.model,
            "output": self.output,
            "soc_version": self.soc_version,
            "input_format": "ND",
            "input_shape": self.input_shape,
            "dynamic_dims": self.dynamic_dims,
            "precision_mode_v2": "origin",
            "external_weight": self.external_weight.value,
            "log": "error",
        } | dict(self.extra)
        return {name: value for name, value in flags.items() if value}


def build_atc_argv(options: AtcOptions) -> tuple[str, ...]:
    """The arguments of `atc`, without the program itself."""
    return tuple(f"--{name}={value}" for name, value in options.flags().items())


def parse_atc_flags(words: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """`NAME=VALUE` words, dashes in front or not, as pairs.

    Raises:
        ConfigError: A word has no value, or a name comes twice.
    """
    pairs = []
    for word in words:
        name, sign, value = word.lstrip("-").partition("=")
        if not (name and sign and value):
            raise ConfigError(f"--atc-flag is {word!r}, wanted NAME=VALUE")
        pairs.append((name, value))
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ConfigError(f"--atc-flag names a flag twice: {', '.join(sorted(names))}")
    return tuple(pairs)
