"""`om-serve`: read the settings, serve, end with the exit code that `status.py` gives.

`om-serve doctor` looks at the machine instead and `om-serve keys` makes API keys; bundles of these
names are `./doctor` and `./keys`.

Imports little at the top: until the server handles signals itself, Ctrl-C must end the process
like any other program, without a traceback out of a half imported library.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omruntime.errors import OmError
    from server.app import StartHttp
    from server.seams import TracesLike


def main(argv: Sequence[str] | None = None) -> int:
    """Run `om-serve`; returns the exit code.

    0: ended by SIGTERM, SIGINT or SIGHUP. 2: a setting or the bundle is wrong. 1: anything else. A
    signal in the first moments, before the server handles them, ends the process by that signal
    (143 or 130 in a shell).
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from omruntime.errors import OmError
    from server.status import exit_code_of

    argv = sys.argv[1:] if argv is None else argv
    try:
        command = {"doctor": _doctor, "keys": _keys}.get(argv[0] if argv else "")
        return _run(argv) if command is None else command(argv[1:])
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

    try:
        from server.app import Parts, run_server
        from server.generate import TextGenerator
        from server.loading import open_engine
    except ImportError as error:
        raise _missing("om-serve needs the serving", error, "cpu") from error

    start_http = None if settings.http_port is None else _http_gateway()
    open_traces = None if settings.otlp_endpoint is None else _traces()
    return run_server(settings, Parts(open_engine, TextGenerator.open, start_http, open_traces))


def _missing(who_needs_which: str, error: ImportError, extra: str) -> OmError:
    from omruntime.errors import ConfigError

    return ConfigError(
        f"{who_needs_which} libraries ({error}); install them with: "
        f"pip install '.[{extra}]' in omserve's folder"
    )


def _http_gateway() -> StartHttp:
    try:
        from server.http.serve import start_http_server
    except ImportError as error:
        raise _missing("--http-port needs the HTTP gateway's", error, "http") from error
    return start_http_server


def _traces() -> Callable[[str, str], TracesLike]:
    try:
        from server.traces import Traces
    except ImportError as error:
        raise _missing("--otlp-endpoint needs OpenTelemetry's", error, "otel") from error
    return Traces.open


def _keys(argv: Sequence[str]) -> int:
    """Make, show or withdraw API keys."""
    from server.security.keys_command import run_keys

    return run_keys(argv, os.environ)


def _doctor(argv: Sequence[str]) -> int:
    """Say what is wrong with this machine; 1 when an Ascend card cannot serve here."""
    from omruntime.command_parser import CommandParser
    from omruntime.doctor.command import HELP, add_arguments, run_doctor

    parser = CommandParser("om-serve doctor", description=HELP, allow_abbrev=False)
    add_arguments(parser)
    return run_doctor(parser.parse_args(argv).json)
