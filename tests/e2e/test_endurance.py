"""Readers that stop, and stopping under load, of one server over SmolLM2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import grpc
import pytest

from omruntime.outputs import EngineLoad
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.client import AsyncClient, Client
from server.client.arguments import CallOptions
from server.pb import inference_pb2 as pb
from server.pb import inference_pb2_grpc
from server.text import OutputOptions, TextDelta
from tests.e2e.server_child import ServerChild
from tests.server.wire_session import WireSession

# Nearly what the context holds, and several times what the reader's window below does.
NUM_TOKENS = 500
MAX_NUM_SEQS = 3
# Far more than the readers that go on take for one event, however busy the machine is.
READER_S = 1.0
# By default the library reads ahead what it can get, megabytes.
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384))
WISHES = {
    "prompt": pb.Prompt(token_ids=pb.TokenIds(ids=[1, 2, 3])),
    # With 20 alternatives an event has about 500 bytes, so that they fill a window soon.
    "sampling_params": {
        "max_new_tokens": NUM_TOKENS,
        "temperature": 0.0,
        "ignore_eos": True,
        "logprobs": 20,
    },
    "output": {"omit_text": True},
}


@pytest.fixture(scope="module")
def server(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerChild]:
    options = ("--slow-reader-timeout-s", str(READER_S), "--max-num-seqs", str(MAX_NUM_SEQS))
    child = ServerChild(smollm2_bundle, tmp_path_factory.mktemp("endurance"), options)
    child.start()
    try:
        child.wait_ready()
        yield child
        assert "Traceback" not in child.log.read_text()
    finally:
        child.kill()


def load_at_rest(client: Client) -> EngineLoad:
    """Once nothing is live; the test's time limit ends a leak."""
    while (load := client.load()).num_running + load.num_waiting:
        pass
    return load


def require_cut_off(client: Client, before: EngineLoad, num_answers: int = 1) -> None:
    """So many more answers were aborted in their middle, and hold nothing."""
    load = load_at_rest(client)
    assert load.num_referenced_blocks == 0
    assert load.num_finished["abort"] == before.num_finished.get("abort", 0) + num_answers


def test_a_reader_that_stops_is_cut_off_and_its_blocks_are_free(server: ServerChild) -> None:
    """BL-43: the events that fit into the connection's window are all it gets."""
    with (
        Client(server.target) as client,
        grpc.insecure_channel(server.target, options=SMALL_WINDOW) as channel,
    ):
        before = client.load()
        # Several answers, which fill the window sooner.
        params = WISHES["sampling_params"] | {"n": MAX_NUM_SEQS, "temperature": 1.0}
        call = inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(
            pb.GenerateStreamRequest(**WISHES | {"sampling_params": params})
        )
        next(call)
        require_cut_off(client, before, MAX_NUM_SEQS)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_session_reader_without_credits_loses_one_request(server: ServerChild) -> None:
    with Client(server.target) as client, WireSession(server.target) as session:
        before = client.load()
        session.start("stops", num_events=1, **WISHES)
        last = session.read_end("stops").event
        assert last.finish_reason == pb.FINISH_REASON_ABORT
        assert 1 < last.usage.num_output_tokens < NUM_TOKENS
        require_cut_off(client, before)
        session.start("reads", **WISHES | {"sampling_params": {"max_new_tokens": 3}})
        assert session.read_end("reads").event.finish_reason == pb.FINISH_REASON_LENGTH


def test_sigterm_under_load_loses_no_accepted_request(server: ServerChild) -> None:
    """As many as run at once and as many again that wait; streams, unary calls, a session.

    The last test, since it ends the server.
    """
    params = SamplingParams(temperature=0.0, max_new_tokens=25, ignore_eos=True)
    options = CallOptions(output=OutputOptions(omit_text=True))
    num_each = 2 * MAX_NUM_SEQS // 3

    async def read(deltas: AsyncGenerator[TextDelta, None]) -> tuple[int, FinishReason | None]:
        got = [delta async for delta in deltas]
        return sum(len(delta.token_ids) for delta in got), got[-1].finish_reason

    async def ask(client: AsyncClient) -> tuple[int, FinishReason | None]:
        answer = (await client.generate((1, 2, 3), params, options)).answers[0]
        return len(answer.token_ids), answer.finish_reason

    async def main() -> None:
        async with AsyncClient(server.target) as client, client.session() as session:
            before = (await client.load()).num_finished
            asked = [
                asyncio.create_task(work)
                for _ in range(num_each)
                for work in (
                    read(client.stream((1, 2, 3), params, options)),
                    read(session.stream((1, 2, 3), params, options)),
                    ask(client),
                )
            ]
            while (load := await client.load()).num_running + load.num_waiting < len(asked):
                assert load.num_finished == before, "it ended before the signal"
            server.signal()
            for done in await asyncio.gather(*asked):
                assert done == (25, FinishReason.LENGTH)

    asyncio.run(main())
    assert server.wait() == 0
