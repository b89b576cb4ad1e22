"""Regular files: read whole, but never waited for.

What a server reads again while it serves, in the loop that sends tokens, must not be a pipe that
nobody writes into, nor a device without an end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# A thousand keys take half a MiB, all public certificate authorities a quarter.
MAX_BYTES = 4 << 20

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_regular(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger than `MAX_BYTES`.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
            raise OSError(errno.EINVAL, f"it is {kind}, wanted a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES:,} bytes")
    return content


def _open_at_once(path: str, flags: int) -> int:
    """A pipe that nobody writes into opens with O_NONBLOCK, which is nothing to regular files."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
