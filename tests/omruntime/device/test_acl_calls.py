"""Every call of acl that the device can make has pyACL's own signature.

Read from the sources: names, number and kinds of arguments, and how many values are unpacked.
mypy holds the calls to `acl_module.py`; this holds `acl_module.py`, and once more the calls, to
the table of pyACL's wrappers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import omruntime.device.ascend as package
from omruntime.device.simacl.signatures import Signature, load_signatures
from omruntime.device.simacl.surface import IMPLEMENTATIONS

FOLDER = Path(package.__file__).parent
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.py"))}
PARTS = {"rt", "mdl", "util", "op", "prof"}
ROOTS = {"acl", "_acl"}
KINDS = {"k": "int", "K": "int", "i": "int", "I": "int", "s": "str", "O": "object"}


@dataclass(frozen=True)
class AclCall:
    """One call; `num_unpacked` is None where the value is used as a whole."""

    name: str
    node: ast.Call
    num_unpacked: int | None


def acl_calls(source: str) -> Iterator[AclCall]:
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    aliases = _aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _acl_name(node.func, aliases)
            if name is not None:
                yield AclCall(name, node, _num_unpacked(parents[node]))


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Local names of a part, such as `mdl = driver.acl.mdl`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            part = node.value.attr
            is_part = part in PARTS and _is_acl(node.value.value)
            if is_part and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = part
    return found


def _acl_name(func: ast.expr, aliases: dict[str, str]) -> str | None:
    if not isinstance(func, ast.Attribute):
        return None
    owner = func.value
    if _is_acl(owner):
        return func.attr
    if isinstance(owner, ast.Name) and owner.id in aliases:
        return f"{aliases[owner.id]}.{func.attr}"
    if isinstance(owner, ast.Attribute) and owner.attr in PARTS and _is_acl(owner.value):
        return f"{owner.attr}.{func.attr}"
    return None


def _is_acl(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
    return name in ROOTS


def _num_unpacked(parent: ast.AST) -> int | None:
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
        return len(parent.targets[0].elts)
    return None


def problem(call: AclCall) -> str:
    """What is wrong with a call; empty when nothing is."""
    signature = load_signatures().get(call.name)
    if signature is None:
        return "pyACL has no such function"
    if call.node.keywords or any(isinstance(a, ast.Starred) for a in call.node.args):
        return "only positional arguments"
    if not signature.num_required <= len(call.node.args) <= len(signature.parameters):
        return f"{len(call.node.args)} arguments, wanted {len(signature.parameters)}"
    for argument, parameter in zip(call.node.args, signature.parameters, strict=False):
        if not _is_of_kind(argument, parameter.format):
            return f"{parameter.name} is {ast.unparse(argument)}, wanted {KINDS[parameter.format]}"
    wanted = len(signature.returns) if len(signature.returns) > 1 else None
    if call.num_unpacked != wanted:
        return f"{call.num_unpacked} values unpacked, wanted {wanted}"
    return ""


def _is_of_kind(argument: ast.expr, letter: str) -> bool:
    """Whether a literal is of the kind; names and calls are mypy's business."""
    if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name):
        return argument.func.id != "str" or letter in "sO"
    if isinstance(argument, ast.Dict | ast.List | ast.Tuple):
        return letter == "O"
    if isinstance(argument, ast.Constant):
        return {"s": str, "O": object}.get(letter, int) is type(argument.value) or letter == "O"
    return True


CALLS = [(file, call) for file, source in SOURCES.items() for call in acl_calls(source)]


def test_the_calls_are_found() -> None:
    names = {call.name for _, call in CALLS}
    assert len(CALLS) > 40
    assert {"init", "rt.malloc", "mdl.execute_async", "mdl.set_input_dynamic_dims"} <= names
    # Whatever looks like a call of acl is one: nothing is called behind the test's back.
    text = "\n".join(SOURCES.values())
    for name in names:
        assert text.count(f"{name.rpartition('.')[2]}(") >= 1


@pytest.mark.parametrize(
    ("file", "call"), CALLS, ids=[f"{f}:{c.node.lineno} {c.name}" for f, c in CALLS]
)
def test_a_call_has_its_signature(file: str, call: AclCall) -> None:
    assert problem(call) == "", f"{file}:{call.node.lineno}: acl.{call.name}"


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("rt.malloc(nbytes, MallocPolicy.HUGE_FIRST)", "rt.malloc(nbytes)", "1 arguments"),
        ("address, code = self._acl.rt.malloc(", "address = self._acl.rt.malloc(", "None values"),
        ("free, total, code = self._acl.rt", "free, total = self._acl.rt", "2 values"),
        ("self._acl.rt.free_host(", "self._acl.rt.free_pinned(", "no such function"),
        ("self._acl.rt.free(buffer.address)", "self._acl.rt.free(dev_ptr=buffer.address)",
         "positional"),
        ("mdl.query_size(str(path))", "mdl.query_size(5)", "wanted str"),
        ("mdl.load_with_config(handle)", "mdl.load_with_config(str(handle))", "wanted int"),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found(right: str, wrong: str, message: str) -> None:
    source = next(source for source in SOURCES.values() if right in source)
    problems = [problem(call) for call in acl_calls(source.replace(right, wrong))]
    assert [p for p in problems if p] != []
    assert any(message in p for p in problems)


def test_no_call_blocks_all_python_threads() -> None:
    """`execute` and `memcpy` hold the GIL until the device is done.

    Source: hicann/runtime python/pyACL (mdl/mdl_wrap.cpp, rt/rt_memory.cpp).
    """
    blocking = {"mdl.execute", "mdl.execute_v2", "rt.memcpy", "rt.memset",
                "rt.synchronize_device_with_timeout"}  # fmt: skip
    assert not blocking & {call.name for _, call in CALLS}


def test_every_call_works_on_310p_and_is_simulated() -> None:
    for _, call in CALLS:
        assert not load_signatures()[call.name].is_unsupported
        assert call.name in IMPLEMENTATIONS


def module_methods() -> Iterator[tuple[str, ast.FunctionDef]]:
    """The methods of `acl_module.py` by pyACL's names."""
    prefixes = {"AclRuntime": "rt.", "AclModels": "mdl.", "AclModule": ""}
    for node in ast.walk(ast.parse(SOURCES["acl_module.py"])):
        if isinstance(node, ast.ClassDef) and node.name in prefixes:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.decorator_list:
                    yield prefixes[node.name] + method.name, method


METHODS = list(module_methods())


def typed_problem(method: ast.FunctionDef, signature: Signature) -> str:
    arguments = [*method.args.posonlyargs, *method.args.args][1:]
    if not signature.num_required <= len(arguments) <= len(signature.parameters):
        return "number of arguments"
    for argument, parameter in zip(arguments, signature.parameters, strict=False):
        assert argument.annotation is not None
        kind = ast.unparse(argument.annotation)
        if parameter.format != "O" and kind != KINDS[parameter.format]:
            return f"{parameter.name} is {kind}"
    assert method.returns is not None
    if isinstance(method.returns, ast.Subscript):
        assert isinstance(method.returns.slice, ast.Tuple)
        got = [ast.unparse(kind) for kind in method.returns.slice.elts]
    else:
        got = [ast.unparse(method.returns).removesuffix(" | None")]
    wanted = [KINDS[letter] for _, letter in signature.returns]
    if len(got) != len(wanted):
        return f"{len(got)} values"
    pairs = zip(got, wanted, strict=True)
    return next((f"returns {g}" for g, w in pairs if w not in ("object", g)), "")


@pytest.mark.parametrize(("name", "method"), METHODS, ids=[name for name, _ in METHODS])
def test_the_typed_module_has_pyacls_signatures(name: str, method: ast.FunctionDef) -> None:
    assert typed_problem(method, load_signatures()[name]) == ""


def test_the_typed_module_has_what_is_called_and_no_more() -> None:
    assert {name for name, _ in METHODS} == {call.name for _, call in CALLS}
