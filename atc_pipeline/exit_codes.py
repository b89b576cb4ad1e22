"""What `export-om` exits with, and the one line it says about an error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from atc_pipeline.supervise import StopRequested
from omruntime.errors import AtcError, BundleError, ConfigError, ExportError, OmError

UNEXPECTED = 1
_INTERRUPTED = 130
_BY_CLASS: tuple[tuple[type[OmError], int], ...] = (
    (ConfigError, 2),
    (BundleError, 2),
    (ExportError, 3),
    (AtcError, 4),
)


def run_reported(work: Callable[[], int], show_traceback: bool) -> int:
    """Run a subcommand; errors become a line on stderr and an exit code."""
    try:
        return _run_flushed(work)
    except BrokenPipeError:
        # The reader has seen enough; what is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except StopRequested as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OmError as error:
        _say(f"export-om: {error}", show_traceback)
        return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), UNEXPECTED)
    except OSError as error:
        _say(f"export-om: {error}", show_traceback)
        return UNEXPECTED
    except Exception as error:
        _say(f"export-om: unexpected {type(error).__name__}: {error}", show_traceback)
        if not show_traceback:
            _say("export-om: run it again with --traceback to see where", show_traceback=False)
        return UNEXPECTED


def _run_flushed(work: Callable[[], int]) -> int:
    code = work()
    sys.stdout.flush()
    return code


def _say(line: str, show_traceback: bool) -> None:
    if show_traceback:
        traceback.print_exc()
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
