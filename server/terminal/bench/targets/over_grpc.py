"""A server of omserve over gRPC, through the Python client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from server.client import AsyncClient, CallOptions, ClientSecurity
from server.terminal.bench.targets.deltas import params_of, piece_of
from server.terminal.bench.targets.target import SIMULATED, AskOptions, Piece, TargetFacts
from server.terminal.bench.workload import History, joined
from server.text import OutputOptions


class GrpcTarget:
    """See `Target`; all requests over one connection, none tried again."""

    def __init__(self, target: str, security: ClientSecurity, options: AskOptions) -> None:
        """Prepare the connection.

        Raises:
            RequestError: As `AsyncClient`.
        """
        self._client = AsyncClient(target, security)
        self._target = target
        self._options = options

    async def facts(self) -> TargetFacts:
        """See `Target`."""
        server, model = await self._client.server_info(), await self._client.model_info()
        note = SIMULATED if server.is_simulated else ""
        shown = {
            "target": f"{self._target}, gRPC, omserve {server.version}",
            "device": server.device + note,
            "model": f"{model.name} ({model.architecture}, {model.dtype}), up to "
            f"{model.max_model_len} tokens, {model.max_num_seqs} answers at once",
        }
        return TargetFacts(shown, model.vocab_size, model.max_model_len, tuple(model.eos_token_ids))

    async def ask(self, history: History, num_output_tokens: int) -> AsyncGenerator[Piece, None]:
        """See `Target`."""
        prompt, options = joined(history), self._options
        is_text = isinstance(prompt, str)
        # What nobody reads costs the server and the client time.
        output = OutputOptions(omit_text=not is_text)
        call = CallOptions(model=options.model, timeout_s=options.timeout_s, output=output)
        stream = self._client.stream(prompt, params_of(options, num_output_tokens), call)
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                yield piece_of(delta, is_text)

    async def count_tokens(self, text: str) -> int | None:
        """See `Target`."""
        return len(await self._client.tokenize(text, False, self._options.model))

    async def close(self) -> None:
        """See `Target`."""
        await self._client.close()
