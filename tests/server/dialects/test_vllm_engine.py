"""`vllm.grpc.engine.VllmEngine` over a real socket."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from omruntime.constraint import Constraint
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.dialects.vllm_messages import MESSAGES, VLLM
from server.text import TextDelta
from tests.server.wire_fakes import FakeGenerator, FakeServer, end


def message(name: str, **fields: Any) -> Any:
    return MESSAGES.message_class(name)(**fields)


def call(channel: grpc.Channel, method: str, **fields: Any) -> Any:
    (known,) = (m for m in VLLM.methods if m.name == method)
    make = channel.unary_stream if known.streams_responses else channel.unary_unary
    rpc = make(
        f"/{VLLM.full_name}/{method}",
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=MESSAGES.message_class(known.response).FromString,
    )
    return rpc(message(known.request, **fields), timeout=20)


def prompt(*token_ids: int) -> Any:
    return message("TokenizedInput", original_text="x", input_ids=token_ids)


def test_a_stream_gives_chunks_and_then_the_whole_answer(
    server: FakeServer, channel: grpc.Channel
) -> None:
    params = message(
        "SamplingParams", temperature=0.0, max_tokens=5, seed=0, json_object=True, ignore_eos=False
    )
    events = list(
        call(
            channel,
            "Generate",
            request_id="a",
            tokenized=prompt(4, 5),
            stream=True,
            sampling_params=params,
        )
    )
    assert [list(e.chunk.token_ids) for e in events[:-1]] == [[7], [8]]
    assert [e.chunk.completion_tokens for e in events[:-1]] == [1, 2]
    whole = events[-1].complete
    assert (list(whole.output_ids), whole.finish_reason) == ([7, 8], "stop")
    assert (whole.prompt_tokens, whole.completion_tokens) == (3, 2)
    (request,) = server.generator.requests
    assert (request.request_id, request.token_ids) == ("a", (4, 5))
    assert request.output.omit_text
    assert request.params == SamplingParams(
        temperature=0.0,
        max_new_tokens=5,
        seed=0,
        skip_special_tokens=False,
        constraint=Constraint(json_object=True),
    )


def test_without_the_wish_only_the_whole_answers_come(
    server: FakeServer, channel: grpc.Channel
) -> None:
    server.generator.script = [
        TextDelta(1, "b", (2,)),
        TextDelta(0, "a", (1,)),
        end(1, matched_stop="."),
        end(0, FinishReason.LENGTH),
    ]
    params = message("SamplingParams", n=2, stop=["."])
    events = list(call(channel, "Generate", text="x", sampling_params=params))
    assert [(e.complete.index, e.complete.finish_reason) for e in events] == [
        (1, "stop"),
        (0, "length"),
    ]
    assert events[0].complete.matched_stop_str == "."
    assert not server.generator.requests[0].output.omit_text


def test_abort_ends_a_stream(server: FakeServer, channel: grpc.Channel) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    events = call(channel, "Generate", request_id="a", tokenized=prompt(4), stream=True)
    assert list(next(events).chunk.token_ids) == [1]
    call(channel, "Abort", request_ids=["a", "gone"])
    (whole,) = events
    assert whole.complete.finish_reason == "abort"


def test_cancelling_aborts(server: FakeServer, channel: grpc.Channel) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    events = call(channel, "Generate", tokenized=prompt(4), stream=True)
    next(events)
    events.cancel()
    server.await_that(lambda: not server.generator.live and not server.lifecycle.num_running)


def test_health_and_infos(server: FakeServer, channel: grpc.Channel) -> None:
    assert call(channel, "HealthCheck").healthy
    info = call(channel, "GetModelInfo")
    assert (info.served_model_name, info.max_context_length) == ("org/toy", 128)
    assert info.is_generation
    assert list(info.eos_token_ids) == [0, 2]
    assert call(channel, "GetServerInfo").server_type == "vllm-grpc"
    server.call(server.lifecycle.begin_draining)
    assert not call(channel, "HealthCheck").healthy
    with pytest.raises(grpc.RpcError) as caught:
        list(call(channel, "Generate", text="x"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("fields", "params", "code", "text"),
    [
        ({}, {}, "INVALID_ARGUMENT", "input is not set"),
        ({"mm_inputs": {}}, {}, "UNIMPLEMENTED", "mm_inputs"),
        ({"kv_transfer_params": {}}, {}, "UNIMPLEMENTED", "kv_transfer_params"),
        ({"kv_transfer_params_json": "{}"}, {}, "UNIMPLEMENTED", "kv_transfer_params_json"),
        ({"data_parallel_rank": 1}, {}, "UNIMPLEMENTED", "data_parallel_rank"),
        ({"text": "x"}, {"prompt_logprobs": 1}, "UNIMPLEMENTED", "prompt_logprobs"),
        ({"text": "x"}, {"truncate_prompt_tokens": 1}, "UNIMPLEMENTED", "truncate_prompt"),
        ({"text": "x"}, {"grammar": "root ::= x"}, "UNIMPLEMENTED", "grammar"),
        ({"text": "x"}, {"structural_tag": "x"}, "UNIMPLEMENTED", "structural_tag"),
        ({"text": "x"}, {"logprobs": -1}, "INVALID_ARGUMENT", "logprobs is -1"),
        ({"text": "x"}, {"max_tokens": 0}, "INVALID_ARGUMENT", "max_tokens is 0"),
        (
            {"text": "x"},
            {"max_tokens": 1, "min_tokens": 2},
            "INVALID_ARGUMENT",
            "min_tokens is 2",
        ),
    ],
)
def test_what_is_wrong_or_not_built_in_is_refused_by_name(
    channel: grpc.Channel, fields: dict[str, Any], params: dict[str, Any], code: str, text: str
) -> None:
    sampling = message("SamplingParams", **params)
    with pytest.raises(grpc.RpcError) as caught:
        list(call(channel, "Generate", sampling_params=sampling, **fields))
    assert caught.value.code().name == code
    assert text in caught.value.details()
    assert "new_tokens" not in caught.value.details()


def test_methods_that_are_not_built_in_say_so(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{VLLM.full_name}/GetTokenizer")(b"", timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "GetTokenizer is not built into" in caught.value.details()
