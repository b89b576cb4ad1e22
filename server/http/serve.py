"""The HTTP port: a uvicorn server inside the running event loop.

The socket opens before the bundle is loaded, like the gRPC port, so that probes get an answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from omruntime.errors import ConfigError
from omruntime.limits import longest_served
from server.control.load_watch import LoadWatch
from server.grpc_server import MAX_HEADER_BYTES
from server.http.accept_failures import AcceptFailures
from server.http.app import build_http_app
from server.http.connection import bounded_connection
from server.http.gateway import Gateway
from server.http.origin_recorder import OriginRecorder
from server.lifecycle import Lifecycle
from server.seams import EngineLike
from server.security.access import OPEN_ACCESS, Access
from server.settings import MIB, Settings, bare_host

# Connections that may wait to be taken, as when many clients begin at once.
BACKLOG = 1024
# Of those, as many are taken before other work gets its turn. Without a free file descriptor
# asyncio fails as often, and each failure tries as often again.
ACCEPTS_AT_ONCE = 16
# Idle connections of clients are kept so long; longer than common pools wait between requests.
KEEP_ALIVE_S = 75


class _Server(uvicorn.Server):
    """Leaves the signals to the process that it runs in."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


@dataclass(slots=True)
class HttpServer:
    """A running server.

    Attributes:
        port: The port that is listened on.
    """

    port: int
    _server: _Server
    _task: asyncio.Task[None]

    async def stop(self, grace_s: float) -> None:
        """Close the port; open connections get `grace_s` seconds to finish."""
        self._server.should_exit = True
        done, _ = await asyncio.wait((self._task,), timeout=grace_s)
        if not done:
            self._server.force_exit = True
            await asyncio.wait((self._task,), timeout=grace_s)


async def start_http_server(
    settings: Settings, lifecycle: Lifecycle, engine: EngineLike, access: Access = OPEN_ACCESS
) -> HttpServer:
    """Open the port and answer on it.

    Args:
        access: Who may call; by default everybody, without TLS.

    Raises:
        ConfigError: The port cannot be opened.
    """
    assert settings.http_port is not None, "the gateway is off"
    listener = _listen(bare_host(settings.host), settings.http_port)
    model = settings.served_model_name or engine.manifest.model.name
    longest = longest_served(engine.limits, engine.manifest)
    gateway = Gateway(lifecycle, model, longest, settings.tool_parser, settings.reasoning_parser)
    watch = LoadWatch(lifecycle, engine, access, settings.engine.is_simulated)
    app = build_http_app(gateway, watch, settings.max_message_mib * MIB, access.keys)
    config = uvicorn.Config(
        app if settings.otlp_endpoint is None else OriginRecorder(app),
        # By name, since another parser would come with its own bounds.
        http=bounded_connection(settings.slow_reader_timeout_s),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        # Nothing is decided by the client's address, so no header may set it.
        proxy_headers=False,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=ACCEPTS_AT_ONCE,
    )
    config.load()
    config.ssl = None if access.tls is None else access.tls.context()
    asyncio.get_running_loop().set_exception_handler(AcceptFailures())
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0)
    if task.done():
        task.result()
    listener.listen(BACKLOG)
    return HttpServer(listener.getsockname()[1], server, task)


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error}; the port may be taken, or the address "
            f"is not this machine's; choose another --host or --http-port"
        ) from error
