"""What no error class foresees."""

from __future__ import annotations

import logging
import re

import grpc
import pytest
from google.protobuf import struct_pb2

from omruntime.errors import CallError, RequestError
from server.client import Client
from server.failure import MAX_MESSAGE_CHARACTERS
from server.pb import inference_pb2 as pb
from tests.server.wire_fakes import FakeServer


def test_an_unexpected_exception_is_internal_with_an_id_that_the_log_knows(
    server: FakeServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    server.generator.script = [KeyError("secret detail")]
    with pytest.raises(CallError) as caught:
        client.generate("my prompt")
    message = str(caught.value)
    assert caught.value.code == "INTERNAL"
    assert "secret" not in message
    (error_id,) = re.findall(r"internal error (\w+)", message)
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert error_id in record.getMessage()
    assert record.exc_info is not None
    assert "my prompt" not in caplog.text


def test_a_long_message_keeps_its_code_and_both_ends(server: FakeServer, client: Client) -> None:
    server.generator.script = [RequestError("first " + "ü" * 100_000 + " last")]
    with pytest.raises(CallError) as caught:
        client.generate("x")
    message = str(caught.value)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert message.startswith("first ")
    assert message.endswith(" last")
    assert len(message) <= MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize(
    "method",
    [
        "omserve.v1.InferenceService/Generate",
        "omserve.v1.InferenceService/Tokenize",
        "omserve.v1.ControlService/GetModelInfo",
        "grpc.health.v1.Health/Check",
    ],
)
def test_malformed_bytes_are_invalid_argument_with_one_line_in_the_log(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{method}")(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "3 bytes are not the protobuf message" in caught.value.details()
    (record,) = caplog.records
    assert record.exc_info is None


def test_malformed_bytes_end_a_stream_the_same_way(channel: grpc.Channel) -> None:
    call = channel.unary_stream("/omserve.v1.InferenceService/GenerateStream")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(b"\xff\xff\xff"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# Field 1023 of one byte, of any message.
UNKNOWN = b"\xfa\x3f\x01x"
CHAT = pb.Chat.FromString(UNKNOWN)
PROMPTS = [
    pb.Prompt.FromString(UNKNOWN),
    pb.Prompt(chat=CHAT),
    pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage.FromString(UNKNOWN)])),
    pb.Prompt(chat=pb.Chat(template_arguments=struct_pb2.Struct.FromString(UNKNOWN))),
    pb.Prompt(
        chat=pb.Chat(
            template_arguments=struct_pb2.Struct(fields={"a": struct_pb2.Value.FromString(UNKNOWN)})
        )
    ),
    pb.Prompt(token_ids=pb.TokenIds.FromString(UNKNOWN)),
]


@pytest.mark.parametrize(
    ("method", "raw"),
    [
        *(
            ("InferenceService/Generate", pb.GenerateRequest(prompt=p).SerializeToString())
            for p in PROMPTS
        ),
        ("InferenceService/Tokenize", UNKNOWN),
        ("InferenceService/Tokenize", pb.TokenizeRequest(chat=CHAT).SerializeToString()),
        ("InferenceService/Detokenize", UNKNOWN),
        ("ControlService/GetServerInfo", UNKNOWN),
        ("ControlService/GetModelInfo", UNKNOWN),
        ("ControlService/GetLoad", UNKNOWN),
        ("ControlService/Abort", UNKNOWN),
    ],
)
def test_a_field_of_a_newer_client_is_refused_however_deep(
    channel: grpc.Channel, method: str, raw: bytes
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/omserve.v1.{method}")(raw)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "1023" in caught.value.details()


def test_known_fields_of_every_kind_pass(server: FakeServer, channel: grpc.Channel) -> None:
    message = pb.GenerateRequest(
        prompt=pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])),
        sampling_params=pb.SamplingParams(logit_bias={3: 1.0}, stop=["x"], stop_token_ids=[4]),
    )
    message.prompt.chat.template_arguments.update({"a": [1, {"b": None}]})
    channel.unary_unary("/omserve.v1.InferenceService/Generate")(message.SerializeToString())
    (request,) = server.generator.requests
    assert request.template_arguments == {"a": [1, {"b": None}]}
    assert request.params.logit_bias == {3: 1.0}


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/omserve.v1.InferenceService/Nothing")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_malformed_bytes_end_streams_of_grpcs_own_services(channel: grpc.Channel) -> None:
    """grpc itself answers UNKNOWN, and logs a traceback."""
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    for call in (
        channel.stream_stream(reflection)(iter([b"\xff\xff\xff"])),
        channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\xff\xff\xff"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_what_grpcs_own_services_lack_is_unimplemented(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/grpc.health.v1.Health/List")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
