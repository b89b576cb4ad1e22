"""What of regular expressions is refused before the compiler sees it, and choices as one.

Owns the names of what is not built in, and the few signs that the compiler's dialect (Rust's
regex) reads in another way than JSON Schema's (ECMA 262): set operations inside of brackets. All
else it refuses by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from omruntime.errors import RequestError

# A counted part is unrolled as far as an answer goes through it.
MAX_REPEATS = 10_000

_LOOK_AROUND = re.compile(r"\(\?(=|!|<=|<!)")
_SET_OPERATIONS = ("&&", "--", "~~")
_COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}")


def require_portable(what: str, pattern: str) -> None:
    """Refuse what is not built in, or would mean something else.

    Args:
        what: Whose pattern it is, for the message.

    Raises:
        RequestError: Names the part.
    """
    position, in_class = 0, False
    while position < len(pattern):
        sign = pattern[position]
        if sign == "\\":
            _require_escape(what, pattern[position : position + 2])
            position += 2
            continue
        rest = pattern[position : position + 32]
        if in_class:
            _require_class_part(what, rest)
            in_class = sign != "]"
        elif sign == "[":
            in_class = True
            # A bracket that comes first stands for itself, with and without a negation.
            position += len(re.match(r"\[\^?\]?", rest)[0]) - 1  # type: ignore[index]
        else:
            _require_group_and_count(what, rest)
        position += 1


def _require_escape(what: str, escape: str) -> None:
    if escape in ("\\b", "\\B"):
        raise _not_built_in(what, f"the word boundary {escape}")
    if escape[1:].isdigit() and escape != "\\0":
        raise _not_built_in(what, f"the back reference {escape}")


def _require_class_part(what: str, rest: str) -> None:
    if rest.startswith(_SET_OPERATIONS) or rest[0] == "[":
        raise RequestError(
            f"constraint.{what} holds {rest[:2]!r} inside of brackets, which dialects read in "
            f"different ways; put a backslash before each sign"
        )


def _require_group_and_count(what: str, rest: str) -> None:
    if _LOOK_AROUND.match(rest):
        raise _not_built_in(what, f"the look-around {rest[:4]!r}")
    count = _COUNT.match(rest)
    if count and max(int(number or 0) for number in count.groups()) > MAX_REPEATS:
        raise RequestError(
            f"constraint.{what} repeats {count[0]}, wanted at most {MAX_REPEATS} times"
        )


def _not_built_in(what: str, part: str) -> RequestError:
    return RequestError(f"constraint.{what} holds {part}, which is not built in; leave it out")


def regex_of_choices(choices: Iterable[str]) -> str:
    """A regular expression that matches exactly these texts."""
    return "|".join("".join(map(_literal, text)) for text in choices)


def _literal(sign: str) -> str:
    return sign if sign.isalnum() else f"\\u{{{ord(sign):x}}}"
