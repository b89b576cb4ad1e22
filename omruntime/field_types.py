"""Checks of field types at run time, for values that callers hand in from untyped code."""

from __future__ import annotations

import re
from collections.abc import Mapping

from omruntime.errors import FieldError


def require_integer(name: str, value: object) -> None:
    """Refuse all but an int; a bool is none here."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(name, value, "an integer")


def require_number(name: str, value: object) -> None:
    """Refuse all but an int or float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong_type(name, value, "a number")


def require_flag(name: str, value: object) -> None:
    """Refuse all but a bool."""
    if not isinstance(value, bool):
        raise _wrong_type(name, value, "True or False")


def require_token_ids(name: str, value: object) -> None:
    """Refuse all but a tuple or list of ints."""
    if not isinstance(value, tuple | list):
        raise _wrong_type(name, value, "a tuple of token ids")
    for token_id in value:
        # Lists are as long as vocabularies, so a message is made where it is needed alone.
        if type(token_id) is not int:
            require_integer(f"{name}: a token id", token_id)


def require_strings(name: str, value: object) -> None:
    """Refuse all but a tuple or list of strings; a string alone would be taken letter by letter."""
    if not isinstance(value, tuple | list):
        raise _wrong_type(name, value, "a tuple of strings")
    for text in value:
        if not isinstance(text, str):
            raise _wrong_type(name, text, "a string")


def require_biases(name: str, value: object) -> None:
    """Refuse all but a mapping of token ids to numbers."""
    if not isinstance(value, Mapping):
        raise _wrong_type(name, value, "a mapping of token ids to numbers")
    for token_id, bias in value.items():
        if type(token_id) is not int or type(bias) is not float:
            require_integer(f"{name}: a token id", token_id)
            require_number(f"{name}[{token_id}]", bias)


def _wrong_type(name: str, value: object, wanted: str) -> FieldError:
    field = re.split(r"[.:\[]", name)[0]
    return FieldError(field, f"{name} is {value!r} ({type(value).__name__}), wanted {wanted}")
