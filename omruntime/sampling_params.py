"""SamplingParams: how the next token is chosen and when an answer ends."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from omruntime.constraint import Constraint
from omruntime.errors import FieldError, RequestError
from omruntime.field_types import (
    require_biases,
    require_flag,
    require_integer,
    require_number,
    require_strings,
    require_token_ids,
)
from omruntime.manifest import SamplingDefaults

_INTEGERS = (
    "max_new_tokens",
    "min_new_tokens",
    "top_k",
    "seed",
    "n",
    "logprobs",
    "prompt_logprobs",
)
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_NEVER_UNSET = ("min_new_tokens", "n", "presence_penalty", "frequency_penalty")

MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_SEED = (1 << 63) - 1
# OpenAI's range: beyond it a bias decides alone anyway.
MAX_LOGIT_BIAS = 100.0
# Every stop string is looked for in every piece of text, on the event loop that serves all
# requests, and as many characters as the longest one has are held back.
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 256


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's wishes. None means: the bundle's default, see `resolve`.

    Attributes:
        max_new_tokens: Most tokens to generate; None means up to the model's length limit. 0
            scores the prompt alone, and needs `prompt_logprobs`.
        min_new_tokens: Before this many, end tokens are banned and stop strings ignored.
        temperature: 0 is greedy; below 1e-5 counts as 0.
        top_p: Nucleus in (0, 1]; 1 is off.
        top_k: Keep the k best; 0 and -1 are off, as is anything from the vocabulary size up.
        min_p: Keep tokens of at least this share of the best one's probability, in [0, 1].
        seed: 0 to 2**63 - 1; the same seed gives the same tokens whatever else runs. None
            draws one.
        presence_penalty, frequency_penalty: -2 to 2, over generated tokens only.
        repetition_penalty: Above 0; over prompt and generated tokens, once per distinct id.
        logit_bias: Added to the logits by token id; -100 to 100.
        allowed_token_ids: If given, no other id can be chosen.
        banned_token_ids: Ids that are never chosen.
        n: Answers to the same prompt.
        logprobs: None is off; k gives the chosen token and the k best, 0 to 20.
        prompt_logprobs: None is off; k gives each prompt token but the first and the k best at
            its position, 0 to 20.
        stop: Strings that end the answer, at most 64 of 1 to 256 characters. Text only: needs
            the server's text layer.
        stop_token_ids: Ids that end the answer as end tokens do.
        include_stop: Whether a matched stop string stays in the text.
        ignore_eos: End tokens do not end the answer.
        skip_special_tokens: Leave special tokens out of the text.
        constraint: What the text of the answer may be; no other token can be chosen. End tokens
            are allowed exactly where the answer may end, and one that is complete ends by
            itself, whatever `min_new_tokens` says. Stop strings and `stop_token_ids` may cut it
            short, as a limit on its length does.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        """Check every value that needs no model.

        Raises:
            FieldError: A value is of the wrong type or out of range; the message names field,
                value and what was wanted.
        """
        self._require_types()
        self._require_answer()
        _require_range("min_new_tokens", self.min_new_tokens, 0, None)
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise FieldError(
                "min_new_tokens",
                f"min_new_tokens is {self.min_new_tokens} and max_new_tokens "
                f"{self.max_new_tokens}; lower min_new_tokens or raise max_new_tokens",
            )
        _require_range("temperature", self.temperature, 0.0, None)
        _require_range("top_k", self.top_k, -1, None)
        _require_range("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise FieldError(
                "top_p",
                "top_p is 0, wanted above 0 and up to 1; for the best token alone set "
                "temperature 0",
            )
        _require_range("min_p", self.min_p, 0.0, 1.0)
        _require_range("seed", self.seed, 0, MAX_SEED)
        _require_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _require_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _require_range("repetition_penalty", self.repetition_penalty, 0.0, None)
        if self.repetition_penalty == 0.0:
            raise FieldError(
                "repetition_penalty", "repetition_penalty is 0, wanted above 0; 1 is off"
            )
        _require_range("n", self.n, 1, MAX_CHOICES)
        _require_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _require_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        for token_id, bias in self.logit_bias.items():
            if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:  # NaN is not
                _require_range(f"logit_bias[{token_id}]", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        self._require_stop()
        self._require_constrainable()

    def _require_answer(self) -> None:
        """Check that something is asked for: an answer, or the prompt's logprobs alone."""
        if not self.is_score_only:
            _require_range("max_new_tokens", self.max_new_tokens, 1, None)
        elif self.prompt_logprobs is None:
            raise FieldError(
                "max_new_tokens",
                "max_new_tokens is 0, wanted at least 1; 0 is for prompt_logprobs alone, which "
                "is not set",
            )
        elif self.n != 1:
            raise FieldError(
                "n",
                f"max_new_tokens is 0 and n is {self.n}, but there is no answer to give several "
                f"times; leave n out",
            )

    def _require_constrainable(self) -> None:
        """Check that nothing contradicts the constraint, if there is one."""
        if self.constraint is None:
            return
        if not isinstance(self.constraint, Constraint):
            raise FieldError(
                "constraint",
                f"constraint is {type(self.constraint).__name__}, wanted a Constraint",
            )
        if self.ignore_eos:
            raise FieldError(
                "ignore_eos",
                "ignore_eos is set beside a constraint, whose answers end where they are "
                "complete; leave one of the two out",
            )
        if self.max_new_tokens == 0:
            raise FieldError(
                "max_new_tokens",
                "max_new_tokens is 0 beside a constraint, but there is no answer to constrain",
            )

    def _require_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise FieldError(
                "stop",
                f"stop has {len(self.stop)} strings, wanted at most {MAX_STOP_STRINGS}",
            )
        for number, text in enumerate(self.stop):
            if not text:
                raise FieldError(
                    "stop",
                    "stop holds an empty string, which would end every answer at once; "
                    "leave it out",
                )
            if len(text) > MAX_STOP_CHARS:
                raise FieldError(
                    "stop",
                    f"stop[{number}] has {len(text)} characters, wanted at most {MAX_STOP_CHARS}",
                )

    def _require_types(self) -> None:
        for name in _INTEGERS + _NUMBERS:
            value = getattr(self, name)
            if value is not None or name in _NEVER_UNSET:
                (require_integer if name in _INTEGERS else require_number)(name, value)
        for name in ("allowed_token_ids", "banned_token_ids", "stop_token_ids"):
            require_token_ids(name, getattr(self, name))
        for name in ("include_stop", "ignore_eos", "skip_special_tokens"):
            require_flag(name, getattr(self, name))
        require_strings("stop", self.stop)
        require_biases("logit_bias", self.logit_bias)

    def require_vocabulary(self, vocab_size: int) -> None:
        """Check every token id against the model.

        Raises:
            FieldError: An id is outside 0 to `vocab_size - 1`, or nothing could be chosen.
        """
        for name in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"):
            token_ids = getattr(self, name)
            if len(token_ids) > vocab_size:
                raise FieldError(
                    name,
                    f"{name} has {len(token_ids)} ids, but the model has {vocab_size}; send each "
                    f"once",
                )
            for token_id in token_ids:
                if not 0 <= token_id < vocab_size:
                    raise FieldError(
                        name,
                        f"{name} holds token id {token_id}, outside the model's 0 to "
                        f"{vocab_size - 1}",
                    )
        if self.allowed_token_ids and not set(self.allowed_token_ids) - set(self.banned_token_ids):
            raise FieldError(
                "allowed_token_ids", "every id of allowed_token_ids is also in banned_token_ids"
            )
        if len(set(self.banned_token_ids)) == vocab_size:
            raise FieldError(
                "banned_token_ids",
                "banned_token_ids holds every id of the model; leave one to choose",
            )

    def resolve(self, defaults: SamplingDefaults) -> SamplingParams:
        """Fill unset fields from the bundle's defaults; set fields win, zero included."""
        unset = {
            f.name: getattr(defaults, f.name)
            for f in dataclasses.fields(defaults)
            if getattr(self, f.name) is None
        }
        return dataclasses.replace(self, **unset)

    @property
    def is_score_only(self) -> bool:
        """Whether the prompt is scored and nothing is generated."""
        return self.max_new_tokens == 0

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken; of a resolved instance."""
        return self.temperature is not None and self.temperature < 1e-5


def params_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """One for each prompt, of what a caller gave for all of them, for each, or not at all.

    Raises:
        RequestError: Something else was given, or another number of them.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, Sequence):
        raise RequestError(f"params is {params!r}, wanted SamplingParams, or a list of them")
    for item in params:
        if not isinstance(item, SamplingParams):
            raise RequestError(f"params holds {item!r}, wanted SamplingParams")
    if len(params) != num_prompts:
        raise RequestError(f"got {num_prompts} prompts and {len(params)} params, wanted as many")
    return list(params)


def _require_range(name: str, value: float | None, least: float | None, most: float | None) -> None:
    if value is None:
        return
    wanted = f"at least {least}" if most is None else f"{least} to {most}"
    too_low = least is not None and value < least
    too_high = most is not None and value > most
    # Of integers only, since some are beyond every float.
    is_odd = isinstance(value, float) and not math.isfinite(value)
    if too_low or too_high or is_odd:
        raise FieldError(name.partition("[")[0], f"{name} is {value}, wanted {wanted}")
