"""Any server with OpenAI's completions or chat route, over HTTP."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from omruntime.errors import CallError, RequestError
from server.client.security import ClientSecurity
from server.terminal.bench.records import TokenCounts
from server.terminal.bench.targets.http_connection import HttpConnections
from server.terminal.bench.targets.target import AskOptions, Piece, TargetFacts
from server.terminal.bench.workload import Content, History, joined

_DONE = "[DONE]"


class OpenAiTarget:
    """See `Target`; streams, one HTTP/1.1 connection for each request in flight."""

    def __init__(
        self, base_url: str, security: ClientSecurity, options: AskOptions, is_chat: bool
    ) -> None:
        """Read the address and the files of the security.

        Raises:
            RequestError: One of them cannot be used.
        """
        self._http = HttpConnections(base_url, dict(security.metadata), _tls_of(security))
        self._options = options
        self._is_chat = is_chat
        self._model = options.model

    async def facts(self) -> TargetFacts:
        """See `Target`; the model is the first of the list unless it was named."""
        listed: Any = await self._http.get_json("/v1/models")
        models = listed.get("data") if isinstance(listed, dict) else None
        entries = [m for m in models or () if isinstance(m, dict) and isinstance(m.get("id"), str)]
        if self._model is None:
            if not entries:
                raise RequestError(f"{self._http.base_url} lists no models; give --model")
            self._model = entries[0]["id"]
        longest = next((m.get("max_model_len") for m in entries if m["id"] == self._model), None)
        route = "chat completions" if self._is_chat else "completions"
        shown = {"target": f"{self._http.base_url}, OpenAI {route}", "model": str(self._model)}
        return TargetFacts(shown, max_model_len=longest if isinstance(longest, int) else None)

    async def ask(self, history: History, num_output_tokens: int) -> AsyncGenerator[Piece, None]:
        """See `Target`."""
        path = "/v1/chat/completions" if self._is_chat else "/v1/completions"
        is_text = isinstance(history[0], str)
        try:
            async with (
                asyncio.timeout(self._options.timeout_s),
                aclosing(
                    self._http.post_events(path, self._body(history, num_output_tokens))
                ) as events,
            ):
                async for data in events:
                    if data != _DONE:
                        yield self._piece_of(data, is_text)
        except TimeoutError:
            raise CallError("TIMEOUT", f"no whole answer in {self._options.timeout_s} s") from None

    def _body(self, history: History, num_output_tokens: int) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self._model,
            "max_tokens": num_output_tokens,
            "temperature": self._options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._options.ignore_eos:
            body["ignore_eos"] = True
        if self._is_chat:
            roles = ("user", "assistant")
            body["messages"] = [
                {"role": roles[number % 2], "content": part} for number, part in enumerate(history)
            ]
        else:
            body["prompt"] = joined(history)
        return body

    def _piece_of(self, data: str, is_text: bool) -> Piece:
        """One event; ids that were sent are answered in text, which ids cannot follow."""
        event = _object(data)
        if "error" in event:
            raise CallError("ERROR", json.dumps(event["error"], ensure_ascii=False))
        choices = event.get("choices") or [{}]
        choice = choices[0] if isinstance(choices[0], dict) else {}
        text = _text_of(choice)
        content: Content = text if is_text else ()
        usage = event.get("usage")
        counts = _counts_of(usage) if isinstance(usage, dict) else None
        reason = choice.get("finish_reason") or ""
        error = "" if reason in ("", "stop", "length") else f"{str(reason).upper()}: not whole"
        return Piece(1 if text else 0, content, str(reason), error, counts)

    async def count_tokens(self, text: str) -> int | None:
        """See `Target`: OpenAI's protocol has no such route."""
        return None

    async def close(self) -> None:
        """See `Target`."""
        await self._http.aclose()


def _object(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise CallError("EVENT", f"got the event {data[:80]!r}, wanted a JSON object")
    return event


def _text_of(choice: dict[str, Any]) -> str:
    """What an answer grew by: its text, or its thought, which costs as much."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        return str(thought) + str(delta.get("content") or "")
    return str(choice.get("text") or "")


def _counts_of(usage: dict[str, Any]) -> TokenCounts:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return TokenCounts(usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)


def _tls_of(security: ClientSecurity) -> ssl.SSLContext | None:
    """For https with roots or a certificate of its own; None: the system's roots."""
    if security.tls_ca is None:
        return None
    try:
        context = ssl.create_default_context(cafile=security.tls_ca)
        if security.tls_cert is not None:
            context.load_cert_chain(security.tls_cert, security.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise RequestError(f"the files of TLS cannot be used: {error}") from error
    return context
