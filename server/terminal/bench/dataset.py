"""Recorded requests: a file of JSON lines, see `--dataset-path`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from omruntime.errors import RequestError
from server.terminal.bench.contents import Contents
from server.terminal.bench.plan import (
    LoadShape,
    arriving,
    contents_of,
    planned,
    refuse_beside_dataset,
    require_fit,
)
from server.terminal.bench.synthetic import source_of
from server.terminal.bench.targets.target import Target, TargetFacts
from server.terminal.bench.workload import Content, Conversation, Turn

_WANTED = (
    "an object with one of prompt (text), prompt_ids (a list) and input_len (at least 1), with "
    "output_len (at least 1) and maybe arrival_s (0 or more); or ShareGPT's conversations, a list "
    "of objects with from (human or gpt) and value"
)
_HUMANS, _MODELS = ("human", "user"), ("gpt", "assistant", "chatgpt")


async def conversations_of(
    arguments: argparse.Namespace, load: LoadShape, target: Target, facts: TargetFacts
) -> list[Conversation]:
    """What the command line wants to be sent, made up or of a file.

    Raises:
        RequestError: A flag or a line of the file is wrong, or longer than the model takes.
    """
    if arguments.dataset_path is None:
        if arguments.sharegpt_output_len is not None:
            raise RequestError("--sharegpt-output-len is of a file; give --dataset-path too")
        return planned(arguments, load, facts)
    refuse_beside_dataset(arguments)
    reader = _Reader(arguments, load, target, contents_of(arguments, facts))
    read = [await reader.read(number, line) for number, line in _lines(arguments)]
    if not read:
        raise RequestError(f"{arguments.dataset_path} has no lines, wanted one for each request")
    require_fit(read, facts.max_model_len)
    return _with_times(read, arguments, load)


def _lines(arguments: argparse.Namespace) -> Iterator[tuple[int, str]]:
    path: Path = arguments.dataset_path
    most = arguments.num_prompts
    if most is not None and most < 1:
        raise RequestError(f"--num-prompts is {most}, wanted at least 1")
    try:
        with path.open(encoding="utf-8") as file:
            count = 0
            for number, line in enumerate(file, 1):
                if line.strip() and (most is None or count < most):
                    count += 1
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {path}: {error}") from error
    if most is not None and count < most:
        raise RequestError(
            f"{path} has {count} requests, and --num-prompts is {most}; give at most {count}"
        )


def _with_times(
    read: list[Conversation], arguments: argparse.Namespace, load: LoadShape
) -> list[Conversation]:
    """Arrivals of the load if it has any, else those of the file."""
    if load.request_rate is not None:
        return arriving([replace(each, arrival_s=None) for each in read], load)
    timed = [each for each in read if each.arrival_s is not None]
    if timed and len(timed) < len(read):
        raise RequestError(
            f"{arguments.dataset_path} has arrival_s on {len(timed)} of {len(read)} lines, wanted "
            f"all or none; or give --request-rate"
        )
    return sorted(read, key=lambda each: each.arrival_s or 0.0)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads lines one by one; made-up contents depend on the seed and the line alone."""

    arguments: argparse.Namespace
    load: LoadShape
    target: Target
    contents: Contents

    async def read(self, number: int, line: str) -> Conversation:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if isinstance(found, dict) and isinstance(found.get("conversations"), list):
            return await self._sharegpt(number, found["conversations"])
        if not isinstance(found, dict):
            raise self._wrong(number, line)
        content, length = self._content(number, found)
        output = _count_of(found.get("output_len"))
        if output is None:
            raise self._wrong(number, line)
        return Conversation((Turn(content, length, output),), self._arrival_s(number, found))

    def _content(self, number: int, found: dict[str, object]) -> tuple[Content, int | None]:
        given = [name for name in ("prompt", "prompt_ids", "input_len") if name in found]
        value = found[given[0]] if len(given) == 1 else None
        if given == ["prompt"] and isinstance(value, str) and value:
            return value, None
        if (
            given == ["prompt_ids"]
            and isinstance(value, list)
            and value
            and all(map(_is_id, value))
        ):
            return self._ids(number, tuple(value)), len(value)
        count = _count_of(value)
        if given == ["input_len"] and count is not None:
            source = source_of(self.load.seed, f"line {number}")
            return self.contents.make(source, count), count
        raise self._wrong(number, json.dumps(found))

    def _ids(self, number: int, token_ids: tuple[int, ...]) -> Content:
        if self.arguments.backend == "openai-chat":
            raise RequestError(
                f"line {number} of {self.arguments.dataset_path} has prompt_ids, but messages of a "
                f"chat are text; use --backend openai"
            )
        return token_ids

    def _arrival_s(self, number: int, found: dict[str, object]) -> float | None:
        value = found.get("arrival_s")
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and isinstance(value, int | float) and 0 <= value < math.inf:
            return float(value)
        raise self._wrong(number, json.dumps(found))

    async def _sharegpt(self, number: int, listed: list[object]) -> Conversation:
        """Its human turns; what the model said is there for its length alone."""
        parts = [(p.get("from"), p.get("value")) for p in listed if isinstance(p, dict)]
        # Some of its conversations begin with the model, as they are cut out of longer ones.
        while parts and parts[0][0] not in _HUMANS:
            parts.pop(0)
        asked, answered = parts[0::2], parts[1::2]
        is_right = answered and len(parts) == len(asked) + len(answered)
        if not is_right or {who for who, _ in asked} - set(_HUMANS):
            raise self._wrong(number, json.dumps(listed))
        turns = []
        for (_, said), (who, answer) in zip(asked, answered, strict=False):
            if who not in _MODELS or not isinstance(said, str) or not isinstance(answer, str):
                raise self._wrong(number, json.dumps(listed))
            turns.append(Turn(said, None, await self._answer_len(number, answer)))
        return Conversation(tuple(turns))

    async def _answer_len(self, number: int, answer: str) -> int:
        given: int | None = self.arguments.sharegpt_output_len
        if given is not None:
            if given < 1:
                raise RequestError(f"--sharegpt-output-len is {given}, wanted at least 1")
            return given
        count = await self.target.count_tokens(answer)
        if count is None:
            raise RequestError(
                f"line {number} of {self.arguments.dataset_path} has an answer whose tokens the "
                f"server cannot count; give --sharegpt-output-len"
            )
        return max(1, count)

    def _wrong(self, number: int, line: str) -> RequestError:
        return RequestError(
            f"line {number} of {self.arguments.dataset_path} is {line.strip()[:80]!r}, wanted "
            f"{_WANTED}"
        )


def _count_of(value: object) -> int | None:
    """A whole number from 1 on; None for anything else."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and isinstance(value, int) and value >= 1 else None


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
