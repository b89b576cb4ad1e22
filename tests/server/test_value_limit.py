"""Messages of a great many values are refused before anybody looks at each."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from google.protobuf import struct_pb2
from google.protobuf.message import Message

from omruntime.errors import NotBuiltInError, RequestError
from server.grpc_messages import MAX_UNKNOWN_BYTES, require_known_fields
from server.pb import inference_pb2 as pb
from server.pb import inference_pb2_grpc
from server.value_limit import (
    IDS_PER_VALUE,
    MAX_VALUES,
    VALUES_PER_MESSAGE,
    require_few_values,
)
from tests.server.wire_fakes import FakeServer

MANY = MAX_VALUES + 1
MANY_IDS = MAX_VALUES * IDS_PER_VALUE


def prompt_of(num_ids: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[7] * num_ids)))


def struct(value: struct_pb2.Value) -> Message:
    fields = struct_pb2.Struct(fields={"a": value})
    chat = pb.Chat(messages=[{"role": "user", "content": "x"}], template_arguments=fields)
    return pb.TokenizeRequest(chat=chat)


def nested() -> Message:
    """Each list within bounds, all together not."""
    null = struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
    row = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[null] * 700))
    return struct(struct_pb2.Value(list_value=struct_pb2.ListValue(values=[row] * 700)))


def biases() -> Message:
    params = pb.SamplingParams(logit_bias=dict.fromkeys(range(MANY), 1.0))
    return pb.GenerateRequest(sampling_params=params)


def chat() -> Message:
    """A turn takes longer than a number."""
    turns = [pb.ChatMessage(role="user")] * (MAX_VALUES // (VALUES_PER_MESSAGE + 1) + 1)
    return pb.TokenizeRequest(chat=pb.Chat(messages=turns))


@pytest.mark.parametrize("make", [lambda: prompt_of(MANY_IDS), nested, biases, chat])
def test_values_are_counted_through_all_parts(make: Callable[[], Message]) -> None:
    message = make()
    with pytest.raises(RequestError, match=r"more than 524,288 values .*; send less at once"):
        require_few_values(message, message.ByteSize())


def test_as_many_as_the_limit_are_taken() -> None:
    # The prompt and its kind are fields, too.
    most = (MAX_VALUES - 2) * IDS_PER_VALUE
    require_few_values(prompt_of(most), most)
    with pytest.raises(RequestError):
        require_few_values(prompt_of(most + IDS_PER_VALUE), most)


def test_it_is_an_invalid_argument_of_every_rpc(server: FakeServer) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        begun = pb.GenerateStreamRequest(prompt=prompt_of(MANY_IDS).prompt)
        session = pb.SessionRequest(start=pb.SessionStart(request=begun))
        calls = (
            lambda: stub.Generate(prompt_of(MANY_IDS)),
            lambda: stub.Detokenize(pb.DetokenizeRequest(token_ids=[7] * MANY)),
            lambda: list(stub.Session(iter([session]))),
        )
        for call in calls:
            with pytest.raises(grpc.RpcError, match="524,288 values") as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert server.generator.requests == []


def test_a_great_many_unknown_fields_are_not_looked_at_one_by_one() -> None:
    # The field 1023, a number of one byte.
    message = pb.GenerateRequest.FromString(b"\xf8\x3f\x01" * MAX_UNKNOWN_BYTES)
    with pytest.raises(NotBuiltInError, match=f"has {3 * MAX_UNKNOWN_BYTES} bytes of fields that"):
        require_known_fields(message)
