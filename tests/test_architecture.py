"""The import rules and size limits of the tree, read from the sources.

Packages: `omruntime` imports none of the others; `server` imports `omruntime`; `export` and
`atc_pipeline` take only contracts from it; nothing imports `server`. Inside `omruntime` a module
imports only what stands below it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("atc_pipeline", "export", "omruntime", "server")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

CONTRACTS = {"omruntime.errors", "omruntime.manifest", "omruntime.buckets", "omruntime.om_file"}
# What a package may import of the others; a trailing dot means everything below.
ALLOWED = {
    "omruntime": set(),
    "server": {"omruntime."},
    # A bundle for OpenVINO is proven on the very model that serves it; and a build warns of buckets
    # that no step would take.
    "export": CONTRACTS
    | {"omruntime.device.openvino_model", "omruntime.element_type", "omruntime.scheduling.reach"},
    "atc_pipeline": CONTRACTS
    | {"omruntime.bundle_files", "omruntime.command_parser", "omruntime.doctor."},
}
# The exceptions: modules of these packages, and inside of functions alone.
ALLOWED_IN_FUNCTIONS = {
    "atc_pipeline.commands.": {"export."},
    "atc_pipeline.simatc.cli": {"export.npu_functions"},
}

# Packages of omruntime whose modules have ranks of their own; every other package has one rank.
RANKED_INSIDE = {"blocks", "costs", "sampling", "scheduling"}
# From the bottom up: a module imports only modules of lower rows, so neighbours do not know
# each other. `device` stands for the package.
RANKS = (
    {"errors", "block_key", "retry_pace", "profiler", "doctor", "element_type"}
    | {"command_parser"},
    {"om_file", "native", "traffic"},
    {"buckets", "settings", "field_types", "owner_process", "row_workspace"},
    {"manifest", "cost_table", "turn", "constraint"},
    {"token_matcher"},
    {"sampling_params", "grammar", "bundle_files", "limits", "cost_file", "switching", "warm_up"}
    | {"bucket_use"},
    {"device", "block_pool", "sequence", "seeds", "draw", "pinned", "reach"},
    {"step", "logits", "kv_layout", "prefix_cache", "finish", "waiting_queue", "tenants"}
    | {"expiry", "output_lengths", "shared_prefill", "row_threads"},
    {"numpy_rows", "native_rows", "ageing"},
    {"outputs", "sampler", "inputs", "row_choice", "step_blocks", "invariants"}
    | {"kv_cache", "memory_budget", "engine_state"},
    {"admission", "phase_policy", "input_arena", "row_results"},
    {"lifecycle"},
    {"entrance", "foresight"},
    {"scheduler", "executor", "token_stream"},
    {"step_deltas"},
    {"engine"},
    {"async_engine", "llm", "simulate", "worker"},
)

# A heavy library and the modules that may import it; a trailing dot means everything below.
OWNERS = {
    "acl": {"omruntime.device.", "atc_pipeline.commands.doctor"},
    "onnxruntime": {"omruntime.device.cpu", "omruntime.device.simacl.", "export."},
    "llguidance": {"omruntime.grammar.llguidance_compiler"},
    "openvino": {"omruntime.device.openvino", "omruntime.device.openvino_model", "export."},
    "torch": {"export."},
    "transformers": {"export."},
    "onnx": {"export.", "atc_pipeline.lint.", "atc_pipeline.probe.", "atc_pipeline.simatc."},
    "matplotlib": {"atc_pipeline.plan."},
    "onnxscript": {"export."},
    "onnx_ir": {"export."},
    "safetensors": {"export."},
    "gguf": {"export."},
    "tokenizers": {"server.tokenizer", "export."},
    "jinja2": {"server.", "export."},
    "fastapi": {"server.http."},
    "starlette": {"server.http."},
    "pydantic": {"server.http."},
    "uvicorn": {"server.http."},
    "prometheus_client": {"server.http."},
    "opentelemetry": {"server.traces"},
    "grpc": {"server."},
    "grpc_health": {"server."},
    "grpc_reflection": {"server."},
    "google": {"server."},
}
# Where an import may stand inside of a function, each for the reason its module states.
LATE_IMPORTS = {
    "omruntime.device",
    "omruntime.grammar.llguidance_compiler",
    "atc_pipeline.commands.",
    "atc_pipeline.entry",
    "atc_pipeline.simatc.cli",
    "export.kept_program",
    "server.cli",
    "server.terminal.bench.targets.opening",
    "server.terminal.cli",
}
# What a person reads on a terminal is printed; all else is logged.
PRINTING = {
    "atc_pipeline.commands.",
    "atc_pipeline.entry",
    "atc_pipeline.simatc.cli",
    "omruntime.simulate.__main__",
    "server.cli",
    "server.terminal.bench.command",
    "server.terminal.cli",
    "server.terminal.control",
    "server.terminal.top",
    "server.security.keys_command",
    "server.terminal.chat_session",
}


@dataclass(frozen=True)
class Import:
    """One import statement's target, such as `omruntime.device.base`."""

    target: str
    line: int
    in_function: bool
    for_types_only: bool

    def matches(self, patterns: set[str]) -> bool:
        return any(
            self.target.startswith(p) or self.target == p[:-1]
            if p.endswith(".")
            else self.target == p or self.target.startswith(p + ".")
            for p in patterns
        )


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def where(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


def load_modules() -> list[Module]:
    modules = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "pb" in path.relative_to(ROOT).parts:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules.append(Module(name, path, ast.parse(path.read_text(encoding="utf-8"))))
    return modules


MODULES = load_modules()
NAMES = {module.name for module in MODULES}


def imports_of(module: Module) -> Iterator[Import]:
    yield from _imports_below(module, module.tree, in_function=False, for_types_only=False)


def _imports_below(
    module: Module, node: ast.AST, in_function: bool, for_types_only: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, in_function, for_types_only)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module.where(child.lineno)}: relative import"
            for target in _targets(child):
                yield Import(target, child.lineno, in_function, for_types_only)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            is_guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _imports_below(
                module, child, in_function or is_function, for_types_only or is_guard
            )


def _targets(statement: ast.ImportFrom) -> list[str]:
    """`from package import module` names the module, `from module import thing` the module."""
    assert statement.module is not None
    full = [f"{statement.module}.{alias.name}" for alias in statement.names]
    return [name if name in NAMES else statement.module for name in full]


def is_ours(found: Import) -> bool:
    return found.target.partition(".")[0] in PACKAGES


def is_in(name: str, patterns: Iterable[str]) -> bool:
    return Import(name, 0, False, False).matches(set(patterns))


def extra_in_functions(name: str) -> set[str]:
    return {t for p, targets in ALLOWED_IN_FUNCTIONS.items() if is_in(name, [p]) for t in targets}


def test_packages_import_only_what_they_may() -> None:
    for module in MODULES:
        for found in imports_of(module):
            if not is_ours(found) or found.target.partition(".")[0] == module.package:
                continue
            allowed = set(ALLOWED[module.package])
            if found.in_function:
                allowed |= extra_in_functions(module.name)
            assert found.matches(allowed), f"{module.where(found.line)} imports {found.target}"


def unit_of(name: str) -> str:
    """The module or package of omruntime that RANKS lists, by its last name."""
    parts = name.split(".")
    return parts[2] if parts[1] in RANKED_INSIDE and len(parts) > 2 else parts[1]


def rank_of(name: str) -> int:
    """The row of a module of omruntime."""
    for rank, row in enumerate(RANKS):
        if unit_of(name) in row:
            return rank
    raise AssertionError(f"{name} has no rank yet: add it to RANKS")


def test_modules_of_omruntime_import_only_downwards() -> None:
    for module in [m for m in MODULES if m.name.startswith("omruntime.")]:
        for found in imports_of(module):
            is_foreign = not found.target.startswith("omruntime.")
            if is_foreign or unit_of(found.target) == unit_of(module.name):
                continue
            assert rank_of(found.target) < rank_of(module.name), (
                f"{module.where(found.line)} imports {found.target}, which is not below it"
            )


def test_heavy_libraries_have_one_owner() -> None:
    for module in MODULES:
        for found in imports_of(module):
            owners = OWNERS.get(found.target.partition(".")[0])
            assert owners is None or is_in(module.name, owners), (
                f"{module.where(found.line)} imports {found.target}, which belongs to {owners}"
            )


def test_imports_stand_at_the_top() -> None:
    for module in MODULES:
        for found in imports_of(module):
            assert not found.in_function or is_in(module.name, LATE_IMPORTS), (
                f"{module.where(found.line)} imports {found.target} inside of a function"
            )


def test_modules_begin_with_a_docstring() -> None:
    for module in MODULES:
        assert not module.tree.body or ast.get_docstring(module.tree), module.path


def test_files_and_functions_stay_small() -> None:
    for module in MODULES:
        num_lines = len(module.path.read_text(encoding="utf-8").splitlines())
        assert num_lines <= MAX_FILE_LINES, f"{module.path} has {num_lines} lines"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                assert length <= MAX_FUNCTION_LINES, (
                    f"{module.where(node.lineno)}: {node.name} has {length} lines"
                )


def test_only_command_lines_print() -> None:
    for module in MODULES:
        if is_in(module.name, PRINTING):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{module.where(node.lineno)} prints"


def test_no_package_folder_shadows_another() -> None:
    """A `proto/__init__.py` would shadow proto-plus."""
    assert not list((ROOT / "proto").rglob("__init__.py"))
    assert not (ROOT / "proto" / "omruntime").exists()


@pytest.mark.parametrize("name", ["server.cli", "server.terminal.cli"])
def test_serving_needs_no_export_library(name: str) -> None:
    """`om-serve` and `om-client` import where torch, transformers and onnx are absent."""
    code = (
        "import importlib, sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'torch', 'transformers', 'onnx', 'onnxscript'}:\n"
        "            raise ModuleNotFoundError(f'{name} is absent here', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import pkgutil, omruntime, server\n"
        "for package in (omruntime, server):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
        "importlib.import_module(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", code, name], cwd=ROOT, check=True, timeout=120)


def test_replay_needs_no_torch() -> None:
    """`export-om verify` runs where a bundle arrives without the export libraries."""
    code = (
        "import sys, export.replay, atc_pipeline.cli\n"
        "heavy = {'torch', 'transformers', 'onnx', 'onnxscript'} & sys.modules.keys()\n"
        "sys.exit(', '.join(heavy) or 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
