"""PEM: loads certificates and keys into an `ssl.SSLContext`, and says what is wrong with them.

Both ends check their files so at start: gRPC would take damaged ones, and fail at each connection.
"""

from __future__ import annotations

import base64
import re
import ssl
from os import PathLike

_FileName = str | PathLike[str]
# The algorithm identifier of a PKCS 8 key, which stands in the first bytes. Source: RFC 8410, 3.
_EDWARDS = {b"\x06\x03\x2b\x65\x70": "Ed25519", b"\x06\x03\x2b\x65\x71": "Ed448"}
_PKCS8 = re.compile(rb"-----BEGIN PRIVATE KEY-----([A-Za-z0-9+/=\s]+)-----END")


def load_roots(context: ssl.SSLContext, pem: bytes) -> None:
    """Trust certificates; what stands around them, as their names in any script, is skipped.

    Raises:
        ValueError: It holds no certificate, or a damaged one.
    """
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", "ignore"))
    except ssl.SSLError as error:
        raise ValueError(str(error)) from error


def load_pair(context: ssl.SSLContext, cert: _FileName, key: _FileName) -> None:
    """Show a certificate chain, whose key has no passphrase.

    Raises:
        ValueError: One is damaged, or they do not belong together.
    """
    try:
        context.load_cert_chain(cert, key, _no_passphrase)
    except OSError as error:
        raise ValueError(str(error)) from error


def edwards_curve_of(pem: bytes) -> str | None:
    """The name of a key's Edwards curve; None for other keys."""
    for match in _PKCS8.finditer(pem):
        head = base64.b64decode(match[1] + b"==")[:16]
        for identifier, name in _EDWARDS.items():
            if identifier in head:
                return name
    return None


def _no_passphrase() -> str:
    """Called for an encrypted key; otherwise OpenSSL would ask on the terminal."""
    raise ValueError("the key has a passphrase, which nobody can be asked for; remove it")
