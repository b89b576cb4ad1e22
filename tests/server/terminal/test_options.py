from __future__ import annotations

import argparse
import dataclasses

import pytest

from omruntime.errors import RequestError
from omruntime.sampling_params import SamplingParams
from server.terminal.options import SAMPLING_HELP, add_sampling_flags, sampling_params_of


def parse(*argv: str) -> SamplingParams:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_sampling_flags(parser)
    return sampling_params_of(parser.parse_args(argv))


def test_no_flag_means_every_default() -> None:
    assert parse() == SamplingParams()


def test_every_field_has_a_flag_and_help() -> None:
    assert SAMPLING_HELP.keys() == {f.name for f in dataclasses.fields(SamplingParams)}


def test_every_flag() -> None:
    argv = (
        "--max-new-tokens 9 --min-new-tokens 1 --temperature 0 --top-p 0.5 --top-k 0 --min-p 0.1 "
        "--seed 0 --presence-penalty -1 --frequency-penalty 1 --repetition-penalty 1.1 "
        "--logit-bias 5=-1.5 --logit-bias 6=2 --allowed-token-ids 1,2 --banned-token-ids 3 --n 2 "
        "--logprobs 0 --stop a, --stop b --stop-token-ids 4,5 --include-stop --ignore-eos "
        "--no-skip-special-tokens"
    )
    assert parse(*argv.split()) == SamplingParams(
        max_new_tokens=9,
        min_new_tokens=1,
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        min_p=0.1,
        seed=0,
        presence_penalty=-1.0,
        frequency_penalty=1.0,
        repetition_penalty=1.1,
        logit_bias={5: -1.5, 6: 2.0},
        allowed_token_ids=(1, 2),
        banned_token_ids=(3,),
        n=2,
        logprobs=0,
        stop=("a,", "b"),
        stop_token_ids=(4, 5),
        include_stop=True,
        ignore_eos=True,
        skip_special_tokens=False,
    )


@pytest.mark.parametrize(
    "argv",
    [("--logit-bias", "5"), ("--logit-bias", "a=1"), ("--stop-token-ids", "x"), ("--n", "1.5")],
)
def test_wrong_forms(argv: tuple[str, str]) -> None:
    with pytest.raises(argparse.ArgumentError):
        parse(*argv)


def test_wrong_values() -> None:
    with pytest.raises(RequestError, match="top_p"):
        parse("--top-p", "2")
