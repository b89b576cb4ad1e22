"""Trial: each constraint is compiled in a process of its own first, which may fail in any way.

The library has limits, but not on everything: intersected patterns can take gigabytes and
minutes, and then end the process. What compiles in the trial compiles here with the same work.
The process starts with the first constraint that needs a trial and rests after a while without.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from omruntime.constraint import Constraint
from omruntime.errors import RequestError
from omruntime.grammar.llguidance_compiler import LLGuidanceCompiler, LLGuidanceGrammar, source_of
from omruntime.grammar.llguidance_compiler import open_compiler as open_library
from omruntime.grammar.trial_process import MAX_MEMORY_MIB, MAX_SECONDS
from omruntime.manifest import ModelFacts

# As `worker/launch.py` does it: the path is the parent's, so that both run one program.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2:]; from omruntime.grammar.trial_process import main; "
    "main(sys.argv[1])"
)


def open_compiler(bundle: Path, model: ModelFacts) -> TriedCompiler:
    """Read a bundle's vocabulary; raises as the library's `open_compiler`."""
    return TriedCompiler(open_library(bundle, model), Trial(bundle))


class TriedCompiler:
    """Compiles what has passed its trial; see `GrammarCompiler`."""

    def __init__(self, compiler: LLGuidanceCompiler, trial: Trial) -> None:
        self._compiler = compiler
        self._trial = trial

    def compile(self, constraint: Constraint) -> LLGuidanceGrammar:
        """See `GrammarCompiler`."""
        source_of(constraint)  # refusals by name need no process
        # The others are alternatives of plain text, which nothing multiplies.
        if constraint.kind in ("json_schema", "regex", "grammar"):
            self._trial.require_passed(constraint)
        return self._compiler.compile(constraint)

    def rest(self) -> None:
        """See `GrammarCompiler`."""
        self._trial.close()

    def close(self) -> None:
        """See `GrammarCompiler`."""
        self._trial.close()


class Trial:
    """The process and what is asked of it; one thread asks, any may close."""

    def __init__(self, bundle: Path) -> None:
        """Prepare; the process is started when it is needed."""
        self._bundle = bundle
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()

    def require_passed(self, constraint: Constraint) -> None:
        """Return once the constraint has compiled in the process.

        Raises:
            RequestError: It is refused, takes too long or too much memory, or ends the process.
        """
        process = self._running()
        # Without its free beginning, which multiplies nothing.
        kind = constraint.kind
        value = getattr(constraint, kind)
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        with suppress(OSError, ValueError):  # it has ended, or was closed meanwhile
            process.stdin.write(json.dumps([kind, value]).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer:
            self.close()
            raise RequestError(f"constraint.{kind} {_reason(process.returncode)}")
        refusal = json.loads(answer)
        if refusal:
            raise RequestError(refusal)

    def close(self) -> None:
        """End the process, if there is one."""
        with self._changing:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            # The pipes are closed once nobody reads them any more.
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        with self._changing:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, str(self._bundle), *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # The last words of a library that ran out of memory are no news to a log.
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            return self._process


def _reason(code: int | None) -> str:
    if code == -signal.SIGALRM:
        return f"takes longer than {MAX_SECONDS} s to compile; make it smaller"
    return (
        f"takes more than {MAX_MEMORY_MIB} MiB to compile, or breaks the compiler; make it smaller"
    )
