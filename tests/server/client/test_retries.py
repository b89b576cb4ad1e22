"""A refused client comes back when it was told, and less often when it was told wrongly."""

from __future__ import annotations

import time

import pytest

from omruntime.errors import CallError
from server.client.retries import MOST_PAUSE_S, Retries, retried


@pytest.mark.parametrize(
    ("asked_s", "wanted"),
    [(0.15, [0.15, 0.2, 0.4, 0.8, MOST_PAUSE_S]), (3.0, [3.0] * 5)],
    ids=["a queue that stands still", "a queue that knows"],
)
def test_pauses_grow_and_are_never_shorter_than_asked(
    asked_s: float, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    def refused(_left_s: float | None) -> None:
        raise CallError("RESOURCE_EXHAUSTED", "the queue is full", retry_after_s=asked_s)

    with pytest.raises(CallError):
        retried(Retries(max_retries=5), None, refused)
    assert pauses == wanted
