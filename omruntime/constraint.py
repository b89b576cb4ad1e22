"""Constraint: what the text of an answer may be, as the request says it.

Owns the five kinds and the checks that need neither a library nor a model. It travels inside of
`SamplingParams`, also to a device process; what it compiles to stays where tokens are sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

from omruntime.errors import FieldError
from omruntime.field_types import require_flag, require_strings

# Each is the largest text whose compilation stays within a second or two; see
# docs/benchmarks/constraints.md. Real schemas and grammars have a tenth of it.
MAX_SCHEMA_CHARS = 65_536
MAX_GRAMMAR_CHARS = 32_768
MAX_REGEX_CHARS = 4_096
MAX_CHOICES = 1_000
MAX_CHOICE_CHARS = 16_384
MAX_MARK_CHARS = 64

_KINDS = ("json_schema", "json_object", "regex", "grammar", "choices")
_WANTED = f"exactly one of {', '.join(_KINDS)}"


@dataclass(frozen=True, slots=True)
class Constraint:
    """Exactly one kind is set.

    Attributes:
        json_schema: The text of a JSON Schema (2020-12); the answer is one JSON value that it
            accepts. At most 65,536 characters.
        json_object: The answer is some JSON object.
        regex: The whole answer matches; Rust's syntax, without look-around and back references.
            At most 4,096 characters.
        grammar: In the Lark dialect of llguidance; the answer is derived from `start`. At most
            32,768 characters.
        choices: The answer is one of the texts; 1 to 1,000 of them, none empty, 16,384
            characters all told.
        free_until: If given, the answer is free up to and including this text, such as the end of
            a thought, and the rest after up to four blanks and line breaks is the JSON. At most
            64 characters; for JSON alone.
        free_from: If given beside it, only an answer that begins with this text, perhaps after as
            many blanks, is free at first.
    """

    json_schema: str | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    choices: tuple[str, ...] | None = None
    free_until: str = ""
    free_from: str = ""

    def __post_init__(self) -> None:
        """Check types, sizes and that one kind is set.

        Raises:
            FieldError: The message names the kind, what was got and what was wanted.
        """
        require_flag("constraint.json_object", self.json_object)
        kinds = [kind for kind in _KINDS if getattr(self, kind) not in (None, False)]
        if len(kinds) != 1:
            raise FieldError(
                "constraint", f"constraint sets {', '.join(kinds) or 'nothing'}, wanted {_WANTED}"
            )
        _require_text("json_schema", self.json_schema, MAX_SCHEMA_CHARS)
        _require_text("regex", self.regex, MAX_REGEX_CHARS)
        _require_text("grammar", self.grammar, MAX_GRAMMAR_CHARS)
        if self.choices is not None:
            _require_choices(self.choices)
        self._require_marks()

    def _require_marks(self) -> None:
        require_strings("constraint.free_until and free_from", (self.free_until, self.free_from))
        if self.free_from and not self.free_until:
            raise FieldError(
                "constraint", "constraint.free_from is set without free_until; set both"
            )
        if self.free_until and not self.may_follow:
            raise FieldError(
                "constraint", f"constraint.free_until beside {self.kind} is not built in"
            )
        longest = max(len(self.free_until), len(self.free_from))
        if longest > MAX_MARK_CHARS:
            raise FieldError(
                "constraint",
                f"constraint.free_until or free_from has {longest} characters, wanted at most "
                f"{MAX_MARK_CHARS}",
            )

    @property
    def key(self) -> tuple[str | tuple[str, ...], ...]:
        """Equal for constraints that compile to the same; hashable."""
        value = getattr(self, self.kind)
        value = value if isinstance(value, str) else tuple(self.choices or ())
        return self.kind, value, self.free_until, self.free_from

    @property
    def may_follow(self) -> bool:
        """Whether it can hold for what follows a free beginning alone."""
        return self.kind in ("json_schema", "json_object")

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return next(kind for kind in _KINDS if getattr(self, kind) not in (None, False))


def _require_text(kind: str, text: str | None, most: int) -> None:
    if text is None:
        return
    if not isinstance(text, str):
        raise FieldError(
            "constraint", f"constraint.{kind} is {type(text).__name__}, wanted its text"
        )
    if not text:
        raise FieldError(
            "constraint", f"constraint.{kind} is empty; leave constraint out for a free answer"
        )
    if len(text) > most:
        raise FieldError(
            "constraint",
            f"constraint.{kind} has {len(text)} characters, wanted at most {most}; "
            f"larger ones take too long to compile",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FieldError(
            "constraint", f"constraint.{kind} is not valid Unicode: {error}"
        ) from error


def _require_choices(choices: tuple[str, ...]) -> None:
    require_strings("constraint.choices", choices)
    if not 0 < len(choices) <= MAX_CHOICES:
        raise FieldError(
            "constraint", f"constraint.choices has {len(choices)} texts, wanted 1 to {MAX_CHOICES}"
        )
    for number, text in enumerate(choices):
        _require_text(f"choices[{number}]", text, MAX_CHOICE_CHARS)
    num_chars = sum(map(len, choices))
    if num_chars > MAX_CHOICE_CHARS:
        raise FieldError(
            "constraint",
            f"constraint.choices has {num_chars} characters all told, wanted at most "
            f"{MAX_CHOICE_CHARS}",
        )
