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


def test_notes_stand_on_lines_of_their_own() -> None:
    stream = io.StringIO()
    with StageProgress(stream, label="compile ") as progress:
        progress("compiling")
        progress.note("decode.om: done")
        progress.note("prefill.om: done")
        progress("hashing")
    assert re.fullmatch(
        r"\[compile 1\] compiling \.\.\. \n    decode\.om: done\n    prefill\.om: done\n"
        r"    \d+\.\d s\n\[compile 2\] hashing \.\.\. \d+\.\d s\n",
        stream.getvalue(),
    )


def test_a_stage_that_fails_after_a_note_ends_its_line_once() -> None:
    stream = io.StringIO()

    def compile_all() -> None:
        with StageProgress(stream) as progress:
            progress("compiling")
            progress.note("decode.om: running")
            raise ValueError("bad gear")

    with pytest.raises(ValueError, match="bad gear"):
        compile_all()
    assert stream.getvalue() == "[1] compiling ... \n    decode.om: running\n"
