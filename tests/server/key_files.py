"""Files of API keys for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server.security.key_file import KeyEntry, caller_from, hash_key, read_key_file, write_key_file


def add_key(path: Path, key: str, name: str, **fields: Any) -> None:
    """Put a key of a test's choice into a file."""
    entries = read_key_file(path) if path.exists() else ()
    entry = KeyEntry(hash_key(key), caller_from("test", {"name": name, **fields}))
    write_key_file(path, [*entries, entry])
