"""What no error class foresees."""

from __future__ import annotations

import logging
import re

import grpc
import pytest

from omruntime.errors import CallError, RequestError
from server.client import Client
from server.interceptor import MAX_MESSAGE_CHARACTERS
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


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/omserve.v1.InferenceService/Nothing")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
