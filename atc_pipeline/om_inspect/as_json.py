"""The facts about an OM file as JSON.

Keys are those of the fields in `facts.py`; opaque attribute values become texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from atc_pipeline.om_inspect.facts import OmFacts
from omruntime.om_file import ModelType
from omruntime.om_file.attributes import Opaque

_MODEL_TYPES = {int(member): member.name for member in ModelType}


def to_plain(facts: OmFacts) -> dict[str, object]:
    """The facts as what `json.dumps` takes."""
    plain = _plain(facts)
    assert isinstance(plain, dict)
    return plain


def model_type_name(number: int) -> str:
    """The header's model type in words."""
    return _MODEL_TYPES.get(number, f"type {number}")


def _plain(value: object) -> object:
    if isinstance(value, Opaque):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex() if any(value) else ""
    return value
