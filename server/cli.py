"""`om-serve`: read the settings, serve, end with the exit code that `status.py` gives.

Imports little at the top: until the server handles signals itself, Ctrl-C must end the process
like any other program, without a traceback out of a half imported library.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `om-serve`; returns the exit code.

    0: ended by SIGTERM or SIGINT. 2: a setting or the bundle is wrong. 1: anything else. A signal
    in the first moments, before the server handles signals, ends the process by that signal
    (143 or 130 in a shell).
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from omruntime.errors import OmError
    from server.status import exit_code_of

    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except OmError as error:
        print(f"om-serve: {error}", file=sys.stderr)
        return exit_code_of(error)
    except Exception:
        import logging

        logging.getLogger(__name__).exception("om-serve failed unexpectedly")
        return 1


def _run(argv: Sequence[str]) -> int:
    from server.settings import Settings

    settings = Settings.load(argv, os.environ)

    from omruntime.async_engine import AsyncEngine
    from server.app import Parts, run_server
    from server.generate import TextGenerator

    return run_server(settings, Parts(AsyncEngine.open, TextGenerator.open))
