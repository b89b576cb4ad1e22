"""Grafana's dashboard asks for metrics that a running server exports, with the labels it uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from omruntime.outputs import TokenDelta
from omruntime.sequence import FinishReason, Request
from tests.server.http.serving import TOKENIZER, serving
from tests.server.scripted_engine import one_by_one

ROOT = Path(__file__).parents[3]
BOARD = json.loads((ROOT / "docs/grafana/omserve.json").read_text(encoding="utf-8"))
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
# Added by whoever scrapes; `le` is in every histogram.
SCRAPED = {"instance", "le"}


def says_abc(_request: Request) -> list[TokenDelta]:
    return one_by_one([*TOKENIZER.encode_text("abc"), 2], FinishReason.STOP)


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of each metric, after one answer and one refusal."""
    with serving(says_abc) as server:
        for prompt in ("xy", "x" * 600):
            httpx.post(f"{server.url}/v1/completions", json={"prompt": prompt}, timeout=20)
        text = httpx.get(f"{server.url}/metrics").text
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def queries() -> Iterator[tuple[str, str]]:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def test_every_metric_that_a_panel_asks_for_is_exported(exported: dict[str, set[str]]) -> None:
    asked = {name for _, query in queries() for name in re.findall(r"omserve_\w+", query)}
    assert len(asked) > 20
    assert asked <= exported.keys()


def test_every_label_that_a_panel_groups_by_is_there(exported: dict[str, set[str]]) -> None:
    for title, query in queries():
        for group, inner in re.findall(r"by \(([^)]*)\) \(([^)]*)\)", query):
            (name,) = set(re.findall(r"omserve_\w+", inner))
            assert set(re.split(r",\s*", group)) - SCRAPED <= exported[name], title


def test_every_metric_is_on_the_page_and_on_a_panel(exported: dict[str, set[str]]) -> None:
    """What nobody explains or shows nobody needs."""
    bare = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported}
    told = {f"omserve_{name}" for name in re.findall(r"`(\w+)(?:\{[^}]*\})?`", OPERATIONS)}
    assert bare <= told
    shown = "\n".join(query for _, query in queries())
    assert {name for name in bare if name not in shown} == set()


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                assert x < 24
                taken[x, y] = panel["title"]
