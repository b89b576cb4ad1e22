"""ClientStubs: the stubs of one channel, each call with the client's metadata."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from omruntime.errors import CallError, RequestError
from server.pb import control_pb2_grpc, inference_pb2_grpc

# A health stream that broke is opened again after this.
HEALTH_RETRY_S = 0.1


class ClientStubs:
    """The stubs of one channel, blocking or not; each call carries the same metadata."""

    def __init__(
        self,
        channel: grpc.Channel | grpc.aio.Channel,
        metadata: tuple[tuple[str, str], ...],
        require_open: Callable[[], None],
    ) -> None:
        """Make the stubs.

        Args:
            metadata: Of all calls but those for health, which no key is asked for.
            require_open: Raises before each call where the client may not be used any more.
        """
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        self.control = control_pb2_grpc.ControlServiceStub(channel)  # type: ignore[no-untyped-call]
        self.health = health_pb2_grpc.HealthStub(channel)
        for stub in (self.inference, self.control):
            for name, call in tuple(vars(stub).items()):
                setattr(stub, name, _guarded(partial(call, metadata=metadata), require_open))
        self.health.Watch = _guarded(self.health.Watch, require_open)


def _guarded(call: Callable[..., Any], require_open: Callable[[], None]) -> Callable[..., Any]:
    def guarded(*arguments: Any, **options: Any) -> Any:
        require_open()
        return call(*arguments, **options)

    return guarded


def closed(what: str) -> RequestError:
    """Why a client cannot be used any more; gRPC's own words name neither it nor a way on."""
    return RequestError(f"this {what} is closed; open another one")


def not_ready(target: str, timeout_s: float, reason: str) -> CallError:
    """Why waiting for a server was given up."""
    return CallError(
        "DEADLINE_EXCEEDED", f"{target} was not ready within {timeout_s:g} s: {reason}"
    )
