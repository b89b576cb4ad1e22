"""Field names: what refuses a request, in the names that the clients of its front end send.

The engine and the text layer speak of our own fields, as gRPC has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from omruntime.errors import RequestError

Names = Mapping[str, str]
"""Our name of a field -> theirs; behind a dot stands a place inside of it."""

# In vLLM's words, which other front ends have taken over.
SAMPLING_NAMES: Names = {
    "min_new_tokens": "min_tokens",
    "include_stop": "include_stop_str_in_output",
}


@contextmanager
def named_as(names: Names) -> Iterator[None]:
    """Raise a `RequestError` of the block in these names."""
    try:
        yield
    except RequestError as error:
        raise renamed(error, names) from error


def renamed(error: RequestError, names: Names) -> RequestError:
    """The same error in other names; a copy, as requests may share one.

    A message names the field to blame first. Further ones are known by their underscore or dot:
    others could be plain words.
    """
    text = str(error)
    for ours, theirs in names.items():
        if "_" in ours or "." in ours:
            text = re.sub(rf"\b{re.escape(ours)}\b", theirs, text)
    blamed = names.get(error.param or "")
    if blamed is not None and error.param != "prompt":
        text = re.sub(rf"^{error.param}\b", blamed, text)
    copy = type(error).__new__(type(error), text)
    copy.__dict__.update(vars(error))
    if blamed is not None:
        copy.param = blamed.partition(".")[0]
    return copy
