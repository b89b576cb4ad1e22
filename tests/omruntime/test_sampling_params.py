"""SamplingParams: every bad value is refused by name, and unset fields follow the bundle."""

import math

import pytest

from omruntime.errors import FieldError, RequestError
from omruntime.manifest import SamplingDefaults
from omruntime.sampling_params import (
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    SamplingParams,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", -1),
        ("min_new_tokens", -1),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -2),
        ("min_p", 1.5),
        ("seed", -1),
        ("seed", MAX_SEED + 1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("n", 0),
        ("n", 129),
        ("logprobs", -1),
        ("logprobs", 21),
        ("stop", ("7", "")),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    """BL-24, BL-27, BL-28, BL-30: bad values are refused, never wrapped, clipped or ignored."""
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["max_new_tokens", "min_new_tokens", "top_k"])
def test_an_integer_beyond_every_float_is_one_beyond_the_model(field: str) -> None:
    """JSON has such numbers; asking whether they are finite fails in Python."""
    params = SamplingParams(**{"max_new_tokens": 10**400, field: 10**400})  # type: ignore[arg-type]
    assert getattr(params, field) == 10**400


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (("x",) * 65, "stop has 65 strings, wanted at most 64"),
        (("x", "y" * 257), r"stop\[1\] has 257 characters, wanted at most 256"),
    ],
)
def test_stop_strings_are_bounded(stop: tuple[str, ...], message: str) -> None:
    """Searching them takes the time of every other request."""
    SamplingParams(stop=("x" * MAX_STOP_CHARS,) * MAX_STOP_STRINGS)
    with pytest.raises(RequestError, match=message):
        SamplingParams(stop=stop)


@pytest.mark.parametrize("bias", [1000.0, -100.5, math.nan])
def test_a_logit_bias_beyond_its_range_is_refused(bias: float) -> None:
    """BL-25: 1000 is refused, not clipped."""
    with pytest.raises(RequestError, match=r"logit_bias\[7042\]"):
        SamplingParams(logit_bias={7042: bias})


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, top_p=0.95, top_k=64),
        SamplingParams(temperature=0.0, top_k=0),
        SamplingParams(temperature=0.0, top_k=-1),
        SamplingParams(temperature=1e-12),
    ],
)
def test_temperature_zero_is_greedy_whatever_stands_beside_it(params: SamplingParams) -> None:
    """BL-24: these were refused or turned into inf elsewhere."""
    assert params.is_greedy


def test_more_minimum_than_maximum_tokens_is_refused() -> None:
    """BL-23: min_tokens > max_tokens."""
    with pytest.raises(RequestError, match="min_new_tokens is 13 and max_new_tokens 12; lower"):
        SamplingParams(min_new_tokens=13, max_new_tokens=12)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(logit_bias={49152: 1.0}),
        SamplingParams(logit_bias={-1: 1.0}),
        SamplingParams(allowed_token_ids=(3, 49152)),
        SamplingParams(banned_token_ids=(49152,)),
        SamplingParams(stop_token_ids=(-5,)),
    ],
)
def test_an_id_outside_the_vocabulary_is_refused(params: SamplingParams) -> None:
    """BL-25: such an id killed the engine for everybody."""
    with pytest.raises(RequestError, match="0 to 49151"):
        params.require_vocabulary(49152)


def test_ids_inside_the_vocabulary_pass() -> None:
    SamplingParams(logit_bias={0: 1.0, 49151: -100.0}).require_vocabulary(49152)


def test_allowing_only_banned_ids_is_refused() -> None:
    params = SamplingParams(allowed_token_ids=(1, 2), banned_token_ids=(2, 1))
    with pytest.raises(RequestError, match="allowed_token_ids"):
        params.require_vocabulary(10)


def test_set_fields_win_over_the_bundles_defaults_zero_included() -> None:
    """BL-31: explicit values win, zero included."""
    defaults = SamplingDefaults(temperature=0.6, top_k=20, repetition_penalty=1.05)
    resolved = SamplingParams(temperature=0.0, repetition_penalty=1.0).resolve(defaults)
    assert resolved.temperature == 0.0
    assert resolved.repetition_penalty == 1.0
    assert resolved.top_k == 20
    assert resolved.top_p == 1.0
    assert resolved.min_p == 0.0


@pytest.mark.parametrize("name", ["allowed_token_ids", "banned_token_ids", "stop_token_ids"])
def test_a_list_of_more_ids_than_the_model_has_is_refused(name: str) -> None:
    """Each answer and step looks at them; repeated ones would only take time."""
    SamplingParams(**{name: (1, 1, 2)}).require_vocabulary(3)
    with pytest.raises(FieldError, match=f"{name} has 4 ids, but the model has 3; send each once"):
        SamplingParams(**{name: (1, 1, 2, 2)}).require_vocabulary(3)
