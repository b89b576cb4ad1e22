"""ClientStubs: the stubs of one channel, each call with the client's metadata."""

from __future__ import annotations

from functools import partial

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from omruntime.errors import CallError
from server.pb import control_pb2_grpc, inference_pb2_grpc

# A health stream that broke is opened again after this.
HEALTH_RETRY_S = 0.1


class ClientStubs:
    """The stubs of one channel, blocking or not; each call carries the same metadata."""

    def __init__(
        self, channel: grpc.Channel | grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]
    ) -> None:
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        self.control = control_pb2_grpc.ControlServiceStub(channel)  # type: ignore[no-untyped-call]
        self.health = health_pb2_grpc.HealthStub(channel)
        for stub in (self.inference, self.control):
            for name, call in tuple(vars(stub).items()):
                setattr(stub, name, partial(call, metadata=metadata))


def not_ready(target: str, timeout_s: float, reason: str) -> CallError:
    """Why waiting for a server was given up."""
    return CallError(
        "DEADLINE_EXCEEDED", f"{target} was not ready within {timeout_s:g} s: {reason}"
    )
