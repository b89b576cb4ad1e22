"""The Python client: the RPCs of a server as calls with the domain's types.

`Client` blocks, `AsyncClient` is the same for asyncio. Needs no engine, no tokenizer and no bundle
on this machine.
"""

from __future__ import annotations

from server.client.arguments import CallOptions
from server.client.async_client import AsyncClient
from server.client.async_session import AsyncClientSession
from server.client.client import Client
from server.client.retries import Retries
from server.client.security import ClientSecurity
from server.client.session import ClientSession

__all__ = [
    "AsyncClient",
    "AsyncClientSession",
    "CallOptions",
    "Client",
    "ClientSecurity",
    "ClientSession",
    "Retries",
]
