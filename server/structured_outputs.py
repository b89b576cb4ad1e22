"""vLLM's `structured_outputs` -> a constraint; clients send it over HTTP and in Triton's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from omruntime.constraint import Constraint
from omruntime.errors import FieldError
from server.field_names import Names

FIELD = "structured_outputs"
_OURS = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
}
# The places of a constraint in these names.
NAMES: Names = {
    "constraint": FIELD,
    "constraint.choices": f"{FIELD}.choice",
    "json_schema": "json",
}
_KINDS = ", ".join(_OURS)


def constraint_of(wanted: Mapping[str, Any]) -> Constraint | None:
    """The one kind that is set; None when nothing is.

    Options of vLLM's back ends are taken as long as they ask for nothing.

    Raises:
        FieldError: Several kinds, one that is not built in, or a value that is none of its kind.
    """
    given = {name: value for name, value in wanted.items() if _is_asked(name, value)}
    for name in given:
        if name not in _OURS:
            raise FieldError(
                FIELD, f"{FIELD}.{name[:64]} is not built in; leave it out. Known: {_KINDS}"
            )
    if not given:
        return None
    if len(given) > 1:
        raise FieldError(FIELD, f"{FIELD} sets {', '.join(given)}, wanted one of them")
    ((name, value),) = given.items()
    return Constraint(**{_OURS[name]: _value_of(name, value)})


def _is_asked(name: str, value: Any) -> bool:
    """Whether a value asks for something: false is a schema, too, which nothing fits."""
    return value is not None and (value is not False or name == "json")


def _value_of(name: str, value: Any) -> Any:
    if name == "json":
        return value if isinstance(value, str) else _schema_text(value)
    if name == "choice":
        if not isinstance(value, list):
            raise FieldError(FIELD, f"{FIELD}.choice is {type(value).__name__}, wanted a list")
        return tuple(value)
    return value


def _schema_text(schema: Any) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False)
    except RecursionError as error:
        raise FieldError(FIELD, f"{FIELD}.json is nested too deeply") from error
