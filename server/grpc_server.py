"""The gRPC server: options, services, health and reflection on one port.

Owns the socket. Health follows the lifecycle: SERVING only while requests are taken.
"""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from omruntime.errors import ConfigError
from server.control.service import Controlled, GrpcControlService
from server.dialects.names import DIALECT_NAMES
from server.dialects.registration import add_dialects, reflection_pool
from server.grpc_service import GrpcInferenceService
from server.interceptor import ErrorInterceptor
from server.lifecycle import Lifecycle, ServerState
from server.origin import OriginInterceptor
from server.pb import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc
from server.seams import EngineLike
from server.security.access import OPEN_ACCESS, Access
from server.security.auth_interceptor import ApiKeyInterceptor
from server.settings import MIB, Settings

SERVICE_NAMES = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
    control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name,
)


READY_SERVICE = "ready"
"""Asked of grpc.health.v1 it is SERVING only while the server is not overloaded, too.

The other names stay SERVING under load: what restarts a process that is NOT_SERVING, as
Kubernetes' liveness probes do, must not do so because it is busy.
"""

# Of one request, its headers all told; also for HTTP. Keys, traces and cookies of a mesh take a
# few KiB. gRPC's own soft limit lies below its hard one, between which it refuses at random.
MAX_HEADER_BYTES = 16 << 10


# Of one connection, beside its requests: health, load, aborts, and those whose reader is slow with
# the last event.
SPARE_STREAMS = 128


def channel_options(max_message_mib: int, max_requests: int) -> tuple[tuple[str, int], ...]:
    """The C-core options of our server.

    Args:
        max_message_mib: Largest message taken, MiB. gRPC's own 4 MiB would refuse a prompt of a
            million tokens as text; no bound at all would let one client take all memory.
        max_requests: As many as the engine may run and queue. A client's library holds back calls
            beyond the bound of a connection, without a word; so it lies where a full queue refuses
            with one, and only bounds what a single connection can cost.
    """
    return (
        ("grpc.max_concurrent_streams", max_requests + SPARE_STREAMS),
        ("grpc.max_receive_message_length", max_message_mib * MIB),
        # Replies are bounded where they are made, with a message that says what to do instead.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_HEADER_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_HEADER_BYTES),
        # Ordinary clients ping every 10 s and more through a long call that sends nothing, or
        # while idle. By default two early pings end the connection.
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 0),
        # A peer that vanished without a word is noticed by our own pings, and its requests end.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # With it, a second server on the same port would silently take half of the connections.
        ("grpc.so_reuseport", 0),
    )


class _HealthFollower:
    """Sets the health of all services after each change of the lifecycle, in order."""

    def __init__(self, servicer: health.aio.HealthServicer, lifecycle: Lifecycle) -> None:
        self._servicer = servicer
        self._lifecycle = lifecycle
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, state: ServerState) -> None:
        task = asyncio.create_task(self.publish(state))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def publish(self, state: ServerState) -> None:
        """Set every service's health."""
        status = _status(state is ServerState.SERVING)
        for name in (health.OVERALL_HEALTH, *SERVICE_NAMES, *DIALECT_NAMES):
            await self._servicer.set(name, status)
        await self._servicer.set(READY_SERVICE, _status(self._lifecycle.is_ready))


def _status(is_serving: bool) -> int:
    reply = health_pb2.HealthCheckResponse
    return int(reply.SERVING if is_serving else reply.NOT_SERVING)


async def start_grpc_server(
    settings: Settings, lifecycle: Lifecycle, engine: EngineLike, access: Access = OPEN_ACCESS
) -> tuple[grpc.aio.Server, int]:
    """Open the port and answer on it; health is NOT_SERVING until the lifecycle says else.

    Args:
        access: Who may call; by default everybody, without TLS.

    Returns:
        The running server and its port.

    Raises:
        ConfigError: The port cannot be opened.
    """
    model = settings.served_model_name or engine.manifest.model.name
    interceptors: list[grpc.aio.ServerInterceptor] = [ErrorInterceptor()]
    if access.keys is not None:
        interceptors.insert(0, ApiKeyInterceptor(access.keys))
    if settings.otlp_endpoint is not None:
        interceptors.insert(0, OriginInterceptor())
    limits = engine.limits
    options = channel_options(
        settings.max_message_mib, limits.max_queued_requests + limits.max_num_seqs
    )
    server = grpc.aio.server(interceptors=interceptors, options=options)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        GrpcInferenceService(lifecycle, model, settings.slow_reader_timeout_s), server
    )
    control_pb2_grpc.add_ControlServiceServicer_to_server(  # type: ignore[no-untyped-call]
        GrpcControlService(Controlled(settings, lifecycle, engine, access), model), server
    )
    add_dialects(server, (lifecycle, engine), model, settings.slow_reader_timeout_s)
    servicer = health.aio.HealthServicer()
    follower = _HealthFollower(servicer, lifecycle)
    await follower.publish(lifecycle.state)
    lifecycle.listeners.append(follower)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection(
        (*SERVICE_NAMES, *DIALECT_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME),
        server,
        pool=reflection_pool(),
    )
    port = _open_port(server, settings.address(settings.grpc_port), access)
    await server.start()
    return server, port


def _open_port(server: grpc.aio.Server, address: str, access: Access) -> int:
    try:
        if access.tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, access.tls.grpc_credentials())
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {address}: the port may be taken, or the address is not this "
            f"machine's; choose another --host or --grpc-port"
        ) from error
    if not port:
        raise ConfigError(f"cannot listen on {address}; choose another --host or --grpc-port")
    assert isinstance(port, int)
    return port
