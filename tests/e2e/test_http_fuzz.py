from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz_http import fuzz, leftovers, toy_server


def test_no_request_that_the_document_allows_breaks_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Always the same requests; `make fuzz-http` sends a hundred times as many."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with toy_server(tmp_path) as child:
        tally = fuzz(child, count=100, seed=7)
        assert not tally.failures, "\n".join(tally.failures)
        assert tally.statuses[200] > 15
        assert not leftovers(child)
