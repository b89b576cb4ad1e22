"""TLS for both ports: the server's certificate, and whose clients it trusts.

Owns the files and their checks. Each new connection gets what the files hold then; connections
that are open keep what they began with.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from omruntime.errors import ConfigError
from server.pem import edwards_curve_of, load_pair, load_roots
from server.security.regular_file import read_regular
from server.security.reloaded import Reloaded
from server.settings import Settings

# Far longer than any thread needs from gRPC's question to its handshake, which are microseconds.
SETTLE_S = 0.1


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where certificate and key are, as PEM.

    Attributes:
        cert: The server's certificate, followed by those between it and a root.
        key: Its key, without a passphrase.
        client_ca: Roots of the clients' certificates, which are then demanded; None: none are.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class _Material:
    """One consistent reading of the files, as each library wants it."""

    grpc: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext


class ServerTls:
    """What both ports need to speak TLS; any thread may use it."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            ConfigError: One is missing or damaged, or certificate and key do not belong together.
        """
        self._demands_clients = files.client_ca is not None
        paths = [path for path in (files.cert, files.key, files.client_ca) if path is not None]
        self._files = Reloaded("the TLS certificates", paths, lambda: _read(files))

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For one gRPC port."""
        first = self._files.current().grpc
        news = CertificateNews(first, lambda: self._files.current().grpc)
        return grpc.dynamic_ssl_server_credentials(first, news.next, self._demands_clients)

    def context(self) -> ssl.SSLContext:
        """For asyncio, which makes every connection through `wrap_bio`."""
        context = _DelegatingContext(ssl.PROTOCOL_TLS_SERVER)
        context.current = lambda: self._files.current().context
        return context


class CertificateNews:
    """What gRPC is told before each handshake: a certificate that it does not have yet, or nothing.

    Whatever it is told, it takes for new, and frees what it had under the handshakes that begin in
    other threads with that, which ends the process. So it hears of changes alone, and not before
    handshakes that were told of none are past that place. It asks for one handshake at a time.
    Source: grpc/grpc issue 36693, open; ssl_security_connector.cc, add_handshakers.
    """

    def __init__(
        self,
        known: grpc.ServerCertificateConfiguration,
        current: Callable[[], grpc.ServerCertificateConfiguration],
    ) -> None:
        self._known = known
        self._current = current

    def next(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificate, if it is another one than last time."""
        found = self._current()
        if found is self._known:
            return None
        time.sleep(SETTLE_S)
        self._known = found
        return found


class _DelegatingContext(ssl.SSLContext):
    """Makes each connection with the context of the moment.

    A context that is in use can take another certificate, but its trusted roots can only grow.
    """

    current: Callable[[], ssl.SSLContext]

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """A connection's TLS state."""
        return self.current().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def open_tls(settings: Settings) -> ServerTls | None:
    """TLS as the settings say; None without.

    Raises:
        ConfigError: A file is missing or damaged.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ServerTls(TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca))


def _read(files: TlsFiles) -> _Material:
    cert, key = _bytes_of("tls_cert", files.cert), _bytes_of("tls_key", files.key)
    curve = edwards_curve_of(key)
    if curve is not None:
        raise ConfigError(
            f"tls_key {files.key} is an {curve} key, which gRPC cannot use; make an ECDSA (P-256) "
            f"or RSA key, and a certificate for it"
        )
    client_ca = None if files.client_ca is None else _bytes_of("tls_client_ca", files.client_ca)
    return _Material(
        grpc.ssl_server_certificate_configuration([(key, cert)], client_ca),
        _context(files, client_ca),
    )


def _context(files: TlsFiles, client_ca: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A session that is taken up again would not show its certificate to changed roots.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        load_pair(context, files.cert, files.key)
    except ValueError as error:
        raise ConfigError(
            f"tls_cert {files.cert} and tls_key {files.key} cannot be used: {error}; wanted a PEM "
            f"certificate chain, the server's own certificate first, and its PEM key"
        ) from error
    if client_ca is None:
        return context
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        load_roots(context, client_ca)
    except ValueError as error:
        raise ConfigError(
            f"tls_client_ca {files.client_ca} cannot be used: {error}; wanted PEM certificates"
        ) from error
    return context


def _bytes_of(name: str, path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise ConfigError(f"{name}: cannot read {path}: {error.strerror or error}") from error
