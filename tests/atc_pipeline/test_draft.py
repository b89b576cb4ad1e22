"""A draft that cannot be read is named by its own file, not by that of a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from atc_pipeline.draft import read_draft
from omruntime.errors import BundleError


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not JSON"), ("[]", "got list"), ("{}", "format_version is None")],
)
def test_a_broken_draft_is_refused_by_its_name(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "draft.json").write_text(text)
    with pytest.raises(BundleError, match=words) as caught:
        read_draft(tmp_path)
    assert str(tmp_path / "draft.json") in str(caught.value)
    assert "bundle.json" not in str(caught.value)
