"""SmolLM2 over gRPC under load: equality, cancellation, deadlines, memory."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from omruntime.errors import CallError
from omruntime.sampling_params import SamplingParams
from server.client import AsyncClient, Client
from server.client.arguments import CallOptions
from tests.e2e.hf_reference import NUM_NEW_TOKENS, Reference, require_equal
from tests.e2e.server_child import ServerChild

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=NUM_NEW_TOKENS)
LONG = SamplingParams(temperature=0.0, ignore_eos=True)


def test_sixteen_streams_at_once_equal_hf(
    server: ServerChild, client: Client, smollm2_references: list[Reference]
) -> None:
    async def answer(client: AsyncClient, reference: Reference) -> list[int]:
        deltas = [delta async for delta in client.stream(reference.prompt, GREEDY)]
        return [token_id for delta in deltas for token_id in delta.token_ids]

    async def main() -> list[list[int]]:
        async with AsyncClient(server.target) as streams:
            return await asyncio.gather(*(answer(streams, r) for r in smollm2_references[:16]))

    for got, reference in zip(asyncio.run(main()), smollm2_references, strict=False):
        require_equal(got, reference)


async def idle(client: AsyncClient) -> None:
    """Return once nothing is live; the test's time limit ends a leak."""
    while True:
        load = await client.load()
        if (load.num_running, load.num_waiting, load.num_referenced_blocks) == (0, 0, 0):
            return
        await asyncio.sleep(0.01)


def test_streams_cancelled_at_random_times_leave_nothing(
    server: ServerChild, client: Client
) -> None:
    """BL-43: 500 streams, left in the queue, in prefill and while decoding."""
    draw = random.Random(3)

    async def leave(client: AsyncClient, num_deltas: int, deadline_s: float | None) -> None:
        prompt = [draw.randrange(100, 40000) for _ in range(draw.randrange(1, 200))]
        options = CallOptions(timeout_s=deadline_s)
        try:
            async with aclosing(client.stream(prompt, LONG, options)) as deltas:
                for _ in range(num_deltas):
                    await anext(deltas)
        except CallError as error:
            assert error.code == "DEADLINE_EXCEEDED"  # noqa: PT017, the code is the point

    async def cancel(client: AsyncClient) -> None:
        deadline_s = draw.choice([None, None, 0.001, 0.2])
        task = asyncio.ensure_future(leave(client, draw.randrange(4), deadline_s))
        await asyncio.wait([task], timeout=draw.choice([0.0, 0.005, 0.05, None]))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def round_of(client: AsyncClient, count: int) -> int:
        await asyncio.gather(*(cancel(client) for _ in range(count)))
        await idle(client)
        return psutil.Process(server.pid).memory_info().rss

    async def main() -> tuple[int, int]:
        async with AsyncClient(server.target) as streams:
            before = await round_of(streams, 100)
            for _ in range(3):
                await round_of(streams, 100)
            return before, await round_of(streams, 100)

    before, after = asyncio.run(main())
    assert after - before < 64 << 20, "memory grew over 400 cancelled streams"


@pytest.mark.parametrize("unary", [True, False])
def test_a_deadline_ends_the_request(server: ServerChild, client: Client, unary: bool) -> None:
    async def ask(client: AsyncClient) -> None:
        options = CallOptions(timeout_s=0.3)
        if unary:
            await client.generate("Once upon a time", LONG, options)
        async for _ in client.stream("Once upon a time", LONG, options):
            pass

    async def main() -> None:
        async with AsyncClient(server.target) as calls:
            with pytest.raises(CallError) as caught:
                await ask(calls)
            assert caught.value.code == "DEADLINE_EXCEEDED"
            await idle(calls)

    asyncio.run(main())


def test_a_full_queue_is_resource_exhausted(smollm2_bundle: Path, tmp_path: Path) -> None:
    options = ["--max-queued-requests", "2", "--max-num-seqs", "1"]

    async def one(client: AsyncClient) -> str:
        params = SamplingParams(temperature=0, max_new_tokens=4)
        try:
            await client.generate("Hello", params)
        except CallError as error:
            return error.code
        return "OK"

    async def main(target: str) -> list[str]:
        async with AsyncClient(target) as client:
            return await asyncio.gather(*(one(client) for _ in range(12)))

    with ServerChild(smollm2_bundle, tmp_path, options).running() as target:
        codes = asyncio.run(main(target))
    assert set(codes) == {"OK", "RESOURCE_EXHAUSTED"}
