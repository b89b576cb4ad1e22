from __future__ import annotations

import io
import re

import pytest

from atc_pipeline.progress import StageProgress


def test_each_stage_is_a_numbered_line_with_its_time() -> None:
    stream = io.StringIO()
    with StageProgress(stream) as progress:
        progress("reading")
        progress("tracing")
    assert re.fullmatch(
        r"\[1\] reading \.\.\. \d+\.\d s\n\[2\] tracing \.\.\. \d+\.\d s\n", stream.getvalue()
    )


def test_a_stage_that_fails_has_no_time() -> None:
    stream = io.StringIO()

    def trace() -> None:
        with StageProgress(stream) as progress:
            progress("tracing")
            raise ValueError("bad shape")

    with pytest.raises(ValueError, match="bad shape"):
        trace()
    assert stream.getvalue() == "[1] tracing ... \n"


def test_no_stage_no_output() -> None:
    stream = io.StringIO()
    with StageProgress(stream):
        pass
    assert stream.getvalue() == ""
