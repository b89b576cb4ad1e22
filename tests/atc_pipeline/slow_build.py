"""Run as a script: a supervised build whose exporter stops at a wanted point and waits there.

Arguments: the output folder, then the point: `start` (nothing written), `half` (some files
written), `native` (in a call that no Python signal handler can interrupt).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from atc_pipeline.build import BuildNeeds, BuildRequest
from atc_pipeline.bundle import BuildRecord
from atc_pipeline.commands.build_runs import build_supervised
from atc_pipeline.exit_codes import run_reported
from export.result import ExportResult
from tests.atc_pipeline.fake_export import fake_export


def main() -> int:
    output, point = Path(sys.argv[1]), sys.argv[2]

    def export(folder: Path, progress: Callable[[str], None]) -> ExportResult:
        if point == "half":
            fake_export(folder, progress)
        progress(f"waiting pid={os.getpid()}")
        if point == "native":
            # Holds the interpreter lock, as a long call into a C++ library may.
            ctypes.PyDLL(None).sleep(60)
        while True:
            signal.pause()

    request = BuildRequest(output, BuildRecord("cpu", "tiny"), BuildNeeds(0, 0))
    return run_reported(lambda: build_supervised(request, export, False), show_traceback=False)


if __name__ == "__main__":
    sys.exit(main())
