"""What of Lark grammars is refused before the compiler sees it: what it would take in silence."""

from __future__ import annotations

import re

from omruntime.errors import RequestError

_TEMPERATURE = re.compile(r"^\s*[\w.-]+\s*\[[^\]\n]*\btemperature\b", re.MULTILINE)
_SCHEMA = re.compile(r"%json\b")
_INVALID_UTF8 = "allow_invalid_utf8"


def require_built_in(grammar: str) -> None:
    """Refuse options of a grammar that have no effect here, or a wrong one.

    Raises:
        RequestError: Names the option.
    """
    if _TEMPERATURE.search(grammar):
        raise RequestError(
            "constraint.grammar sets temperature for a rule, which is not built in; it is a "
            "parameter of the whole answer"
        )
    # Special tokens begin with a byte that is no text, which it would let through.
    if _SCHEMA.search(grammar):
        raise RequestError(
            "constraint.grammar holds %json, which is not built in, as nothing would check what "
            "of the schema is enforced; use json_schema"
        )
    if _INVALID_UTF8 in grammar:
        raise RequestError(f"constraint.grammar sets {_INVALID_UTF8}, which is not built in")
