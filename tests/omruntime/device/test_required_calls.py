"""No wait, no switch and no free of the device can be left out: each is taken away in turn.

The changed sources run a short life over the simulator, which must notice.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

import omruntime.device.ascend as package
from tests.omruntime.device.simacl.test_model_calls import external_om
from tests.omruntime.device.simulated_oms import LARGE_GEAR, SMALL_GEAR, write_twice

FOLDER = Path(package.__file__).parent
SCENARIO = Path(__file__).with_name("short_life.py")
# Of acl itself, and of the device's own steps that lead to them.
NAMES = {
    "set_context", "synchronize_stream", "synchronize_stream_with_timeout", "free", "free_host",
    "destroy_stream", "destroy_context", "destroy_config_handle", "destroy_config", "destroy_desc",
    "destroy_data_buffer", "destroy_dataset", "unload", "unload_model", "reset_device", "finalize",
    "enter", "synchronize", "unpin", "close",
}  # fmt: skip


def required_calls(tree: ast.AST) -> list[ast.Call]:
    """In the order of the source."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", None)) in NAMES
    ]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


class _Without(ast.NodeTransformer):
    """Puts 0, the code of success, in the place of one call."""

    def __init__(self, call: ast.Call) -> None:
        self._call = call

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return ast.Constant(0) if node is self._call else self.generic_visit(node)


class MutatingFinder(MetaPathFinder, Loader):
    """Loads one module of the device from changed source."""

    def __init__(self, file: str, index: int | None) -> None:
        self._name = f"{package.__name__}.{file.removesuffix('.py')}"
        self._path = FOLDER / file
        tree = ast.parse(self._path.read_text(encoding="utf-8"))
        if index is not None:
            tree = _Without(required_calls(tree)[index]).visit(tree)
        self._code = compile(ast.fix_missing_locations(tree), str(self._path), "exec")

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


@contextmanager
def mutated_life(file: str, index: int | None) -> Iterator[Callable[[Path], None]]:
    """The scenario over a second copy of the device in which one call is missing."""
    finder = MutatingFinder(file, index)
    originals = {n: m for n, m in sys.modules.items() if n.startswith(package.__name__)}
    for name in originals:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        spec = importlib.util.spec_from_file_location("mutated_short_life", SCENARIO)
        assert spec is not None
        assert spec.loader is not None
        scenario = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(scenario)
        yield scenario.live
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.startswith(package.__name__)]:
            del sys.modules[name]
        sys.modules.update(originals)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    write_twice(folder / "twice.om", (SMALL_GEAR, LARGE_GEAR))
    outside = folder / "outside"
    outside.mkdir()
    external_om(outside)
    return folder


def find_cases() -> Iterator[tuple[str, int, str]]:
    for path in sorted(FOLDER.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        for i, call in enumerate(required_calls(ast.parse(source))):
            yield path.name, i, f"{path.name}:{call.lineno} {ast.unparse(call.func)}"


CASES = list(find_cases())


def test_the_life_is_a_good_one(programs: Path) -> None:
    with mutated_life("device.py", None) as live:
        live(programs)


@pytest.mark.parametrize(
    ("file", "index"), [case[:2] for case in CASES], ids=[case[2] for case in CASES]
)
def test_a_missing_call_is_noticed(file: str, index: int, programs: Path) -> None:
    with mutated_life(file, index) as live, pytest.raises(BaseException) as noticed:  # noqa: PT011
        live(programs)
    assert not isinstance(noticed.value, KeyboardInterrupt | SystemExit | pytest.fail.Exception)
