"""`export-om` as installed: says what is missing where only the client was installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """As `atc_pipeline.cli.main`; 2 when the libraries to build with are not there."""
    try:
        from atc_pipeline.cli import main as run_export_om
    except ImportError as error:
        print(
            f"export-om: the build side's libraries are missing ({error}); install them with: "
            f"pip install '.[export]' in omserve's folder",
            file=sys.stderr,
        )
        return 2
    return run_export_om(argv)
