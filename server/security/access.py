"""Access: who may call, on both ports: TLS, keys, and the keys' limits, put together."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from server.lifecycle import Lifecycle
from server.security.api_keys import ApiKeys
from server.security.caller_limits import CallerLimits
from server.security.tls import ServerTls, open_tls
from server.settings import Settings, is_loopback

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Access:
    """What a port asks of its clients; None: nothing.

    Attributes:
        is_steering_open: Whether callers without keys may steer the server, see `steering.py`.
    """

    tls: ServerTls | None = None
    keys: ApiKeys | None = None
    is_steering_open: bool = True


OPEN_ACCESS = Access()


def open_access(settings: Settings, lifecycle: Lifecycle) -> Access:
    """Read certificates and keys, and let the keys' limits hold for every request.

    Raises:
        ConfigError: A file is missing or damaged.
    """
    keys = None
    if settings.api_keys is not None:
        keys = ApiKeys(settings.api_keys)
        limits = CallerLimits()
        lifecycle.entry = limits.running
        lifecycle.observers.append(limits)
    _warn(settings, keys)
    is_steering_open = is_loopback(settings.host) or settings.tls_client_ca is not None
    return Access(open_tls(settings), keys, is_steering_open)


def _warn(settings: Settings, keys: ApiKeys | None) -> None:
    """Say what an operator may have overlooked."""
    if keys is not None and not len(keys):
        logger.warning("the file of API keys holds none, so nobody may call: om-serve keys add")
    if is_loopback(settings.host):
        return
    if settings.tls_cert is None:
        logger.warning("listening beyond loopback without TLS: prompts and keys can be read")
    if keys is None and settings.tls_client_ca is None:
        logger.warning(
            "listening beyond loopback without --api-keys or --tls-client-ca: anybody may call"
        )
