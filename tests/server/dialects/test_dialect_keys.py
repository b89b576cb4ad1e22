"""The dialects ask for keys as our own services do."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from server.dialects import kserve_messages, vllm_messages
from server.dialects.names import DIALECT_NAMES
from server.security.callers import Caller
from server.security.key_file import KeyEntry, hash_key, make_key, write_key_file
from tests.server.wire_fakes import FakeServer, settings_of

METHODS = [
    (kserve_messages.KSERVE.full_name, "ServerLive"),
    (kserve_messages.KSERVE.full_name, "ModelStreamInfer"),
    (vllm_messages.VLLM.full_name, "HealthCheck"),
]


def test_every_dialect_has_its_name() -> None:
    assert (kserve_messages.KSERVE.full_name, vllm_messages.VLLM.full_name) == DIALECT_NAMES


@pytest.mark.parametrize(("service", "method"), METHODS)
def test_no_method_without_a_key(tmp_path: Path, service: str, method: str) -> None:
    key, path = make_key(), tmp_path / "keys.json"
    write_key_file(path, [KeyEntry(hash_key(key), Caller("test", "tenant"))])
    with (
        FakeServer(settings_of(api_keys=path)) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        call = channel.stream_stream(f"/{service}/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([b""]), timeout=20))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", f"Bearer {key}"),)
        assert len(list(call(iter([b""]), timeout=20, metadata=metadata))) == 1
