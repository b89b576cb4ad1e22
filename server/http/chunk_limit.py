"""ChunkLimit: a parser of HTTP/1.1 that refuses bodies in a great many chunks.

Each chunk takes about ten microseconds of the loop that sends everybody's tokens, however little
it holds: a body of single bytes would hold it up for seconds.
"""

from __future__ import annotations

import h11

# Those of the largest body by default, 16 MiB, in pieces of a KiB; clients send 4 to 64 KiB. So
# many take a sixth of a second.
MAX_CHUNKS = 16_384


class ChunkLimit(h11.Connection):
    """The server's side of a connection.

    Attributes:
        complaint: What was refused, for the client; empty before.
    """

    def __init__(self, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self.complaint = ""
        self._num_chunks = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event.

        Raises:
            h11.RemoteProtocolError: The client sends something else than HTTP, or too many chunks.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_chunks = 0
        elif isinstance(event, h11.Data) and event.chunk_start:
            self._num_chunks += 1
            if self._num_chunks > MAX_CHUNKS:
                self.complaint = (
                    f"the body has more than {MAX_CHUNKS:,} chunks; send it in larger ones"
                )
                raise h11.RemoteProtocolError(self.complaint)
        return event
