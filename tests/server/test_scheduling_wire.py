"""Wishes about a request's turn reach the engine, and what time ends is said in the right words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import grpc
import pytest

from omruntime.errors import CallError, RequestError
from omruntime.outputs import TokenDelta
from omruntime.sampling_params import SamplingParams
from omruntime.scheduling.turn import Scheduling, Urgency
from omruntime.sequence import FinishReason, Request
from server.client import AsyncClient, Client
from server.client.arguments import CallOptions
from server.pb import inference_pb2 as pb
from server.pb import inference_pb2_grpc
from tests.server.scored_script import Scored, scored, scored_server
from tests.server.scripted_engine import last

QUEUED = "it was not admitted within its queue_timeout_s of 2"
PARAMS = SamplingParams(max_new_tokens=4)


def late_on_request(request: Request) -> list[TokenDelta]:
    """As the engine ends what was not admitted in time."""
    if request.scheduling.queue_timeout_s is not None:
        return [last(FinishReason.ABORT, error=QUEUED)]
    return scored(request)


@pytest.fixture(scope="module")
def serving() -> Iterator[Scored]:
    with scored_server(late_on_request) as running:
        yield running


@pytest.fixture
def client(serving: Scored) -> Iterator[Client]:
    with Client(serving.target) as opened:
        yield opened


def asked(serving: Scored) -> Request:
    return serving.engine.submitted[-1]


@pytest.mark.parametrize("urgency", Urgency)
def test_every_wish_reaches_the_engine(serving: Scored, client: Client, urgency: Urgency) -> None:
    wishes = Scheduling(urgency=urgency, tenant="ten", ttft_target_s=0.5, itl_target_s=0.25)
    options = CallOptions(scheduling=wishes, bypasses_prefix_cache=True)
    client.generate("the", PARAMS, options)
    assert asked(serving).scheduling == wishes
    assert asked(serving).bypasses_prefix_cache
    list(client.stream("the", PARAMS, options))
    assert asked(serving).scheduling == wishes
    client.score("the", [" cat"], 0, options)
    assert asked(serving).scheduling == wishes
    assert asked(serving).bypasses_prefix_cache


def test_nothing_said_is_the_default(serving: Scored, client: Client) -> None:
    client.generate("the", PARAMS)
    assert asked(serving).scheduling == Scheduling()
    assert not asked(serving).bypasses_prefix_cache


def test_the_deadline_of_a_call_is_the_engines(serving: Scored, client: Client) -> None:
    """BL-43: so that a request ends there too, however busy the event loop is."""
    before = time.monotonic()
    options = CallOptions(timeout_s=500.0)
    client.generate("the", PARAMS, options)
    deadlines = [asked(serving).scheduling.deadline]
    list(client.stream("the", PARAMS, options))
    deadlines.append(asked(serving).scheduling.deadline)
    client.score("the", [" cat"], 0, options)
    deadlines.append(asked(serving).scheduling.deadline)
    for deadline in deadlines:
        assert deadline is not None
        # The deadline is the caller's wall clock's, which may be set meanwhile; not by hours.
        assert before + 400 < deadline < time.monotonic() + 600


def test_a_queue_timeout_is_resource_exhausted_or_an_abort_with_a_word(client: Client) -> None:
    options = CallOptions(scheduling=Scheduling(queue_timeout_s=2.0))
    with pytest.raises(CallError, match=QUEUED) as caught:
        client.generate("the", PARAMS, options)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    with pytest.raises(CallError, match=QUEUED) as caught:
        client.score("the", [" cat"], 0, options)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    end = list(client.stream("the", PARAMS, options))[-1]
    assert (end.finish_reason, end.error) == (FinishReason.ABORT, QUEUED)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"queue_timeout_s": 0.0}, "queue_timeout_s is 0"),
        ({"queue_timeout_s": -1.0}, "queue_timeout_s is -1"),
        ({"ttft_target_s": float("nan")}, "ttft_target_s is nan"),
        ({"itl_target_s": float("inf")}, "itl_target_s is inf"),
        ({"urgency": 9}, "urgency is 9"),
        ({"tenant": "t" * 129}, "tenant has 129 characters"),
    ],
)
def test_a_wrong_wish_is_refused_by_name(
    serving: Scored, fields: dict[str, float | str], words: str
) -> None:
    message = pb.GenerateRequest(prompt=pb.Prompt(text="the"), scheduling=pb.Scheduling(**fields))  # type: ignore[arg-type]
    with grpc.insecure_channel(serving.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError, match=words) as caught:
            stub.Generate(message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "wishes",
    [Scheduling(tenant_weight=2.0), Scheduling(deadline=5.0), Scheduling(keeps_prefix=True)],
)
def test_a_wish_without_a_field_is_not_lost_in_silence(client: Client, wishes: Scheduling) -> None:
    with pytest.raises(RequestError, match="cannot be sent"):
        client.generate("the", PARAMS, CallOptions(scheduling=wishes))


def test_a_scoring_call_that_is_left_ends_all_its_parts() -> None:
    """BL-43: nothing of it is left in the engine."""

    def never_ends(request: Request) -> list[TokenDelta]:
        return [TokenDelta(())]

    async def leave(serving: Scored) -> None:
        async with AsyncClient(serving.target) as client:
            call = asyncio.create_task(client.score("the", [" a", " b", " c"]))
            while len(serving.engine.live) < 3:
                await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            while serving.engine.live:
                await asyncio.sleep(0.01)

    with scored_server(never_ends) as serving:
        asyncio.run(asyncio.wait_for(leave(serving), 20))
        serving.server.await_that(lambda: serving.server.lifecycle.num_running == 0)
        assert len(serving.engine.cancelled) == 3
