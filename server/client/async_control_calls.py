"""AsyncControlCalls: `ControlCalls` for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol, TypeVar

from server.client.messages import translated_errors
from server.pb import control_pb2 as pb
from server.pb import control_pb2_grpc

Event = TypeVar("Event", covariant=True)


class _Stream(Protocol[Event]):
    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> object: ...


class AsyncControlCalls:
    """The calls of one client's channel, within its event loop."""

    def __init__(self, stub: control_pb2_grpc.ControlServiceStub, target: str) -> None:
        """Call through a stub; `target` is for messages."""
        self._stub = stub
        self._target = target

    async def buckets(self) -> pb.GetBucketsResponse:
        """As `ControlCalls.buckets`."""
        with translated_errors(self._target):
            response: pb.GetBucketsResponse = await self._stub.GetBuckets(pb.GetBucketsRequest())
        return response

    async def watch_load(
        self, interval_s: float = 1.0, details: bool = False
    ) -> AsyncGenerator[pb.WatchLoadResponse, None]:
        """As `ControlCalls.watch_load`; wrap it in `contextlib.aclosing` when leaving early."""
        message = pb.WatchLoadRequest(interval_s=interval_s, details=details)
        async with aclosing(self._read(self._stub.WatchLoad(message))) as events:
            async for event in events:
                yield event

    async def abort_tenant(self, tenant: str) -> int:
        """As `ControlCalls.abort_tenant`."""
        with translated_errors(self._target):
            return int((await self._stub.Abort(pb.AbortRequest(tenant=tenant))).num_aborted)

    async def abort_all(self) -> int:
        """As `ControlCalls.abort_all`."""
        message = pb.AbortRequest(all=pb.AllRequests())
        with translated_errors(self._target):
            return int((await self._stub.Abort(message)).num_aborted)

    async def drain(self, grace_s: float | None = None) -> AsyncGenerator[pb.DrainResponse, None]:
        """As `ControlCalls.drain`; wrap it in `contextlib.aclosing` when leaving early."""
        message = pb.DrainRequest(grace_s=grace_s)
        async with aclosing(self._read(self._stub.Drain(message))) as events:
            async for event in events:
                yield event

    async def flush_prefix_cache(self) -> int:
        """As `ControlCalls.flush_prefix_cache`."""
        message = pb.FlushPrefixCacheRequest()
        with translated_errors(self._target):
            return int((await self._stub.FlushPrefixCache(message)).num_blocks)

    async def set_log_level(self, level: pb.LogLevel) -> pb.LogLevel:
        """As `ControlCalls.set_log_level`."""
        with translated_errors(self._target):
            response: pb.SetLogLevelResponse = await self._stub.SetLogLevel(
                pb.SetLogLevelRequest(level=level)
            )
        return response.previous_level

    async def dump_state(self) -> pb.DumpStateResponse:
        """As `ControlCalls.dump_state`."""
        with translated_errors(self._target):
            response: pb.DumpStateResponse = await self._stub.DumpState(pb.DumpStateRequest())
        return response

    async def _read(self, call: _Stream[Event]) -> AsyncGenerator[Event, None]:
        try:
            with translated_errors(self._target):
                async for event in call:
                    yield event
        finally:
            call.cancel()
