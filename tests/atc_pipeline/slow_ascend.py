"""Run as a script: a supervised build for an Ascend chip of the tiny step graph.

Arguments: the output folder, the program that stands in for `atc` (or `simatc`), the cache folder,
and how many runs of it there may be at a time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from atc_pipeline.ascend_build import AscendBuild
from atc_pipeline.atc.find import find_atc
from atc_pipeline.atc.jobs import JobSettings
from atc_pipeline.build import BuildNeeds, BuildRequest
from atc_pipeline.commands.build_ascend import lint_for_atc
from atc_pipeline.commands.build_runs import Drafting, build_ascend_supervised
from atc_pipeline.exit_codes import run_reported
from tests.atc_pipeline.fake_ascend import SOC
from tests.atc_pipeline.tiny_step_graph import RECORD, tiny_ascend_export


def main() -> int:
    output, atc, cache, num_jobs = sys.argv[1:]
    build = AscendBuild(
        tool=find_atc(atc, os.environ),
        jobs=JobSettings(),
        num_jobs=int(num_jobs),
        timeout_s=120,
        cache_folder=Path(cache),
    )
    request = BuildRequest(Path(output), RECORD, BuildNeeds(0, 0))
    drafting = Drafting(tiny_ascend_export, lint_for_atc(SOC, build.jobs, False), False)
    return run_reported(
        lambda: build_ascend_supervised(request, drafting, build), show_traceback=False
    )


if __name__ == "__main__":
    sys.exit(main())
