"""ApiKeys: who calls, by the key in the `authorization` header.

Both ports ask here. The file's form is `key_file.py`'s.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path

from omruntime.errors import UnauthenticatedError
from server.security.callers import Caller
from server.security.key_file import hash_key, read_key_file
from server.security.reloaded import Reloaded

HEADER = "authorization"
_HOW = "send the header `authorization: Bearer KEY`"


class ApiKeys:
    """The keys of a file, read again when it changes; any thread may ask."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: It is missing or damaged.
        """
        self._file = Reloaded("the API keys", [path], lambda: read_key_file(path))

    def __len__(self) -> int:
        return len(self._file.current())

    def authenticate(self, values: Sequence[str]) -> Caller:
        """Who sends a request with these `authorization` headers.

        No message holds anything of the headers. The time depends on the number of keys alone.

        Raises:
            UnauthenticatedError: There is none, more than one, or no known key in it.
        """
        if len(values) != 1:
            found = "no API key" if not values else f"{len(values)} authorization headers"
            raise UnauthenticatedError(f"got {found}, wanted one; {_HOW}")
        scheme, _, key = values[0].strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise UnauthenticatedError(f"the authorization header holds no bearer key; {_HOW}")
        given = hash_key(key.strip())
        caller = None
        for entry in self._file.current():
            if hmac.compare_digest(entry.sha256, given):
                caller = entry.caller
        if caller is None:
            raise UnauthenticatedError(
                "the API key is not one of this server's; ask its operator for one"
            )
        return caller
