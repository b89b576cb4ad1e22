"""The random machine notices broken rules: each case breaks one line and must make it fail."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import omruntime

PACKAGE = Path(omruntime.__file__).parent
MACHINE = Path(__file__).with_name("test_scheduler_machine.py")
# No shrinking: that it fails is all that counts. Many examples cost nothing, as the first failure
# ends a case; which ones come depends on the modules that are loaded, so a few are not enough.
SETTINGS = settings(
    max_examples=4000,
    stateful_step_count=50,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class MutatingFinder(MetaPathFinder, Loader):
    """Loads one module of the package from changed source, the others as they are."""

    def __init__(self, module: str, line: str, changed: str) -> None:
        self._name = f"omruntime.{module}"
        self._path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
        source = self._path.read_text(encoding="utf-8")
        assert source.count(line) == 1, f"{module}.py has no single line {line!r}; adapt the case"
        self._source = source.replace(line, changed)

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, self._path, "exec"), module.__dict__)


@contextmanager
def mutated_machine(module: str, line: str, changed: str) -> Iterator[type]:
    """The machine over a second copy of the package in which one line is changed."""
    finder = MutatingFinder(module, line, changed)
    originals = {n: m for n, m in sys.modules.items() if n.split(".")[0] == "omruntime"}
    for name in originals:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        spec = importlib.util.spec_from_file_location("mutated_scheduler_machine", MACHINE)
        assert spec is not None
        assert spec.loader is not None
        machine = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(machine)
        yield machine.SchedulerMachine
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.split(".")[0] == "omruntime"]:
            del sys.modules[name]
        sys.modules.update(originals)


MUTATIONS = {
    "nothing changed": ("scheduling.finish", "max_len` is the most", "max_len` is most"),
    "shared tail written without a copy": (
        "blocks.step_blocks",
        "if self._pool.reference_count(tail) == 1:",
        "if True:",
    ),
    "reused block stays in the prefix cache": (
        "blocks.prefix_cache",
        "pool.on_reuse(self._evict)",
        "pool.on_reuse(lambda block_id: None)",
    ),
    "whole prompt matched": (
        "blocks.prefix_cache",
        "(len(sequence.token_ids) - 1) // self._block_size",
        "len(sequence.token_ids) // self._block_size",
    ),
    "hit without comparing tokens": (
        "blocks.prefix_cache",
        "if not same_content(cached, key):",
        "if False:",
    ),
    "own tokens compared, not those before": (
        "blocks.block_key",
        "one, other = one.parent, other.parent",
        "return True",
    ),
    "salt left out": (
        "blocks.block_key",
        "return tuple((tag, value) for tag, value in tagged if value)",
        "return ()",
    ),
    "blocks cached before they are computed": (
        "blocks.prefix_cache",
        "num_blocks = sequence.num_computed_tokens // self._block_size",
        "num_blocks = len(sequence.block_table)",
    ),
    "matched blocks not held": (
        "scheduling.lifecycle",
        "self._pool.retain(reuse.block_ids)",
        "pass",
    ),
    "prefill shared that has ended": (
        "scheduling.lifecycle",
        "        self.shared_prefill.end(sequence)\n        self._pool.release",
        "        self._pool.release",
    ),
    "tenant not let go": (
        "scheduling.lifecycle",
        "self.tenants.leave(sequence)",
        "pass",
    ),
    "deadline of a finished request kept": (
        "scheduling.lifecycle",
        "self._expiry.forget(sequence)",
        "pass",
    ),
    "preempted one runs before its class": (
        "scheduling.entrance",
        "victims.sort(key=lambda victim: victim.rank)",
        "victims.sort(key=lambda victim: victim.rank, reverse=True)",
    ),
    "oldest preempted first": (
        "scheduling.scheduler",
        "victim = max(self._running.values(), key=_rank)",
        "victim = min(self._running.values(), key=_rank)",
    ),
    "next step kept although somebody left": (
        "scheduling.foresight",
        "self._num_changes == self._lifecycle.num_changes",
        "True",
    ),
    "scored row given a block to write to": (
        "blocks.step_blocks",
        "return (row for row in rows if not row.is_computed)",
        "return rows",
    ),
    "answer begun before its prompt is scored": (
        "scheduling.row_choice",
        "is_end and not sequence.num_unscored and",
        "is_end and",
    ),
    "scores told again after a preemption": (
        "scheduling.lifecycle",
        "sequence.num_preemptions += 1",
        "sequence.num_preemptions += 1; sequence.num_scored = 0",
    ),
    "prompt scored before it is computed": (
        "sequence",
        "self.num_computed_tokens >= self.num_prompt_tokens and",
        "self.num_computed_tokens >= self.num_prompt_tokens - 1 and",
    ),
    "released block handed out while held": (
        "blocks.block_pool",
        "if count == 0:",
        "if count <= 1:",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_machine_notices(name: str) -> None:
    module, line, changed = MUTATIONS[name]
    with mutated_machine(module, line, changed) as machine:
        if name == "nothing changed":
            # The way of loading is no reason to fail.
            run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=20))
        else:
            with pytest.raises((AssertionError, LookupError, ArithmeticError)):
                run_state_machine_as_test(machine, settings=SETTINGS)
