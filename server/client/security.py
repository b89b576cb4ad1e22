"""ClientSecurity: how a client proves who it is, and whom it believes.

Owns the files and the key, and the channels made of them.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import grpc
import grpc.aio

from omruntime.errors import RequestError
from server.client.messages import CHANNEL_OPTIONS
from server.pem import load_pair, load_roots

KEY_VARIABLE = "OMSERVE_API_KEY"

FileName: TypeAlias = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """TLS and API key of a client; the default has neither.

    Attributes:
        tls_ca: PEM roots that the server's certificate must come from; None: no TLS. For a
            server with a public certificate, the system's file, such as
            /etc/ssl/certs/ca-certificates.crt.
        tls_cert, tls_key: The client's own certificate and key, both or neither, for servers
            that demand one.
        tls_server_name: Name that the server's certificate must have; None: the target's host.
        api_key: Sent with every call; without TLS everybody on the way can read it.
    """

    tls_ca: FileName | None = None
    tls_cert: FileName | None = None
    tls_key: FileName | None = None
    tls_server_name: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check that the parts go together.

        Raises:
            RequestError: They do not, or the key holds what no header can.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise RequestError("tls_cert and tls_key belong together; give both, or neither")
        if self.tls_ca is None and (self.tls_cert or self.tls_server_name):
            raise RequestError("tls_cert and tls_server_name need tls_ca; give the server's roots")
        key = self.api_key
        if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
            raise RequestError(
                f"the API key has {len(key)} characters, wanted at least one, all of them visible "
                f"ASCII"
            )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return () if self.api_key is None else (("authorization", f"Bearer {self.api_key}"),)

    def open_channel(self, target: str) -> grpc.Channel:
        """A blocking channel; connects by itself.

        Raises:
            RequestError: A file cannot be read, or holds no certificate or key.
        """
        if self.tls_ca is None:
            return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(target, self._credentials(), options=self._options())

    def open_aio_channel(self, target: str) -> grpc.aio.Channel:
        """As `open_channel`, for asyncio."""
        if self.tls_ca is None:
            return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(target, self._credentials(), options=self._options())

    def _credentials(self) -> grpc.ChannelCredentials:
        roots, key, cert = map(_read, (self.tls_ca, self.tls_key, self.tls_cert))
        self._require_usable(roots)
        return grpc.ssl_channel_credentials(roots, key, cert)

    def _require_usable(self, roots: bytes | None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            load_roots(context, roots or b"")
        except ValueError as error:
            raise RequestError(
                f"tls_ca {self.tls_ca} cannot be used: {error}; wanted PEM certificates that the "
                f"server's comes from"
            ) from error
        if self.tls_cert is None or self.tls_key is None:
            return
        try:
            load_pair(context, self.tls_cert, self.tls_key)
        except ValueError as error:
            raise RequestError(
                f"tls_cert {self.tls_cert} and tls_key {self.tls_key} cannot be used: {error}; "
                f"wanted this client's PEM certificate and its PEM key"
            ) from error

    def _options(self) -> tuple[tuple[str, object], ...]:
        if self.tls_server_name is None:
            return CHANNEL_OPTIONS
        return (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", self.tls_server_name))


def require_security(security: object) -> ClientSecurity:
    """Check the type, which nothing else does before the first use.

    Raises:
        RequestError: It is something else.
    """
    if not isinstance(security, ClientSecurity):
        raise RequestError(
            f"security is a {type(security).__name__}, wanted ClientSecurity(tls_ca=…, api_key=…)"
        )
    return security


def read_api_key(path: Path | None, environ: Mapping[str, str]) -> str | None:
    """The key of a file, else that of the variable OMSERVE_API_KEY, else None.

    Raises:
        RequestError: The file cannot be read.
    """
    if path is None:
        return environ.get(KEY_VARIABLE) or None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read the API key from {path}: {error}") from error


def _read(path: FileName | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error
