"""How long to wait before another try, as gRPC carries it: google.rpc.RetryInfo in a status.

The server writes it, the client reads it. How long is the error's to say.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DETAILS_KEY = "grpc-status-details-bin"

# gRPC's own types here are (key, value) pairs.
Metadata = Iterable[tuple[str, str | bytes]]


def retry_metadata(
    code: grpc.StatusCode, message: str, retry_after_s: float | None
) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata of a failed call; none when nothing is known of another try."""
    if retry_after_s is None:
        return ()
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromNanoseconds(int(retry_after_s * 1e9))
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.add().Pack(info)
    return ((DETAILS_KEY, status.SerializeToString()),)


def retry_after_of(metadata: Metadata | None) -> float | None:
    """Seconds that a failed call's trailing metadata asks to wait; None when it does not say."""
    for key, value in metadata or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return _retry_after_in(value)
    return None


def _retry_after_in(details: bytes) -> float | None:
    try:
        status = status_pb2.Status.FromString(details)
        info = error_details_pb2.RetryInfo()
        for detail in status.details:
            if detail.Unpack(info):
                return float(info.retry_delay.ToNanoseconds()) / 1e9
    except DecodeError:
        return None  # another server's; its status alone counts
    return None
