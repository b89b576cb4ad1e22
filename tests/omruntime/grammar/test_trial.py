"""Trial: what is too much ends another process, in bounded time, and is refused."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from omruntime.constraint import Constraint
from omruntime.errors import RequestError
from omruntime.grammar.trial import Trial, TriedCompiler, open_compiler
from omruntime.grammar.trial_process import MAX_MEMORY_MIB
from omruntime.manifest import MANIFEST_NAME, Manifest
from tests.omruntime.grammar.test_llguidance_compiler import BACKEND, MODEL, schema, walk
from tests.omruntime.toy_model import write_toy_bundle
from tests.server.tiny_tokenizers import write_tokenizer

# A bound against hanging, far above the process's own limits.
LIMIT_S = 60
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_toy_bundle(tmp_path_factory.mktemp("trial") / "bundle")
    write_tokenizer(folder / "tokenizer", BACKEND)
    manifest = replace(Manifest.read(folder), model=MODEL)
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def compiler(bundle: Path) -> Iterator[TriedCompiler]:
    opened = open_compiler(bundle, MODEL)
    yield opened
    opened.close()


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def _monsters() -> Iterator[tuple[str, Constraint]]:
    """As large as the limits allow, each against another part of the compiler."""
    yield "repeats of repeats", Constraint(regex="((a{100}){100}){100}")
    yield "alternatives of repeats", Constraint(regex="|".join(["(ab?){50,100}c"] * 200))
    yield "dots", Constraint(regex="(.*a){30}.*")
    yield "subset explosion", Constraint(regex="(?:a|b)*a(?:a|b){60}")
    yield "unicode classes", Constraint(regex="(?:\\p{L}\\p{N}){1,9000}")
    yield "groups", Constraint(regex="(" * 1500 + "a" + ")" * 1500)
    yield "rules", Constraint(grammar="start: " + "(" * 3000 + '"a"' + ")" * 3000)
    yield "rule repeats", Constraint(grammar='start: (("a" "b"?){1000}){1000}')
    yield "endless rules", Constraint(grammar="start: start start start")
    yield "ambiguous", Constraint(grammar='start: x\nx: x x | "a" | x x x')
    yield "many items", schema({"prefixItems": [{"maxItems": 1000, "items": {}}] * 300})
    nest: object = {"type": "integer"}
    for _ in range(12):
        nest = {"type": "array", "items": nest, "maxItems": 1000}
    yield "nested items", schema(nest)
    product = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(14)]
    yield "products", schema({"type": "object", "allOf": product})
    properties = {f"p{i}": {"type": "string"} for i in range(1500)}
    yield "properties", schema({"type": "object", "properties": properties})
    yield "enum", schema({"enum": [f"value {i} of many" for i in range(2500)]})
    yield "enum of objects", schema({"enum": [{"a": i, "b": [i]} for i in range(2500)]})
    patterns = {f"^k{i}(a|b)*a(a|b){{12}}$": {} for i in range(40)}
    yield "patterns", schema({"type": "object", "patternProperties": patterns})
    yield "multiples", schema({"type": "integer", "multipleOf": 65521, "minimum": 10**12})


@pytest.mark.parametrize(("name", "constraint"), list(_monsters()), ids=lambda v: str(v)[:20])
def test_monsters_are_compiled_or_refused(
    compiler: TriedCompiler, name: str, constraint: Constraint
) -> None:
    """BL-40: compile time is bounded and nothing crashes, whatever is sent."""
    before = psutil.Process().memory_info().rss
    with suppress(RequestError):
        grammar = compiler.compile(constraint)
        walk(grammar, random.Random(name), most=50)
    assert psutil.Process().memory_info().rss - before < 2 * MAX_MEMORY_MIB << 20


def test_what_takes_gigabytes_is_refused_and_the_next_one_is_not(compiler: TriedCompiler) -> None:
    """Compiled here, it would end the server."""
    together = [{"pattern": f"a{{{i}}}.*b"} for i in range(30)]
    with pytest.raises(RequestError, match=r"constraint\.json_schema takes .* make it smaller"):
        compiler.compile(schema({"type": "string", "allOf": together, "maxLength": 60000}))
    assert walk(compiler.compile(Constraint(regex="[ab]{4}")), random.Random(0))


def test_refusals_come_back_in_their_words(compiler: TriedCompiler) -> None:
    with pytest.raises(RequestError, match=r"^constraint\.regex allows no answer$"):
        compiler.compile(Constraint(regex="[^\\s\\S]"))


def test_one_process_serves_many_and_ends_with_the_compiler(bundle: Path) -> None:
    before = set(children())
    compiler = open_compiler(bundle, MODEL)
    compiler.compile(Constraint(choices=("a", "b")))
    compiler.compile(Constraint(json_object=True))
    assert set(children()) == before
    compiler.compile(Constraint(regex="a"))
    (process,) = set(children()) - before
    compiler.compile(Constraint(regex="b+"))
    assert set(children()) - before == {process}
    compiler.rest()
    assert set(children()) == before
    compiler.compile(Constraint(regex="c"))
    compiler.close()
    assert set(children()) == before


def test_a_process_that_was_killed_is_replaced(bundle: Path) -> None:
    trial, before = Trial(bundle), set(children())
    trial.require_passed(Constraint(regex="a"))
    (process,) = set(children()) - before
    process.kill()
    process.wait(LIMIT_S)
    with pytest.raises(RequestError, match="breaks the compiler"):
        trial.require_passed(Constraint(regex="a"))
    trial.require_passed(Constraint(regex="a"))
    trial.close()


def test_the_process_ends_with_its_input(bundle: Path) -> None:
    code = (
        "import os, sys, psutil\n"
        "from pathlib import Path\n"
        "from omruntime.constraint import Constraint\n"
        "from omruntime.grammar.trial import Trial\n"
        "trial = Trial(Path(sys.argv[1]))\n"
        "trial.require_passed(Constraint(regex='a'))\n"
        "print(psutil.Process().children()[0].pid, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bundle)], cwd=ROOT, capture_output=True, check=True
    )
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(LIMIT_S)
