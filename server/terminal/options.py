"""The flags of `om-client` that stand for sampling parameters; they derive from the fields."""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omruntime.constraint import Constraint
from omruntime.sampling_params import SamplingParams

SAMPLING_HELP = {
    "max_new_tokens": "most tokens to generate; default: up to the model's limit",
    "min_new_tokens": "before this many tokens nothing ends the answer; default: 0",
    "temperature": "0 takes the best token; default: the bundle's",
    "top_p": "share of probability that stays, above 0 and up to 1; default: the bundle's",
    "top_k": "the best k tokens stay, 0 is off; default: the bundle's",
    "min_p": "tokens of at least this share of the best one's probability stay; default: the "
    "bundle's",
    "seed": "the same seed gives the same answer; default: drawn",
    "presence_penalty": "against tokens that were generated, -2 to 2; default: 0",
    "frequency_penalty": "the same for each occurrence, -2 to 2; default: 0",
    "repetition_penalty": "against tokens of prompt and answer, 1 is off; default: the bundle's",
    "logit_bias": "added to the logit of a token, -100 to 100; repeatable",
    "allowed_token_ids": "no other token can be chosen, such as 5,17",
    "banned_token_ids": "tokens that are never chosen, such as 5,17",
    "n": "answers to the same prompt; default: 1",
    "logprobs": "logprobs of each token and of the best k, 0 to 20; default: off",
    "prompt_logprobs": "logprobs of each prompt token and of the best k, 0 to 20; with "
    "--max-new-tokens 0 alone; default: off",
    "stop": "text that ends the answer; repeatable",
    "stop_token_ids": "tokens that end the answer, such as 5,17",
    "include_stop": "keep a matched stop text; default: no",
    "ignore_eos": "end tokens do not end the answer; default: no",
    "skip_special_tokens": "leave special tokens out of the text; default: yes",
    "constraint": "what the text of the answer may be, one of these; default: anything",
}


def parse_token_ids(text: str) -> tuple[int, ...]:
    """Token ids separated by commas or spaces, at least one: none would mean no limit at all.

    Raises:
        argparse.ArgumentTypeError: Something else.
    """
    try:
        token_ids = tuple(int(part) for part in re.split(r"[,\s]+", text.strip()) if part)
    except ValueError:
        token_ids = ()
    if not token_ids:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, wanted token ids separated by commas, such as 5,17"
        )
    return token_ids


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted ID=BIAS, such as 5=-1.5") from error


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each field of `SamplingParams`; flags that are not given leave no trace."""
    hints = typing.get_type_hints(SamplingParams)
    group = parser.add_argument_group("sampling")
    for field in dataclasses.fields(SamplingParams):
        if field.name == "constraint":
            continue
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            default=argparse.SUPPRESS,
            help=SAMPLING_HELP[field.name],
            **_conversion(field.name, hints[field.name]),
        )
    _add_constraint_flags(parser)


def _add_constraint_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("constraint", SAMPLING_HELP["constraint"])
    kinds = group.add_mutually_exclusive_group()
    for flag, what in (("--json-schema", "a JSON Schema"), ("--grammar", "a Lark grammar")):
        kinds.add_argument(
            flag,
            default=argparse.SUPPRESS,
            type=_read_text,
            metavar="FILE",
            help=f"the answer follows {what} in a file",
        )
    kinds.add_argument(
        "--json-object",
        default=argparse.SUPPRESS,
        action="store_true",
        help="the answer is a JSON object",
    )
    kinds.add_argument(
        "--regex", default=argparse.SUPPRESS, metavar="REGEX", help="the whole answer matches"
    )
    kinds.add_argument(
        "--choices",
        default=argparse.SUPPRESS,
        nargs="+",
        metavar="TEXT",
        help="the answer is one of the texts",
    )


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {path!r}: {error}") from error


def _constraint_of(arguments: argparse.Namespace) -> Constraint | None:
    given = {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(Constraint)
        if hasattr(arguments, field.name)
    }
    if "choices" in given:
        given["choices"] = tuple(given["choices"])
    return Constraint(**given) if given else None


def _conversion(name: str, hint: object) -> dict[str, Any]:
    """What argparse needs to read a field of some type."""
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint == tuple[int, ...]:
        return {"type": parse_token_ids, "metavar": "IDS"}
    if hint == tuple[str, ...]:
        return {"action": "append", "metavar": "TEXT"}
    if typing.get_origin(hint) is Mapping:
        return {"action": "append", "type": _parse_bias, "metavar": "ID=BIAS"}
    kind = next(t for t in (typing.get_args(hint) or (hint,)) if t is not type(None))
    assert kind in (int, float), f"no flag for {name}: {hint}"
    return {"type": kind, "metavar": "N" if kind is int else "X"}


def sampling_params_of(arguments: argparse.Namespace) -> SamplingParams:
    """The sampling parameters of a parsed command line.

    Raises:
        RequestError: A value is out of range.
    """
    given: dict[str, Any] = {}
    for field in dataclasses.fields(SamplingParams):
        if hasattr(arguments, field.name):
            value = getattr(arguments, field.name)
            given[field.name] = tuple(value) if isinstance(value, list) else value
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    return SamplingParams(**given, constraint=_constraint_of(arguments))
