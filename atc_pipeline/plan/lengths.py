"""Prompt and output lengths of a recorded traffic, out of a file.

Owns the three formats and their refusals: CSV of token counts, conversations as JSON, and the
access log of om-serve. Counting tokens is the caller's function.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from omruntime.errors import ConfigError

CountTokens = Callable[[str], int]
_COLUMNS = ("prompt_tokens", "output_tokens")
_ANSWERING = frozenset({"gpt", "assistant", "chatgpt", "model", "bing", "bard"})
# What the server logs for each request, see server/logs.py.
_FINISHED = " request finished "
_FIELD = re.compile(r"(\w+)=(\S+)")
_CONVERSATION_KEYS = (("conversations", "from", "value"), ("messages", "role", "content"))
# More tokens than any context holds; and a number of thousands of digits is never worked out.
_MAX_DIGITS = 9
_SPACES = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class RequestLength:
    """One answer.

    Attributes:
        prompt_tokens: At least 1.
        output_tokens: 0 when it was aborted before its first token.
        cached_tokens: Of the prompt, found in the prefix cache and not computed.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


def read_lengths(path: Path, count_tokens: CountTokens) -> tuple[RequestLength, ...]:
    """Read a file: `.json` is conversations, `.csv` pairs of counts, all else an access log.

    Args:
        count_tokens: Called for the texts of conversations only.

    Raises:
        ConfigError: The file cannot be read, a row is malformed (the message has its line), or
            there is no request in it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the lengths in {path}: {error}") from error
    if path.suffix == ".json":
        found = tuple(_conversations(text, path, count_tokens))
        wanted = "conversations with an answer"
    elif path.suffix == ".csv":
        found, wanted = tuple(_csv_rows(text, path)), "a row prompt_tokens,output_tokens"
    else:
        found, wanted = tuple(_log_lines(text, path)), "a line with 'request finished'"
    if not found:
        raise ConfigError(f"{path} has no request in it, wanted at least one: {wanted}")
    return found


def _csv_rows(text: str, path: Path) -> Iterator[RequestLength]:
    columns: tuple[int, int] | None = None
    for where, row in _csv_cells(text, path):
        if not any(cell.strip() for cell in row):
            continue
        if columns is None:
            columns, is_header = _columns(row, where)
            if is_header:
                continue
        if len(row) <= max(columns):
            raise ConfigError(f"{where}: got {len(row)} columns, wanted prompt and output tokens")
        prompt, output = (row[column].strip() for column in columns)
        yield RequestLength(_count(prompt, where, 1), _count(output, where, 0))


def _csv_cells(text: str, path: Path) -> Iterator[tuple[str, list[str]]]:
    """Where each row stands, and its cells."""
    reader = csv.reader(text.splitlines())
    try:
        for row in reader:
            yield f"{path}, line {reader.line_num}", row
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: not CSV: {error}") from error


def _columns(row: list[str], where: str) -> tuple[tuple[int, int], bool]:
    """Where the two counts stand, and whether this first row only says so."""
    names = [cell.strip() for cell in row]
    if all(name in names for name in _COLUMNS):
        return (names.index(_COLUMNS[0]), names.index(_COLUMNS[1])), True
    if len(names) != len(_COLUMNS):
        raise ConfigError(
            f"{where}: got {len(names)} columns without a header, wanted two, or a header that "
            f"names {' and '.join(_COLUMNS)}"
        )
    if not any(cell.isdigit() for cell in names):
        raise ConfigError(
            f"{where}: got the header {','.join(names)}, wanted {','.join(_COLUMNS)}, or no header"
        )
    return (0, 1), False


def _log_lines(text: str, path: Path) -> Iterator[RequestLength]:
    for number, line in enumerate(text.splitlines(), start=1):
        _, finished, rest = line.partition(_FINISHED)
        if not finished:
            continue
        where = f"{path}, line {number}"
        fields = dict(_FIELD.findall(rest))
        prompt = _field(fields, "num_prompt_tokens", where)
        if prompt == 0:
            # No answer of it came to an end, so the log does not know its prompt.
            continue
        outputs = _field(fields, "num_output_tokens", where)
        cached = min(_field(fields, "num_cached_tokens", where), prompt - 1)
        num_answers = fields.get("finish_reason", "").count(",") + 1
        share, more = divmod(outputs, num_answers)
        for index in range(num_answers):
            # The answers of one request share its prompt, which is computed once.
            known = cached if index == 0 else prompt - 1
            yield RequestLength(prompt, share + (index < more), known)


def _field(fields: dict[str, str], name: str, where: str) -> int:
    if name not in fields:
        raise ConfigError(f"{where}: a finished request without {name}=, wanted om-serve's line")
    return _count(fields[name], f"{where}, {name}", 0)


def _count(text: str, where: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS or int(text) < least:
        raise ConfigError(
            f"{where}: got {text[:40]!r}, wanted a count of tokens, {least} to {'9' * _MAX_DIGITS}"
        )
    return int(text)


def _conversations(text: str, path: Path, count_tokens: CountTokens) -> Iterator[RequestLength]:
    """One request for each answer; its prompt is all that was said before."""
    for number, entry in _elements(text, path):
        where = f"{path}, line {number}"
        context = 0
        for is_answer, content in _turns(entry, where):
            tokens = count_tokens(content)
            if is_answer and context:
                yield RequestLength(context, tokens)
            context += tokens


def _turns(entry: object, where: str) -> Iterator[tuple[bool, str]]:
    for key, role_key, text_key in _CONVERSATION_KEYS:
        turns = entry.get(key) if isinstance(entry, dict) else None
        if turns is None:
            continue
        if not isinstance(turns, list):
            raise ConfigError(f"{where}: {key} is {type(turns).__name__}, wanted a list")
        for index, turn in enumerate(turns):
            role = turn.get(role_key) if isinstance(turn, dict) else None
            text = turn.get(text_key) if isinstance(turn, dict) else None
            if not isinstance(role, str) or not isinstance(text, str):
                raise ConfigError(
                    f"{where}: {key}[{index}] wants the texts {role_key!r} and {text_key!r}"
                )
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ConfigError(
                    f"{where}: {key}[{index}] holds half of a surrogate pair, which is no "
                    f"character; wanted text"
                ) from error
            yield role in _ANSWERING, text
        return
    raise ConfigError(
        f"{where}: wanted an object such as "
        f'{{"messages": [{{"role": "user", "content": "..."}}, ...]}}, or ShareGPT\'s '
        f"'conversations' of 'from' and 'value'"
    )


def _elements(text: str, path: Path) -> Iterator[tuple[int, object]]:
    """The elements of a JSON list, each with the line it begins in."""
    decoder = json.JSONDecoder()
    at = _skip_spaces(text, 0)
    if text[at : at + 1] != "[":
        raise ConfigError(f"{path}, line 1: wanted a list of conversations, which begins with '['")
    at, line, counted = _skip_spaces(text, at + 1), 1, 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            element, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {line}: not JSON: {error}") from error
        yield line, element
        at = _skip_spaces(text, end)
        if text[at : at + 1] == ",":
            at = _skip_spaces(text, at + 1)
        elif text[at : at + 1] != "]":
            line += text.count("\n", counted, at)
            raise ConfigError(f"{path}, line {line}: the list goes on with neither ',' nor ']'")


def _skip_spaces(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    assert found is not None
    return found.end()
