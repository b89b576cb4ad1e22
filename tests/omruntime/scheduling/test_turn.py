"""Wishes are checked one by one, and the message names the wrong one."""

from __future__ import annotations

import pytest

from omruntime.errors import RequestError
from omruntime.scheduling.turn import Scheduling, Urgency


def test_defaults_wish_for_nothing() -> None:
    assert Scheduling().urgency is Urgency.NORMAL
    assert not Scheduling().is_timed
    assert Scheduling(deadline=-5.0).is_timed
    assert Scheduling(queue_timeout_s=1).is_timed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("urgency", 3),
        ("urgency", -1),
        ("tenant_weight", 0.0),
        ("tenant_weight", float("inf")),
        ("tenant_weight", 1e-300),
        ("tenant_weight", 1e7),
        ("queue_timeout_s", 0),
        ("queue_timeout_s", "1"),
        ("queue_timeout_s", True),
        ("deadline", float("nan")),
        ("ttft_target_s", -1.0),
        ("itl_target_s", float("nan")),
    ],
)
def test_wrong_value_is_named(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field):
        Scheduling(**{field: value})  # type: ignore[arg-type]
