"""Long lists in request bodies: read once, and refused at the first wrong item."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from server.http.responses_schema import ResponsesBody
from server.http.schema import ChatBody, CompletionBody
from server.http.tokenize import DetokenizeBody

TURN = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("model", "body", "num_errors"),
    [
        (CompletionBody, {"prompt": [1] * 50 + ["x"] * 50}, 1),
        (CompletionBody, {"prompt": ["x"] * 50 + [1] * 50}, 1),
        (CompletionBody, {"prompt": [[1], *[["x"] * 50] * 50]}, 1),
        (CompletionBody, {"prompt": [{}] * 50}, 1),
        (CompletionBody, {"prompt": 7}, 1),
        (DetokenizeBody, {"tokens": ["x"] * 50}, 1),
        (ChatBody, {"messages": [{}] * 50}, 2),
        (ChatBody, {"messages": [TURN] * 10_001}, 1),
        (ChatBody, {"messages": [TURN], "stop_token_ids": ["x"] * 50}, 1),
        # Of each kind of a union one.
        (ChatBody, {"messages": [TURN], "stop": [1] * 50}, 2),
        (ResponsesBody, {"input": [TURN] * 10_001}, 2),
    ],
)
def test_the_first_wrong_item_refuses_a_list(
    model: type[BaseModel], body: dict[str, Any], num_errors: int
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    assert refused.value.error_count() <= num_errors


@pytest.mark.parametrize("prompt", ["x", ["x", "y"], [1, 2], [[1], [2, 3]], []])
def test_kinds_of_prompts(prompt: object) -> None:
    assert CompletionBody.model_validate({"prompt": prompt}).prompt == prompt
