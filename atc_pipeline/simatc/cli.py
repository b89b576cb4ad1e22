"""What simatc prints and exits with: atc's words on stdout, the simulator's own on stderr.

Source: hicann/ge api/atc/main_impl.cc (CheckRet, main_impl): 0 for success and help, status -1,
which a shell sees as 255, for every failure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from atc_pipeline.atc_table import load_atc_table
from atc_pipeline.simatc.command_line import CompileRequest, parse_command_line
from atc_pipeline.simatc.compile import compile_om
from atc_pipeline.simatc.injected import VARIABLES, inject
from atc_pipeline.simatc.refusal import AtcRefusalError, NotSimulatedError
from omruntime.errors import ExportError

_FAILED = 255
_START = "ATC start working now, please wait for a moment."
_SUCCESS = "ATC run success, welcome to the next use."
_FAILURE = "ATC run failed, Please check the detail log, Try 'atc --help' for more information"
_HELP = frozenset({"--help", "-help", "-h", "--h"})


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run simatc; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or _HELP & set(argv):
        _print_help()
        return 0
    _notice("no Ascend device runs what this writes; only the simulated device does")
    try:
        request = parse_command_line(argv)
        print(_START, flush=True)
        _run(request, environ)
    except AtcRefusalError as refusal:
        return _fail(refusal.code, str(refusal))
    except NotSimulatedError as error:
        _notice(f"{error}; a real atc may take it")
        return _fail("", "")
    except ExportError as error:
        _notice(f"{error}; the simulator has no definition of it")
        return _fail("", "")
    except OSError as error:
        return _fail("E13004", f"cannot write: {error}")
    print(_SUCCESS, flush=True)
    return 0


def _run(request: CompileRequest, environ: Mapping[str, str]) -> None:
    # The exporter's definition of the npu operators; with onnx, but without torch.
    from export.npu_functions import expand_npu_ops

    for name in VARIABLES:
        if environ.get(name):
            _notice(f"{name}={environ[name]} injects a failure")
    if request.without_effect:
        flags = ", ".join(f"--{name}" for name in request.without_effect)
        _notice(f"without effect here: {flags}")
    held = inject(environ)
    path = compile_om(request, expand_npu_ops)
    del held
    _notice(f"wrote {path}")


def _fail(code: str, message: str) -> int:
    """A flag that atc does not know goes to stderr without a code, all else to stdout."""
    if message and not code:
        print(message, file=sys.stderr)
    print(_FAILURE)
    if code:
        meaning = load_atc_table().meaning_of(code)
        print(f"{code}: {meaning}: {message}" if meaning else f"{code}: {message}")
    sys.stdout.flush()
    return _FAILED


def _notice(text: str) -> None:
    print(f"simatc: SIMULATION: {text}", file=sys.stderr, flush=True)


def _print_help() -> None:
    print("usage: simatc --flag=value ...\n\nA simulator of atc; the flags are atc's:")
    for option in load_atc_table().options.values():
        print(f"  --{option.name:<32} {option.meaning}")
