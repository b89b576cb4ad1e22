"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from server.client import Client
from tests.server.wire_fakes import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A loaded server over a scripted generator."""
    with FakeServer() as running:
        yield running


@pytest.fixture
def channel(server: FakeServer) -> Iterator[grpc.Channel]:
    """A plain channel to `server`, for messages that the client would not send."""
    with grpc.insecure_channel(server.target) as opened:
        yield opened


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    """A client of `server`."""
    with Client(server.target) as opened:
        yield opened
