"""From a command line to conversations: checks the flags, and makes or reads what is sent."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from omruntime.errors import RequestError
from omruntime.traffic.lengths import Fixed, Lengths, Lognormal, Uniform
from server.terminal.bench.contents import Contents, TokenIds, Words
from server.terminal.bench.synthetic import (
    SharedPrefixes,
    SyntheticShape,
    synthetic_conversations,
    with_arrivals,
)
from server.terminal.bench.targets.target import TargetFacts
from server.terminal.bench.workload import Conversation

INPUT_LEN, OUTPUT_LEN, NUM_PROMPTS = 128, 64, 100
WARMUP_INPUT_LEN, WARMUP_OUTPUT_LEN = 16, 4

# Flags that say nothing beside another one, and what they belong to.
_SYNTHETIC = [
    "random_range_ratio",
    "lognormal_sigma",
    "random_prefix_len",
    "num_prefixes",
    "prefix_fraction",
    "turns",
    "think_time_s",
    "random_input_len",
    "random_output_len",
]


@dataclass(frozen=True, slots=True)
class LoadShape:
    """How the load comes.

    Attributes:
        request_rate: None: a closed loop, or the arrivals of a file.
        max_concurrency: None: no limit, in an open loop alone.
    """

    request_rate: float | None
    burstiness: float
    max_concurrency: int | None
    num_warmups: int
    seed: int

    def places_for(self, conversations: Sequence[Conversation]) -> int | None:
        """Users of a closed loop, else most requests in flight."""
        is_closed = conversations[0].arrival_s is None
        return (self.max_concurrency or 1) if is_closed else self.max_concurrency


def load_shape_of(arguments: argparse.Namespace) -> LoadShape:
    """The load of a parsed command line.

    Raises:
        RequestError: A value is out of range, or has no effect beside the others.
    """
    rate, burstiness = arguments.request_rate, arguments.burstiness
    _require(rate is None or rate > 0, "--request-rate", rate, "arrivals a second above 0, or inf")
    is_shape = burstiness is None or 0 < burstiness < math.inf
    _require(is_shape, "--burstiness", burstiness, "a number above 0; 1 is Poisson")
    if burstiness is not None and (rate is None or math.isinf(rate)):
        raise RequestError("--burstiness is of random arrivals; give a finite --request-rate too")
    users = arguments.max_concurrency
    _require(users is None or users > 0, "--max-concurrency", users, "at least 1")
    warmups = arguments.num_warmups
    _require(warmups >= 0, "--num-warmups", warmups, "0 or more")
    return LoadShape(rate, burstiness or 1.0, users, warmups, arguments.seed)


def synthetic_shape_of(arguments: argparse.Namespace, max_model_len: int | None) -> SyntheticShape:
    """Made-up requests of a parsed command line.

    Args:
        max_model_len: Most tokens of prompt and answer; None when nobody knows.

    Raises:
        RequestError: A value is out of range, or has no effect beside the others.
    """
    turns = _number(arguments, "turns", 1)
    think_s = _real(arguments, "think_time_s", 0.0)
    if think_s and turns == 1:
        raise RequestError("--think-time-s is between turns; give --turns above 1 too")
    prefixes = _prefixes_of(arguments)
    most = None
    if max_model_len is not None:
        most = max(1, (max_model_len - prefixes.num_tokens) // (2 * turns))
    prompts = _lengths_of(arguments, _number(arguments, "random_input_len", INPUT_LEN), most)
    outputs = _lengths_of(arguments, _number(arguments, "random_output_len", OUTPUT_LEN), most)
    return SyntheticShape(prompts, outputs, prefixes, turns, think_s)


def _prefixes_of(arguments: argparse.Namespace) -> SharedPrefixes:
    given = arguments.random_prefix_len
    if given is None and (arguments.num_prefixes, arguments.prefix_fraction) != (None, None):
        raise RequestError(
            "--num-prefixes and --prefix-fraction are of shared beginnings; give "
            "--random-prefix-len too"
        )
    num_tokens = 0 if given is None else _number(arguments, "random_prefix_len", 0)
    fraction = _real(arguments, "prefix_fraction", 1.0)
    _require(fraction <= 1, "--prefix-fraction", fraction, "a share from 0 to 1")
    return SharedPrefixes(num_tokens, _number(arguments, "num_prefixes", 1), fraction)


def _lengths_of(arguments: argparse.Namespace, length: int, most: int | None) -> Lengths:
    ratio, sigma = arguments.random_range_ratio, arguments.lognormal_sigma
    if ratio is not None and sigma is not None:
        raise RequestError(
            "--random-range-ratio makes uniform and --lognormal-sigma lognormal lengths; give one"
        )
    if ratio is not None:
        _require(0 <= ratio < 1, "--random-range-ratio", ratio, "a number from 0, below 1")
        return Uniform(max(1, math.floor(length * (1 - ratio))), math.ceil(length * (1 + ratio)))
    if sigma is not None:
        _require(0 < sigma <= 5, "--lognormal-sigma", sigma, "a number above 0, up to 5")
        return Lognormal(length, sigma, most)
    return Fixed(length)


def contents_of(arguments: argparse.Namespace, facts: TargetFacts) -> Contents:
    """The kind of made-up prompts.

    Raises:
        RequestError: The target does not take it, or nobody knows the vocabulary.
    """
    is_http = arguments.backend in ("openai", "openai-chat")
    kind = arguments.prompt_kind or ("text" if is_http else "ids")
    if kind == "text":
        if arguments.vocab_size is not None:
            raise RequestError("--vocab-size is of random ids; give --prompt-kind ids too")
        return Words()
    if arguments.backend == "openai-chat":
        raise RequestError(
            "--prompt-kind is ids, but messages of a chat are text; use text, or --backend openai"
        )
    if is_http and (arguments.turns or 1) > 1:
        raise RequestError(
            "--prompt-kind is ids, but over HTTP answers are text, which ids cannot go on from; "
            "use --prompt-kind text with --turns above 1"
        )
    size = arguments.vocab_size or facts.vocab_size
    if size is None or size < 2:
        raise RequestError(
            f"--vocab-size is {arguments.vocab_size}, wanted at least 2: {arguments.backend} does "
            f"not tell the model's vocabulary"
        )
    return TokenIds(size, frozenset(facts.eos_token_ids))


def planned(
    arguments: argparse.Namespace, load: LoadShape, facts: TargetFacts
) -> list[Conversation]:
    """Made-up conversations, with arrivals when it is an open loop.

    Raises:
        RequestError: A flag is wrong, or a conversation is longer than the model takes.
    """
    shape = synthetic_shape_of(arguments, facts.max_model_len)
    count = _number(arguments, "num_prompts", NUM_PROMPTS)
    made = synthetic_conversations(shape, contents_of(arguments, facts), count, load.seed)
    require_fit(made, facts.max_model_len)
    return arriving(made, load)


def warm_up(
    arguments: argparse.Namespace, load: LoadShape, facts: TargetFacts
) -> list[Conversation]:
    """Short requests that have nothing in common with the others."""
    shape = SyntheticShape(Fixed(WARMUP_INPUT_LEN), Fixed(WARMUP_OUTPUT_LEN))
    contents = contents_of(arguments, facts)
    return synthetic_conversations(shape, contents, load.num_warmups, f"{load.seed} warm-up")


def arriving(conversations: list[Conversation], load: LoadShape) -> list[Conversation]:
    """With the arrivals of the load, if it has any of its own."""
    if load.request_rate is None:
        return conversations
    return with_arrivals(conversations, load.request_rate, load.burstiness, load.seed)


def require_fit(conversations: Sequence[Conversation], max_model_len: int | None) -> None:
    """Refuse before anything is sent what the model cannot take.

    Raises:
        RequestError: A conversation passes the limit.
    """
    for number, conversation in enumerate(conversations):
        most = conversation.most_tokens
        if max_model_len is not None and most is not None and most > max_model_len:
            raise RequestError(
                f"conversation {number} has up to {most} tokens of prompts and answers, and the "
                f"model takes {max_model_len}; shorten --random-input-len, --random-output-len, "
                f"--random-prefix-len or --turns, or the lines of --dataset-path"
            )


def refuse_beside_dataset(arguments: argparse.Namespace) -> None:
    """Refuse flags of made-up prompts beside a file.

    Raises:
        RequestError: There is one.
    """
    for name in _SYNTHETIC:
        if getattr(arguments, name) is not None:
            raise RequestError(
                f"{_flag(name)} is of made-up prompts and has no effect on --dataset-path; give "
                f"one of the two"
            )


def _number(arguments: argparse.Namespace, name: str, default: int) -> int:
    given: int | None = getattr(arguments, name)
    _require(given is None or given >= 1, _flag(name), given, "at least 1")
    return default if given is None else given


def _real(arguments: argparse.Namespace, name: str, default: float) -> float:
    given: float | None = getattr(arguments, name)
    is_right = given is None or 0 <= given < math.inf
    _require(is_right, _flag(name), given, "a number from 0 on")
    return default if given is None else given


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _require(is_right: bool, flag: str, got: object, wanted: str) -> None:
    if not is_right:
        raise RequestError(f"{flag} is {got}, wanted {wanted}")
