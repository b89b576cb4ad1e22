"""What of an error strangers may read: its text without the paths of this machine.

The log keeps the whole text.
"""

from __future__ import annotations

import re

from omruntime.errors import OmError, RequestError

# Two folders or more: `/v1` is a route, `a/b` a ratio. In quotes a path may hold spaces.
_PATH = re.compile(
    r"(?:file://)?(?:(?<=')/[^'\n]*/[^'\n]*(?=')|(?<=\")/[^\"\n]*/[^\"\n]*(?=\")"
    r"|(?<![\w./\\])~?(?:/[^\s/'\"`,;:()<>]+){2,}/?|(?<=file://)/\S+)"
)
_HIDDEN = "[path]"


def without_paths(text: str) -> str:
    """The text with every absolute path replaced."""
    return _PATH.sub(_HIDDEN, text)


def public_text(error: OmError) -> str:
    """An error's text as its caller may read it.

    What is wrong with a request speaks of the request alone, and is left as the caller sent it;
    anything else may quote a library that names its files.
    """
    return str(error) if isinstance(error, RequestError) else without_paths(str(error))
