"""The process in which constraints are tried: reads one a line, answers with a refusal or null.

Owns its limits: whatever passes them ends the process, which the parent takes for a refusal. It
ends with its standard input, so also with its parent.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from omruntime.constraint import Constraint
from omruntime.errors import RequestError
from omruntime.grammar.llguidance_compiler import LLGuidanceCompiler, open_compiler
from omruntime.manifest import Manifest

# Ordinary schemas take milliseconds. As long again is taken where the answer is made, in a thread
# beside the engine's, so it is also what one request may cost the others of a core.
MAX_SECONDS = 5
# More than any schema in use, and little enough that a server can spare it once more.
MAX_MEMORY_MIB = 512


def main(bundle: str) -> None:
    """Answer until standard input ends."""
    folder = Path(bundle)
    compiler = open_compiler(folder, Manifest.read(folder).model)
    limit_memory()
    for line in sys.stdin.buffer:
        kind, value = json.loads(line)
        signal.alarm(MAX_SECONDS)
        refusal = refusal_of(compiler, kind, value)
        signal.alarm(0)
        sys.stdout.write(json.dumps(refusal) + "\n")
        sys.stdout.flush()


def refusal_of(compiler: LLGuidanceCompiler, kind: str, value: Any) -> str | None:
    """Why a constraint is refused; None when it compiles."""
    fields: dict[str, Any] = {kind: tuple(value) if isinstance(value, list) else value}
    constraint = Constraint(**fields)
    try:
        compiler.compile(constraint)
    except RequestError as error:
        return str(error)
    return None


def limit_memory() -> None:
    """Let allocations fail beyond what is used now and the limit; and write no core files."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + (MAX_MEMORY_MIB << 20)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
