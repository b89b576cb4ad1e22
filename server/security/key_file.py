"""The file of API keys: names, hashes, tenants and limits; never a key itself.

Owns its form, for the server that reads it and the command that writes it.

A hash is plain SHA-256. That is enough since `make_key` draws 256 random bits: nobody can try
them out, with or without salt, and checking costs a microsecond. A slow hash with a salt is for
secrets that people choose, which therefore do not belong here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omruntime.errors import ConfigError
from omruntime.scheduling.turn import MAX_TENANT_WEIGHT, MIN_TENANT_WEIGHT
from server.security.callers import Caller
from server.security.regular_file import read_regular

# Every request is compared with every key, so that its time tells nothing: 0.3 ms at most.
MAX_KEYS = 1000
# So that a scanner for leaked secrets can find keys.
KEY_PREFIX = "omserve-"

_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")
# Counts are floats where they meet a rate, and those are exact up to here.
MAX_LIMIT = 2**53
_LIMITS = ("max_concurrent_requests", "requests_per_minute", "tokens_per_minute")
_FIELDS = ("name", "sha256", "tenant", "tenant_weight", *_LIMITS, "operator")


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key: its hash, and whose it is."""

    sha256: bytes
    caller: Caller


def make_key() -> str:
    """A new key of 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> bytes:
    """What the file holds of a key."""
    return hashlib.sha256(key.encode()).digest()


def read_key_file(path: Path) -> tuple[KeyEntry, ...]:
    """All keys of a file; it may hold none.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong.
    """
    try:
        data = json.loads(read_regular(path))
    except OSError as error:
        raise ConfigError(
            f"api_keys: cannot read {path}: {error.strerror or error}; `om-serve keys add NAME` "
            f"makes such a file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"api_keys: {path} is not JSON: {error}") from error
    if not isinstance(data, dict) or list(data) != ["keys"] or not isinstance(data["keys"], list):
        raise ConfigError(f'api_keys: {path} is not of the form {{"keys": [...]}}')
    entries = [_entry(path, number, item) for number, item in enumerate(data["keys"])]
    return require_distinct(path, entries)


def require_distinct(path: Path, entries: Iterable[KeyEntry]) -> tuple[KeyEntry, ...]:
    """The entries, checked as a whole.

    Raises:
        ConfigError: A name or key is there twice, a tenant has two weights, or there are too
            many entries.
    """
    found = tuple(entries)
    if len(found) > MAX_KEYS:
        raise ConfigError(f"api_keys: {path} has {len(found)} keys, wanted at most {MAX_KEYS}")
    seen: set[str | bytes] = set()
    for entry in found:
        for value, what in ((entry.caller.name, "name"), (entry.sha256, "key")):
            if value in seen:
                raise ConfigError(
                    f"api_keys: {path} has the {what} of {entry.caller.name!r} twice; remove one"
                )
            seen.add(value)
    _require_one_weight(path, found)
    return found


def _require_one_weight(path: Path, entries: Iterable[KeyEntry]) -> None:
    """A tenant has one share, whichever of its keys is used."""
    first: dict[str, Caller] = {}
    for caller in (entry.caller for entry in entries):
        other = first.setdefault(caller.tenant, caller)
        if other.tenant_weight != caller.tenant_weight:
            raise ConfigError(
                f"api_keys: {path}: tenant {caller.tenant!r} has tenant_weight "
                f"{other.tenant_weight:g} by key {other.name!r} and {caller.tenant_weight:g} by "
                f"{caller.name!r}; give all keys of a tenant the same in the "
                f"file"
            )


def write_key_file(path: Path, entries: Iterable[KeyEntry]) -> None:
    """Replace the file in one move; a new one is its owner's alone.

    Raises:
        ConfigError: It cannot be written.
    """
    text = json.dumps({"keys": [_plain(entry) for entry in entries]}, indent=2) + "\n"
    # A link, as Kubernetes mounts secrets, stays one.
    target = path.resolve()
    partial = ""
    try:
        handle, partial = tempfile.mkstemp(dir=target.parent, prefix=target.name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
        Path(partial).replace(target)
    except OSError as error:
        raise ConfigError(f"api_keys: cannot write {path}: {error.strerror or error}") from error
    finally:
        if partial:
            with suppress(FileNotFoundError):
                Path(partial).unlink()


def caller_from(where: str, fields: Mapping[str, Any]) -> Caller:
    """Check what is said of a key's holder; the tenant's default is the name.

    Raises:
        ConfigError: A value is wrong; the message names it.
    """
    name, tenant = fields.get("name"), fields.get("tenant", fields.get("name"))
    for field, value in (("name", name), ("tenant", tenant)):
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ConfigError(
                f"{where}: {field} is {value!r}, wanted 1 to 64 letters, digits and the signs "
                f"- _ . @"
            )
    weight = fields.get("tenant_weight", 1.0)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not MIN_TENANT_WEIGHT <= weight <= MAX_TENANT_WEIGHT:
        raise ConfigError(
            f"{where}: tenant_weight is {weight!r}, wanted a number from {MIN_TENANT_WEIGHT:g} "
            f"to {MAX_TENANT_WEIGHT:g}"
        )
    for field in _LIMITS:
        _require_limit(where, field, fields.get(field))
    operator = fields.get("operator", False)
    if not isinstance(operator, bool):
        raise ConfigError(f"{where}: operator is {operator!r}, wanted true or false")
    assert isinstance(name, str), "checked above"
    assert isinstance(tenant, str), "checked above"
    limits = {field: fields.get(field) for field in _LIMITS}
    return Caller(name, tenant, float(weight), **limits, operator=operator)


def _require_limit(where: str, field: str, value: object) -> None:
    least = 0 if field == "max_concurrent_requests" else 1
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_LIMIT:
        raise ConfigError(
            f"{where}: {field} is {value!r}, wanted a whole number from {least} to {MAX_LIMIT}"
        )


def _entry(path: Path, number: int, item: object) -> KeyEntry:
    where = f"api_keys: {path}: key {number}"
    if not isinstance(item, dict):
        raise ConfigError(f"{where} is no object")
    unknown = sorted(item.keys() - set(_FIELDS))
    if unknown:
        raise ConfigError(
            f"{where} has the fields {', '.join(unknown)}, wanted only {', '.join(_FIELDS)}"
        )
    digest = item.get("sha256")
    if not isinstance(digest, str) or not _HASH.fullmatch(digest):
        raise ConfigError(
            f"{where}: sha256 is not 64 hexadecimal digits in lower case; "
            f"`om-serve keys add NAME` makes key and hash"
        )
    return KeyEntry(bytes.fromhex(digest), caller_from(where, item))


def _plain(entry: KeyEntry) -> dict[str, object]:
    """Without the limits and the right that it does not have."""
    caller = dataclasses.asdict(entry.caller)
    plain = {"name": caller.pop("name"), "sha256": entry.sha256.hex(), **caller}
    # By identity: a limit may be 0.
    return {f: value for f, value in plain.items() if value is not None and value is not False}
