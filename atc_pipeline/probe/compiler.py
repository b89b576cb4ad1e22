"""Compiler: a probe's graph through ATC, with the same options as a build.

One run at a time, each in a folder of its own below a working folder.
"""

from __future__ import annotations

import select
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from atc_pipeline.atc.find import AtcTool
from atc_pipeline.atc.options import AtcOptions, ExternalWeight, build_atc_argv
from atc_pipeline.atc.run import RunningAtc
from atc_pipeline.om_facts import ProgramFacts, read_program_facts
from atc_pipeline.probe.graphs import ProbeGraph
from omruntime.errors import AtcError

_TIMEOUT_S = 900.0
_NAME = "probe"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the graph's inputs are compiled for.

    Attributes:
        dims: Input name to dimensions, -1 where a gear decides.
        gears: The values of each -1, one tuple a gear; none for a static OM.
        external_weight: Where constants go.
    """

    dims: Mapping[str, Sequence[int]]
    gears: Sequence[Sequence[int]] = ()
    external_weight: ExternalWeight = ExternalWeight.INSIDE


@dataclass(slots=True)
class Compiler:
    """Compiles into folders of their own below `work`.

    Attributes:
        soc_version: The target, such as Ascend310P3.
    """

    tool: AtcTool
    soc_version: str
    work: Path
    _made: dict[tuple[bytes, tuple[str, ...]], Path] = field(default_factory=dict, init=False)

    def compile(self, graph: ProbeGraph, shape: Shape) -> Path:
        """Returns the OM, the same for the same graph and shape.

        External weights lie in `weight/` beside it.

        Raises:
            AtcError: ATC failed; the message ends with what it said last.
        """
        options = AtcOptions(
            model=f"{_NAME}.onnx",
            output=_NAME,
            soc_version=self.soc_version,
            input_shape=";".join(
                f"{name}:{','.join(map(str, shape.dims[name]))}" for name in graph.input_names
            ),
            dynamic_dims=";".join(",".join(map(str, gear)) for gear in shape.gears),
            external_weight=shape.external_weight,
        )
        argv = build_atc_argv(options)
        key = (graph.model.SerializeToString(deterministic=True), argv)
        if key not in self._made:
            folder = Path(tempfile.mkdtemp(dir=self.work))
            self._made[key] = self._run(graph, argv, folder)
        return self._made[key]

    def _run(self, graph: ProbeGraph, argv: tuple[str, ...], folder: Path) -> Path:
        onnx.save(graph.model, folder / f"{_NAME}.onnx")
        run = RunningAtc(self.tool, argv, folder, _TIMEOUT_S)
        try:
            select.select([run], [], [], run.seconds_left)
            result = run.finish()
        finally:
            run.close()
        om = folder / f"{_NAME}.om"
        if result.exit_code != 0 or not om.is_file():
            said = " ".join(result.output_tail.split())[-600:]
            raise AtcError(f"atc exited with {result.exit_code}: {said}")
        return om

    def facts(self, graph: ProbeGraph, shape: Shape) -> ProgramFacts:
        """Compile and read what the OM says of itself."""
        return read_program_facts(self.compile(graph, shape))
