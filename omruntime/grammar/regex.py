"""What of regular expressions is refused or changed before the compiler sees it; choices as one.

Owns the names of what is not built in, the signs that the compiler's dialect (Rust's regex) reads
in another way than JSON Schema's (ECMA 262), and what goes wrong when an expression is about the
text inside of JSON's quotes. All else the compiler refuses by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from omruntime.errors import RequestError

# A counted part is unrolled as far as an answer goes through it.
MAX_REPEATS = 10_000

_BRACKET = r"\[\^?\]?(?:\\.|[^\]\\])*\]"
_ESCAPE = r"\\(?:[xuU]\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[pP]\{[^}]*\}|[pP].|.)"
_PIECE = re.compile(
    rf"(?P<bracket>{_BRACKET})|(?P<escape>{_ESCAPE})|(?P<look>\(\?(?:=|!|<=|<!))"
    r"|\{(?P<least>\d*)(?:,(?P<most>\d*))?\}|(?P<other>.)",
    re.DOTALL,
)
_INNER_ESCAPE = re.compile(_ESCAPE, re.DOTALL)
_CODE = re.compile(r"\\[xuU]\{?([0-9A-Fa-f]+)\}?")
# A bracket that closes at once stands for itself in one dialect and for nothing in the other.
_SET_OPERATIONS = re.compile(r"^\^?\](?=.)|&&|--|~~|\[", re.DOTALL)
_RAW_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
# Unicode classes with all control characters and without the quote.
_CONTROLS = re.compile(r"\\p\{?(?:(?:gc|general_?category)=)?(?:c|cc|cntrl|control|other)\}?", re.I)


def require_portable(what: str, pattern: str) -> None:
    """Refuse what is not built in, or would mean something else.

    Args:
        what: Whose pattern it is, for the message.

    Raises:
        RequestError: Names the part.
    """
    for piece in _PIECE.finditer(pattern):
        if piece["look"]:
            raise _not_built_in(what, f"the look-around {piece[0]!r}")
        if piece["least"] is not None:
            _require_count(what, piece)
        if piece["escape"] in ("\\b", "\\B"):
            raise _not_built_in(what, f"the word boundary {piece[0]}")
        if piece["escape"] and piece[0][1] in "123456789":
            raise _not_built_in(what, f"the back reference {piece[0]}")
        found = _SET_OPERATIONS.search(_INNER_ESCAPE.sub("", piece["bracket"] or "")[1:])
        if found:
            raise RequestError(
                f"constraint.{what} holds {found[0]!r} inside of brackets, which dialects read in "
                f"different ways; put a backslash before each sign"
            )


def _require_count(what: str, piece: re.Match[str]) -> None:
    if max(int(piece["least"] or 0), int(piece["most"] or 0)) > MAX_REPEATS:
        raise RequestError(
            f"constraint.{what} repeats {piece[0]}, wanted at most {MAX_REPEATS} times"
        )


def within_json(what: str, pattern: str) -> str:
    r"""The pattern as the compiler may have it for a text inside of JSON's quotes.

    There it leaves out control characters that have no short escape, and takes whatever holds
    all that have one to hold the quote and the backslash, too. One of them is the backspace:
    without it [^"] is what it says, for the price of a sign that no text needs.

    Raises:
        RequestError: As `require_portable`, or it asks for such characters.
    """
    require_portable(what, pattern)
    control = _RAW_CONTROL.search(pattern)
    if control:
        raise _not_built_in(what, f"the control character {control[0]!r}")
    pieces = []
    for piece in _PIECE.finditer(pattern):
        if piece[0].startswith("[^"):
            pieces.append(f"[^\\x08{piece[0][2:]}")
            continue
        for escape in _INNER_ESCAPE.findall(piece[0]):
            if _is_control(escape):
                raise _not_built_in(what, f"{escape} outside of [^…], for control characters")
        pieces.append(piece[0])
    return "".join(pieces)


def _is_control(escape: str) -> bool:
    """Whether an escape may stand for a control character beyond tab and line ends."""
    code = _CODE.fullmatch(escape)
    if code:
        number = int(code[1], 16)
        return number == 0x7F or (number < 0x20 and chr(number) not in "\t\n\f\r")
    if escape in ("\\a", "\\b", "\\v") or escape.startswith("\\P") or "{^" in escape:
        return True
    return bool(_CONTROLS.fullmatch(escape.replace(" ", "")))


def _not_built_in(what: str, part: str) -> RequestError:
    return RequestError(f"constraint.{what} holds {part}, which is not built in; leave it out")


def regex_of_choices(choices: Iterable[str]) -> str:
    """A regular expression that matches exactly these texts."""
    return "|".join("".join(map(_literal, text)) for text in choices)


def _literal(sign: str) -> str:
    return sign if sign.isalnum() else f"\\u{{{ord(sign):x}}}"
