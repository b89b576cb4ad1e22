"""`python -m bench.wire_soak`: a server whose clients drop streams by the thousand, or wait long.

`om-serve` over the toy model, or a real one with `--bundle`, in a process of its own. Streams and
requests of sessions are left in the queue, while they run, by a deadline, or with the connection;
memory must stay flat and no block be held. Then one unary call is silent for two minutes, with a
ping every ten seconds, as clients and load balancers send them. Exit code 0 only if all holds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

import grpc
import grpc.aio

from bench.memory_track import MemoryTrack
from omruntime.errors import CallError
from omruntime.sampling_params import SamplingParams
from server.client import AsyncClient
from server.client.arguments import CallOptions
from server.client.async_session import AsyncClientSession
from server.pb import inference_pb2 as pb
from server.pb import inference_pb2_grpc
from tests.real_server import add_bundle_options, chosen_server
from tests.toy_server import toy_server

ROUND = 100
# Few enough that the prefix cache, which is meant to fill, is full after the first streams.
SERVER_OPTIONS = ("--num-blocks", "200")
PING_S = 10
# Bytes that a stream may leave behind, seen over all streams but the first fifth.
MAX_BYTES_PER_STREAM = 100.0
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


class Dropper:
    """Opens streams and leaves each at a random moment."""

    def __init__(self, target: str, seed: int) -> None:
        self._target = target
        self._draw = random.Random(seed)  # noqa: S311 - whom it shall surprise are tests

    async def drop(self, count: int) -> None:
        """Some streams over one connection, half of them in one session, all at once."""
        async with AsyncClient(self._target) as client, client.session() as session:
            await asyncio.gather(
                *(self._drop_one(client if i % 2 else session) for i in range(count))
            )

    async def _drop_one(self, caller: AsyncClient | AsyncClientSession) -> None:
        draw = self._draw
        prompt = [draw.randrange(60) for _ in range(draw.randrange(1, 30))]
        options = CallOptions(timeout_s=draw.choice([None, None, 0.001, 0.05]))
        task = asyncio.create_task(_read(caller, prompt, options, draw.randrange(4)))
        await asyncio.wait([task], timeout=draw.choice([0.0, 0.005, 0.05, None]))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _read(
    caller: AsyncClient | AsyncClientSession, prompt: list[int], options: CallOptions, count: int
) -> None:
    try:
        async with aclosing(caller.stream(prompt, ENDLESS, options)) as deltas:
            for _ in range(count):
                await anext(deltas)
    except (CallError, StopAsyncIteration):
        return


async def drop_streams(target: str, pid: int, count: int, seed: int) -> list[str]:
    """Drop so many; what was wrong afterwards."""
    dropper, memory = Dropper(target, seed), MemoryTrack(pid)
    async with AsyncClient(target) as client:
        for number in range(ROUND, count + 1, ROUND):
            await dropper.drop(ROUND)
            while (load := await client.load()).num_running + load.num_waiting:
                await asyncio.sleep(0.005)
            memory.look(number)
    print(
        f"{count} streams dropped: {memory.report()} (limit {MAX_BYTES_PER_STREAM:g}); "
        f"{load.num_referenced_blocks} blocks held; ended: {dict(load.num_finished)}",
        flush=True,
    )
    faults = memory.faults(MAX_BYTES_PER_STREAM)
    if load.num_referenced_blocks:
        faults.append(f"{load.num_referenced_blocks} blocks are held")
    return faults


async def call_in_silence(target: str, silence_s: float) -> list[str]:
    """One unary call to an engine that pauses for so long; what was wrong with it."""
    options = (
        ("grpc.keepalive_time_ms", PING_S * 1000),
        ("grpc.keepalive_timeout_ms", PING_S * 500),
        ("grpc.http2.max_pings_without_data", 0),
    )
    request = pb.GenerateRequest(
        prompt=pb.Prompt(text="Ab"),
        sampling_params=pb.SamplingParams(max_new_tokens=2, ignore_eos=True),
    )
    start = time.monotonic()
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        loss = asyncio.create_task(_connection_loss(channel))
        try:
            await inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            return [f"the silent call failed after {time.monotonic() - start:.0f} s: {error}"]
        finally:
            was_lost = loss.done()
            loss.cancel()
            await asyncio.gather(loss, return_exceptions=True)
    took = time.monotonic() - start
    print(
        f"a unary call, silent for {took:.1f} s with a ping every {PING_S} s: answered", flush=True
    )
    if took < silence_s:
        return [f"the call took {took:.1f} s, wanted a pause of {silence_s:g} s: nothing was shown"]
    return ["the connection was lost meanwhile"] if was_lost else []


async def _connection_loss(channel: grpc.aio.Channel) -> None:
    """Until the connection is lost."""
    while (state := channel.get_state()) is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
        await channel.wait_for_state_change(state)


def main() -> int:
    """Run and print; 1 when something was wrong."""
    parser = argparse.ArgumentParser(prog="bench.wire_soak", description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--silence-s", type=float, default=120.0, help="default: 120")
    parser.add_argument("--seed", type=int, default=0)
    add_bundle_options(parser)
    arguments = parser.parse_args()
    # Growth shows between rounds.
    if arguments.streams < 2 * ROUND or arguments.streams % ROUND:
        parser.error(
            f"--streams is {arguments.streams}, wanted a multiple of {ROUND}, at least {2 * ROUND}"
        )
    faults: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        chosen_server(arguments, Path(folder), toy_server, SERVER_OPTIONS) as child,
    ):
        faults += asyncio.run(
            drop_streams(child.target, child.pid, arguments.streams, arguments.seed)
        )
        if "Traceback" in child.log.read_text():
            faults.append("the log has a traceback")
    pause = ("--allow-faults", "--inject-fault", f"slow={arguments.silence_s}@1")
    with (
        tempfile.TemporaryDirectory() as folder,
        chosen_server(arguments, Path(folder), toy_server, pause) as child,
    ):
        faults += asyncio.run(call_in_silence(child.target, arguments.silence_s))
    for fault in faults:
        print(f"FAILED: {fault}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
