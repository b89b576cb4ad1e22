"""The README's table of HTTP routes is the gateway's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.server.http.serving import serving

README = Path(__file__).parents[3] / "README.md"
METHODS = ("GET", "POST")


def test_the_table_of_routes_is_the_one_of_the_gateway() -> None:
    with serving(lambda _request: []) as gateway:
        document = httpx.get(f"{gateway.url}/openapi.json", timeout=60).json()
    wanted = [
        f"| `{method.upper()} {path}` | {route['description'].splitlines()[0]} |"
        for path, routes in document["paths"].items()
        for method, route in routes.items()
    ]
    lines = README.read_text(encoding="utf-8").splitlines()
    starts = tuple(f"| `{method} /" for method in METHODS)
    assert [line for line in lines if line.startswith(starts)] == wanted


def test_the_document_says_how_routes_refuse() -> None:
    """In the body that they send, and with no status that they never have."""
    with serving(lambda _request: []) as gateway:
        document = httpx.get(f"{gateway.url}/openapi.json", timeout=60).json()
        routes = [
            (method, path, route["responses"])
            for path, of_path in document["paths"].items()
            for method, route in of_path.items()
        ]
        for method, path, responses in routes:
            assert set(responses) in ({"200", "default"}, {"200", "503", "default"}), path
            if method != "post":
                continue
            got = httpx.post(f"{gateway.url}{path}", json={"zz": 1}, timeout=20).json()
            schema = responses["default"]["content"]["application/json"]["schema"]
            kinds = [schema, *schema.get("anyOf", ())]
            shapes = [
                document["components"]["schemas"][k["$ref"].split("/")[-1]]
                for k in kinds
                if "$ref" in k
            ]
            assert set(got) in [set(shape["required"]) for shape in shapes], path


def test_the_document_is_not_made_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long, and all streams would wait for it."""

    def openapi(_app: FastAPI) -> dict[str, object]:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return {"openapi": "3"}

    monkeypatch.setattr(FastAPI, "openapi", openapi)
    with serving(lambda _request: []) as gateway:
        assert httpx.get(f"{gateway.url}/openapi.json", timeout=20).json() == {"openapi": "3"}
