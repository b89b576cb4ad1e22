"""Values of the wrong type are refused by name, never truncated or taken apart."""

from __future__ import annotations

import pytest

from omruntime.errors import RequestError
from omruntime.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", 1.5),
        ("max_new_tokens", 2.0),
        ("n", None),
        ("seed", True),
        ("temperature", "0"),
        ("presence_penalty", None),
        ("stop", "abc"),
        ("stop", (b"x",)),
        ("stop_token_ids", "12"),
        ("allowed_token_ids", (1.0,)),
        ("logit_bias", {"5": 1}),
        ("logit_bias", {5: "x"}),
        ("logit_bias", [5]),
        ("ignore_eos", 1),
    ],
)
def test_a_wrong_type_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"{field}.*wanted"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_banning_every_id_is_refused() -> None:
    with pytest.raises(RequestError, match="banned_token_ids"):
        SamplingParams(banned_token_ids=tuple(range(7))).require_vocabulary(7)
