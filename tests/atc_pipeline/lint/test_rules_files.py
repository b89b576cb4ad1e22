"""External data: keys, paths, sizes; and a file that is too large to parse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from atc_pipeline.lint.check import lint_model
from atc_pipeline.lint.rules_files import MAX_FILE_BYTES
from tests.atc_pipeline.lint.graphs import (
    BOOL,
    FLOAT16,
    constant,
    found,
    ints,
    lint,
    model,
    node,
    value,
)

GOOD = {"location": "step.weights", "offset": "64", "length": "128"}


def external(entries: Mapping[str, str]) -> TensorProto:
    """A float16 tensor of 64 elements that lies elsewhere."""
    tensor = TensorProto(name="w", data_type=FLOAT16, dims=[64])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def lint_external(tmp_path: Path, entries: Mapping[str, str]) -> set[tuple[str, str]]:
    (tmp_path / "step.weights").write_bytes(bytes(192))
    planted = node("Add", ["rows", "w"], ["y"])
    return found(lint(tmp_path, model([planted], weights=[external(entries)])))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"checksum": "abc"}, "external-data-key"),
        ({"location": "../step.weights"}, "external-data-path"),
        ({"location": "/etc/hostname"}, "external-data-path"),
        ({"location": "a\\b"}, "external-data-path"),
        ({"location": ""}, "external-data-path"),
        ({"location": "other.weights"}, "external-data-missing"),
        ({"offset": "65"}, "external-data-short"),
        ({"length": "127"}, "external-data-short"),
        ({"length": "100000000000000000000"}, "external-data-short"),
        ({"offset": "-1"}, "external-data-short"),
        ({"offset": "many"}, "external-data-short"),
    ],
)
def test_external_data(tmp_path: Path, changes: Mapping[str, str], rule: str | None) -> None:
    wanted = set() if rule is None else {(rule, "w")}
    assert lint_external(tmp_path, GOOD | changes) == wanted


def test_a_link_out_of_the_folder_is_an_escape(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "model"
    outside.write_bytes(bytes(192))
    folder.mkdir()
    (folder / "linked").symlink_to(outside)
    planted = node("Add", ["rows", "w"], ["y"])
    graph = model([planted], weights=[external(GOOD | {"location": "linked"})])
    assert found(lint(folder, graph)) == {("external-data-path", "w")}


def test_external_data_inside_of_a_branch(tmp_path: Path) -> None:
    (tmp_path / "step.weights").write_bytes(bytes(192))
    body = helper.make_graph(
        [node("Add", ["rows", "w"], ["inner"])],
        "body",
        [],
        [value("inner", FLOAT16, "batch", "tokens", 64)],
        [external(GOOD)],
    )
    other = helper.make_graph(
        [node("Neg", ["rows"], ["negated"])],
        "other",
        [],
        [value("negated", FLOAT16, "batch", "tokens", 64)],
    )
    branch = node("If", ["flag"], ["y"], then_branch=body, else_branch=other)
    flag = constant("flag", ints(1).astype(bool).reshape(()))
    assert flag.data_type == BOOL
    report = lint(tmp_path, model([branch], weights=[flag]))
    assert found(report) == {("external-data-in-branch", "w")}


@settings(max_examples=60)
@given(offset=st.integers(0, 300), length=st.integers(0, 300))
def test_a_tensor_is_whole_exactly_when_it_lies_in_its_file(
    tmp_path_factory: pytest.TempPathFactory, offset: int, length: int
) -> None:
    folder = tmp_path_factory.mktemp("model")
    entries = GOOD | {"offset": str(offset), "length": str(length)}
    whole = length >= 128 and offset + length <= 192
    assert lint_external(folder, entries) == (set() if whole else {("external-data-short", "w")})


def test_a_file_beyond_protobufs_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    report = lint_model(path, "Ascend310P3")
    assert found(report) == {("file-too-large", "huge.onnx")}
    assert "E13015" in report.errors[0].reason
