from __future__ import annotations

from demo.answers import Answer, summary
from omruntime.sequence import FinishReason


def test_the_summary_adds_up() -> None:
    answers = [
        Answer("q", 10.0, "text", [10.5, 11.0, 11.5], FinishReason.LENGTH),
        Answer("q", 10.0, "text", [10.25, 12.0], FinishReason.LENGTH),
        Answer("q", 10.0, "text", [11.0], FinishReason.STOP),
    ]
    text = summary(answers)
    assert "[0]            3       500        2.0   length" in text
    assert "[2]            1      1000        0.0   stop" in text
    assert "total tokens          6 in 2.0 s" in text
    assert "aggregate tokens/s    3.0" in text
    assert "median 500, largest 1000" in text
