"""Domain objects survive the wire; the wire has a field for each of theirs."""

from __future__ import annotations

import dataclasses
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omruntime.errors import RequestError
from omruntime.outputs import RequestTimings
from omruntime.sampling_params import MAX_SEED, SamplingParams
from omruntime.scheduling.turn import Scheduling, Urgency
from omruntime.sequence import FinishReason
from omruntime.step import TokenLogprobs
from server.client.arguments import CallOptions
from server.client.messages import generate_request, generate_stream_request
from server.grpc_messages import (
    choice_to,
    delta_from,
    sampling_params_from,
    sampling_params_to,
    stream_response_to,
    text_request_from,
)
from server.pb import inference_pb2 as pb
from server.text import ChatMessage, OutputOptions, PromptToken, TextDelta, Usage

token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
durations = st.floats(0, 1e6)
# As floats of 32 bits, which is what the wire holds.
biases = st.dictionaries(st.integers(0, 99), st.floats(-100, 100, width=32), max_size=3)

params = st.builds(
    SamplingParams,
    max_new_tokens=st.none() | st.integers(5, 2**31 - 1),
    min_new_tokens=st.integers(0, 5),
    temperature=st.none() | st.floats(0, 9),
    top_p=st.none() | st.floats(0.01, 1),
    top_k=st.none() | st.integers(-1, 2**31 - 1),
    min_p=st.none() | st.floats(0, 1),
    seed=st.none() | st.integers(0, MAX_SEED),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.none() | st.floats(0.1, 9),
    logit_bias=biases,
    allowed_token_ids=token_ids,
    banned_token_ids=token_ids,
    n=st.integers(1, 128),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=3).map(tuple),
    stop_token_ids=token_ids,
    include_stop=st.booleans(),
    ignore_eos=st.booleans(),
    skip_special_tokens=st.booleans(),
)

deltas = st.builds(
    TextDelta,
    index=st.integers(0, 127),
    text=st.text(max_size=5),
    token_ids=token_ids,
    logprobs=st.lists(
        st.builds(
            TokenLogprobs,
            st.floats(-99, 0),
            st.lists(st.tuples(st.integers(0, 99), st.floats(-99, 0)), max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    matched_stop=st.none() | st.text(max_size=3) | st.integers(0, 99),
    error=st.text(max_size=3),
    usage=st.none() | st.builds(Usage, *[st.integers(0, 2**31 - 1)] * 3),
    timings=st.none() | st.builds(RequestTimings, durations, durations, durations),
    prompt_logprobs=st.lists(
        st.builds(
            PromptToken,
            st.integers(0, 99),
            st.none() | st.floats(-99, 0),
            st.none() | st.integers(1, 99),
            st.lists(st.tuples(st.integers(0, 99), st.floats(-99, 0)), max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
)

seconds = st.none() | st.floats(0.001, 1e6)
wishes_about_turns = st.builds(
    Scheduling,
    urgency=st.sampled_from(Urgency),
    tenant=st.text(max_size=3),
    queue_timeout_s=seconds,
    ttft_target_s=seconds,
    itl_target_s=seconds,
)
outputs = st.builds(OutputOptions, *[st.booleans()] * 4)


@given(params)
def test_sampling_params_survive_the_wire(wishes: SamplingParams) -> None:
    sent = sampling_params_to(wishes).SerializeToString()
    assert sampling_params_from(pb.SamplingParams.FromString(sent)) == wishes


@given(deltas)
def test_deltas_survive_the_wire(delta: TextDelta) -> None:
    event = stream_response_to("r", "m", delta).SerializeToString()
    assert delta_from(pb.GenerateStreamResponse.FromString(event)) == delta
    choice = choice_to(delta).SerializeToString()
    assert delta_from(pb.Choice.FromString(choice)) == dataclasses.replace(delta, error="")


@given(wishes_about_turns, outputs, st.booleans())
def test_options_survive_the_wire(
    scheduling: Scheduling, output: OutputOptions, bypasses: bool
) -> None:
    options = CallOptions(
        scheduling=scheduling, output=output, bypasses_prefix_cache=bypasses, request_id="r"
    )
    sent = generate_stream_request("text", SamplingParams(), options).SerializeToString()
    request = text_request_from(pb.GenerateStreamRequest.FromString(sent))
    assert (request.scheduling, request.output) == (scheduling, output)
    assert request.bypasses_prefix_cache == bypasses


def test_the_wire_has_the_fields_of_the_domain() -> None:
    wire = {f.name for f in pb.SamplingParams.DESCRIPTOR.fields}
    assert wire == {f.name for f in dataclasses.fields(SamplingParams)}
    output = {f.name for f in pb.OutputOptions.DESCRIPTOR.fields}
    assert output == {f.name for f in dataclasses.fields(OutputOptions)}
    names = list(pb.FinishReason.keys())
    assert {r.name for r in FinishReason} == {
        name.removeprefix("FINISH_REASON_") for name in names if "UNSP" not in name
    }


def test_nothing_set_means_every_default() -> None:
    assert sampling_params_from(pb.SamplingParams()) == SamplingParams()
    assert sampling_params_to(SamplingParams()) == pb.SamplingParams()


def test_both_request_messages_have_the_same_fields() -> None:
    def shape(message: type[pb.GenerateRequest | pb.GenerateStreamRequest]) -> object:
        return [(f.name, f.number, f.type) for f in message.DESCRIPTOR.fields]

    assert shape(pb.GenerateRequest) == shape(pb.GenerateStreamRequest)


@pytest.mark.parametrize(
    "prompt", ["text", "", (1, 2), [ChatMessage("user", "hi"), ChatMessage("assistant", "")]]
)
def test_prompts_survive_the_wire(prompt: str | tuple[int, ...] | list[ChatMessage]) -> None:
    is_chat = isinstance(prompt, list)
    arguments = {"a": {"b": [1, 2.5, "c", None, True]}} if is_chat else None
    options = CallOptions("r", "m", "salt", arguments)
    request = text_request_from(generate_stream_request(prompt, SamplingParams(seed=3), options))
    given_prompt = (request.text, request.token_ids, request.messages)
    assert [p for p in given_prompt if p is not None] == [
        prompt if isinstance(prompt, str) else tuple(prompt)
    ]
    assert (request.request_id, request.cache_salt, request.params.seed) == ("r", "salt", 3)
    assert request.template_arguments == arguments


@pytest.mark.parametrize(
    ("prompt", "wishes"),
    [
        ([1, "a"], SamplingParams()),
        ((2**31,), SamplingParams()),
        ("\udcff", SamplingParams()),
        ("a", SamplingParams(max_new_tokens=2**31)),
        ("a", SamplingParams(stop=("\udcff",))),
    ],
)
def test_what_cannot_be_sent_is_refused(prompt: str, wishes: SamplingParams) -> None:
    with pytest.raises(RequestError):
        generate_request(prompt, wishes, CallOptions())


def test_made_request_ids_differ_and_have_the_form_that_is_asked_of_others() -> None:
    message = pb.GenerateRequest(prompt=pb.Prompt(text="x"))
    first, second = text_request_from(message), text_request_from(message)
    assert first.request_id != second.request_id
    assert set(first.request_id) <= set(string.hexdigits)


@pytest.mark.parametrize("request_id", ["a", "A-z_0.9:/", "x" * 128])
def test_request_ids_that_are_taken(request_id: str) -> None:
    message = pb.GenerateRequest(prompt=pb.Prompt(text="x"), request_id=request_id)
    assert text_request_from(message).request_id == request_id


@pytest.mark.parametrize("request_id", ["", "x" * 129, "a b", "a\n", "ä", "a#0"])
def test_request_ids_that_are_refused(request_id: str) -> None:
    """BL-39."""
    with pytest.raises(RequestError, match="request_id"):
        text_request_from(pb.GenerateRequest(prompt=pb.Prompt(text="x"), request_id=request_id))
