"""ControlCalls: looking at a server's inside and steering it, as Python calls.

What an operator does; `Client` has what its users do. Failed calls raise `CallError`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Protocol, TypeVar

from server.client.messages import translated_errors
from server.pb import control_pb2 as pb
from server.pb import control_pb2_grpc

Event = TypeVar("Event", covariant=True)


class _Stream(Protocol[Event]):
    def __iter__(self) -> Iterator[Event]: ...

    def cancel(self) -> object: ...


class ControlCalls:
    """The calls of one client's channel; as safe to share as the client."""

    def __init__(self, stub: control_pb2_grpc.ControlServiceStub, target: str) -> None:
        """Call through a stub; `target` is for messages."""
        self._stub = stub
        self._target = target

    def buckets(self) -> pb.GetBucketsResponse:
        """Every bucket, and how it was used."""
        with translated_errors(self._target):
            response: pb.GetBucketsResponse = self._stub.GetBuckets(pb.GetBucketsRequest())
        return response

    def watch_load(
        self, interval_s: float = 1.0, details: bool = False
    ) -> Generator[pb.WatchLoadResponse, None, None]:
        """What the server holds and has done, until the generator is closed.

        Args:
            details: Also what only the engine knows.
        """
        message = pb.WatchLoadRequest(interval_s=interval_s, details=details)
        yield from self._read(self._stub.WatchLoad(message))

    def abort_tenant(self, tenant: str) -> int:
        """End all live requests of a tenant soon; how many."""
        with translated_errors(self._target):
            return int(self._stub.Abort(pb.AbortRequest(tenant=tenant)).num_aborted)

    def abort_all(self) -> int:
        """End all live requests soon; how many."""
        with translated_errors(self._target):
            return int(self._stub.Abort(pb.AbortRequest(all=pb.AllRequests())).num_aborted)

    def drain(self, grace_s: float | None = None) -> Generator[pb.DrainResponse, None, None]:
        """Have the server finish what runs and take nothing new; how far it is, until it is done.

        Leaving early does not undo it.

        Args:
            grace_s: What running requests get; None: the server's --drain-timeout-s.
        """
        yield from self._read(self._stub.Drain(pb.DrainRequest(grace_s=grace_s)))

    def flush_prefix_cache(self) -> int:
        """Forget all cached prompt beginnings; the number of blocks."""
        with translated_errors(self._target):
            return int(self._stub.FlushPrefixCache(pb.FlushPrefixCacheRequest()).num_blocks)

    def set_log_level(self, level: pb.LogLevel) -> pb.LogLevel:
        """Have the server log from a level on; the level before."""
        with translated_errors(self._target):
            response: pb.SetLogLevelResponse = self._stub.SetLogLevel(
                pb.SetLogLevelRequest(level=level)
            )
        return response.previous_level

    def dump_state(self) -> pb.DumpStateResponse:
        """All that is known of the server's state, and what had to be left out."""
        with translated_errors(self._target):
            response: pb.DumpStateResponse = self._stub.DumpState(pb.DumpStateRequest())
        return response

    def _read(self, call: _Stream[Event]) -> Generator[Event, None, None]:
        try:
            with translated_errors(self._target):
                yield from call
        finally:
            call.cancel()
