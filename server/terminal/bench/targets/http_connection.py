"""HTTP/1.1 over asyncio, as much of it as streamed answers need; the client installs no library.

Owns sockets and the framing of replies. Connections are kept and used again, as any HTTP client
does: a new one for each request would be measured with it.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from urllib.parse import urlsplit

from omruntime.errors import CallError, RequestError

# Of a status line with its headers, and of the JSON of an error or a list of models.
MAX_HEAD_BYTES = 1 << 16
MAX_BODY_BYTES = 1 << 20
_READ_BYTES = 1 << 16

# No connection, one that ends amid a reply, and replies that are no HTTP.
_BROKEN = (OSError, ValueError, EOFError, asyncio.LimitOverrunError)


@dataclass(slots=True)
class _Reply:
    """The head of a reply, and the connection behind which its body comes."""

    status: int
    headers: Message
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_complete: bool = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            async for chunk in self._chunked():
                yield chunk
            self.is_complete = True
            return
        length = self.headers.get("content-length")
        left = None if length is None else int(length)
        while left is None or left > 0:
            data = await self.reader.read(_READ_BYTES if left is None else min(left, _READ_BYTES))
            if not data:
                if left is None:
                    return
                raise asyncio.IncompleteReadError(b"", left)
            left = None if left is None else left - len(data)
            yield data
        self.is_complete = True

    async def _chunked(self) -> AsyncGenerator[bytes, None]:
        while True:
            line = await self.reader.readuntil(b"\n")
            size = int(line.partition(b";")[0].strip(), 16)
            if size == 0:
                while (await self.reader.readuntil(b"\n")).strip():
                    pass  # trailers, which nobody needs
                return
            yield await self.reader.readexactly(size)
            await self.reader.readuntil(b"\n")

    async def whole(self) -> bytes:
        """The body of a short reply; what is beyond the limit is left."""
        body = b""
        async for chunk in self.chunks():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                break
        return body

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow on the connection."""
        return self.is_complete and "close" not in self.headers.get("connection", "").lower()


class HttpConnections:
    """Connections to one server, used from one event loop."""

    def __init__(
        self, base_url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None
    ) -> None:
        """Read the address; nothing is sent yet.

        Args:
            base_url: With or without the `/v1` that OpenAI's clients want.
            headers: Of every request.
            tls: For https; None takes the system's roots.

        Raises:
            RequestError: The address has another form.
        """
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        parts = urlsplit(self.base_url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query:
            raise RequestError(
                f"--base-url is {base_url!r}, wanted http://host:port or https://host:port"
            )
        is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, port or (443 if is_tls else 80)
        self._path = parts.path
        self._tls = (tls or ssl.create_default_context()) if is_tls else None
        self._headers = {"host": parts.netloc.rpartition("@")[2], **headers}
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get_json(self, path: str) -> object:
        """The JSON of a GET.

        Raises:
            CallError: It cannot be reached, or refuses; the code is `HTTP` and the status.
        """
        reply = None
        try:
            reply = await self._send(f"GET {self._path}{path} HTTP/1.1", b"")
            body = await reply.whole()
        except _BROKEN as error:
            raise self._broken(error) from error
        finally:
            self._give_back(reply)
        _require_ok(reply, body)
        return _json(body)

    async def post_events(self, path: str, body: object) -> AsyncGenerator[str, None]:
        """The data of server-sent events, each as it arrives.

        Raises:
            CallError: As `get_json`, or the stream broke off.
        """
        data = json.dumps(body).encode()
        reply = None
        try:
            reply = await self._send(f"POST {self._path}{path} HTTP/1.1", data)
            if reply.status != 200:
                _require_ok(reply, await reply.whole())
            async for line in _lines(reply):
                if line.startswith(b"data:"):
                    yield line[5:].strip().decode()
        except _BROKEN as error:
            raise self._broken(error) from error
        finally:
            self._give_back(reply)

    async def aclose(self) -> None:
        """Close what is idle; running requests close theirs."""
        for _, writer in self._idle:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        self._idle.clear()

    async def _send(self, line: str, body: bytes) -> _Reply:
        """Send a request and read the head of its reply."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                try:
                    return await self._exchange(reader, writer, line, body)
                except (ConnectionError, asyncio.IncompleteReadError) as error:
                    # Closed by the server while it was idle, and without a word.
                    if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                        raise
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._tls, limit=MAX_HEAD_BYTES
        )
        return await self._exchange(reader, writer, line, body)

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str, body: bytes
    ) -> _Reply:
        headers = {**self._headers, "content-length": str(len(body))}
        if body:
            headers["content-type"] = "application/json"
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        try:
            writer.write(f"{line}\r\n{head}\r\n".encode() + body)
            await writer.drain()
            status, headers_of_reply = _head_of(await reader.readuntil(b"\r\n\r\n"))
        except BaseException:
            writer.close()
            raise
        return _Reply(status, headers_of_reply, reader, writer)

    def _give_back(self, reply: _Reply | None) -> None:
        """Keep the connection for another request, or close it."""
        if reply is None:
            return
        if reply.is_reusable:
            self._idle.append((reply.reader, reply.writer))
        else:
            reply.writer.close()

    def _broken(self, error: Exception) -> CallError:
        return CallError("CONNECTION", f"{self.base_url}: {str(error) or repr(error)}")


def _head_of(raw: bytes) -> tuple[int, Message]:
    """Status and headers.

    Raises:
        ValueError: This is no HTTP/1.
    """
    first, _, rest = raw.partition(b"\r\n")
    version, _, status = first.decode("latin-1").partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"the reply begins with {first[:40]!r}, wanted HTTP/1.1")
    return int(status[:3]), http.client.parse_headers(io.BytesIO(rest))


async def _lines(reply: _Reply) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for chunk in reply.chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _require_ok(reply: _Reply, body: bytes) -> None:
    """Raise what a refusal says, in OpenAI's words where it has them."""
    if reply.status == 200:
        return
    text = body[:2000].decode(errors="replace")
    with suppress(ValueError):
        found = json.loads(body)
        inner = found.get("error", found) if isinstance(found, dict) else found
        if isinstance(inner, dict):
            text = str(inner.get("message", inner))
    raise CallError(f"HTTP {reply.status}", " ".join(text.split()) or "no reason is given")


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError as error:
        raise CallError("HTTP 200", f"the reply is no JSON: {body[:80]!r}") from error
