"""live_deltas: the life of one request of a dialect, which is that of every front end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc.aio

from server.answers import terminated_deltas
from server.cut_off import cut_off
from server.grpc_service import with_deadline
from server.lifecycle import Lifecycle
from server.logs import request_id_var
from server.text import TextDelta, TextRequest


async def live_deltas(
    lifecycle: Lifecycle, request: TextRequest, context: grpc.aio.ServicerContext
) -> AsyncGenerator[TextDelta, None]:
    """The answers' deltas, of which none ends with an error; closing it aborts them.

    Raises:
        OmError: The request was refused or an answer failed.
    """
    generator = lifecycle.require_serving()
    request = with_deadline(request, context.time_remaining())
    request_id_var.set(request.request_id)
    with lifecycle.running():
        async with aclosing(terminated_deltas(generator, request, lifecycle)) as deltas:
            async for delta in deltas:
                if failure := cut_off(delta):
                    raise failure
                yield delta
