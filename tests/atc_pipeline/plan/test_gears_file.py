"""The file that hands buckets from a plan to a build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_pipeline.plan.gears_file import PlannedGears, read_gears
from omruntime.buckets import Bucket, Phase
from omruntime.errors import ConfigError

BUCKET = {"phase": "decode", "batch": 4, "tokens": 1, "past_blocks": 2}
GOOD = {"block_size": 128, "num_blocks": 9, "buckets": [BUCKET]}


@st.composite
def planned(draw: st.DrawFn) -> PlannedGears:
    sizes = st.integers(1, 1 << 20)
    decode = st.builds(lambda b, m: Bucket(Phase.DECODE, b, 1, m), sizes, sizes)
    prefill = st.builds(lambda q, m: Bucket(Phase.PREFILL, 1, q, m), sizes, sizes)
    buckets = draw(st.lists(decode | prefill, min_size=1, max_size=6))
    num_blocks = draw(st.none() | st.integers(2, 1 << 20))
    return PlannedGears(tuple(buckets), num_blocks, draw(sizes))


@given(planned())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, gears: PlannedGears
) -> None:
    path = tmp_path_factory.getbasetemp() / "gears.json"
    path.write_text(gears.to_json())
    assert read_gears(path) == gears


def test_the_format(tmp_path: Path) -> None:
    path = tmp_path / "gears.json"
    path.write_text(json.dumps(GOOD))
    assert read_gears(path).buckets == (Bucket(Phase.DECODE, 4, 1, 2),)
    assert json.loads(read_gears(path).to_json()) == GOOD
    path.write_text(json.dumps({"block_size": 128, "buckets": [BUCKET]}))
    assert read_gears(path).num_blocks is None


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ([], "is list, wanted an object"),
        ({"buckets": [BUCKET]}, "missing: block_size"),
        (GOOD | {"gears": 1}, "unknown: gears"),
        (GOOD | {"buckets": []}, "at least one"),
        (GOOD | {"buckets": {}}, "wanted a list"),
        (GOOD | {"num_blocks": 1}, "num_blocks is 1, wanted .* at least 2"),
        (GOOD | {"block_size": "128"}, "block_size is '128'"),
        (GOOD | {"block_size": True}, "block_size is True"),
        (GOOD | {"buckets": [7]}, r"buckets\[0\] is int"),
        (GOOD | {"buckets": [BUCKET, BUCKET | {"phase": "both"}]}, r"buckets\[1\].phase is 'both'"),
        (GOOD | {"buckets": [BUCKET | {"batch": 0}]}, r"buckets\[0\]: batch is 0"),
        (GOOD | {"buckets": [BUCKET | {"batch": 1.5}]}, r"buckets\[0\].batch is 1.5"),
        (GOOD | {"buckets": [BUCKET | {"tokens": 2}]}, "wanted 1 in the decode phase"),
        (GOOD | {"buckets": [BUCKET | {"rows": 2}]}, "unknown: rows"),
    ],
)
def test_malformed_files(tmp_path: Path, plain: object, words: str) -> None:
    path = tmp_path / "gears.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(ConfigError, match=words):
        read_gears(path)


def test_files_that_are_no_json_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "gears.json"
    for content in (b"", b"{", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="export-om plan --output"):
            read_gears(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_gears(tmp_path / "absent.json")
