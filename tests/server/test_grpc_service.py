"""Every RPC and every refusal of InferenceService over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from omruntime import errors
from omruntime.sequence import FinishReason
from omruntime.step import TokenLogprobs
from server.grpc_service import MAX_DETOKENIZE_IDS, MAX_EVENT_TOKENS, MAX_TOKENIZE_CHARS
from server.pb import inference_pb2 as pb
from server.pb import inference_pb2_grpc
from server.text import ChatMessage, TextDelta
from tests.server.wire_fakes import FakeGenerator, FakeServer, end, settings_of

Stub = inference_pb2_grpc.InferenceServiceStub
TEXT = pb.Prompt(text="Hello")


@pytest.fixture
def stub(channel: grpc.Channel) -> Stub:
    return Stub(channel)


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def test_unary_reply_holds_text_tokens_reason_usage_and_timings(
    server: FakeServer, stub: Stub
) -> None:
    reply = stub.Generate(pb.GenerateRequest(prompt=TEXT, request_id="r1"))
    choice = reply.choices[0]
    assert (reply.request_id, reply.model) == ("r1", "org/toy")
    assert (choice.text, list(choice.token_ids)) == ("Hi!", [7, 8])
    assert choice.finish_reason == pb.FINISH_REASON_STOP
    assert choice.usage.num_output_tokens == 2
    assert choice.timings.time_to_first_token_s == 0.75
    assert server.generator.requests[0].text == "Hello"


def test_stream_gives_each_delta_and_one_terminal_event(stub: Stub) -> None:
    call = stub.GenerateStream(pb.GenerateStreamRequest(prompt=TEXT))
    events = list(call)
    assert [e.text for e in events] == ["Hi", "!", ""]
    assert [e.finish_reason for e in events] == [0, 0, pb.FINISH_REASON_STOP]
    assert events[-1].model == "org/toy"
    assert events[-1].HasField("usage")
    assert events[-1].HasField("timings")
    assert not events[0].HasField("usage")
    (request_id,) = {e.request_id for e in events}
    assert ("omserve-request-id", request_id) in tuple(call.initial_metadata())


def test_a_request_that_sets_nothing_reads_as_unset_not_as_zero(
    server: FakeServer, stub: Stub
) -> None:
    """BL-24: unset fields are the bundle's defaults."""
    stub.Generate(pb.GenerateRequest(prompt=TEXT))
    params = server.generator.requests[0].params
    assert (params.temperature, params.top_p, params.seed, params.n) == (None, None, None, 1)


def test_zero_reaches_the_engine_as_zero(server: FakeServer, stub: Stub) -> None:
    """BL-28, BL-31: an explicit 0 is a value."""
    wishes = pb.SamplingParams(temperature=0, seed=0, top_k=0, logprobs=0)
    stub.Generate(pb.GenerateRequest(prompt=TEXT, sampling_params=wishes))
    params = server.generator.requests[0].params
    assert (params.temperature, params.seed, params.top_k, params.logprobs) == (0, 0, 0, 0)


def test_chat_and_token_id_prompts(server: FakeServer, stub: Stub) -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi")])
    chat.template_arguments.update({"enable_thinking": False, "budget": 3})
    stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(chat=chat)))
    stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[5, 6]))))
    first, second = server.generator.requests
    assert first.messages == (ChatMessage("user", "Hi"),)
    assert first.template_arguments == {"enable_thinking": False, "budget": 3}
    assert isinstance(first.template_arguments["budget"], int)
    assert (second.token_ids, second.text, second.messages) == ((5, 6), None, None)


def test_answers_of_n_stay_apart(server: FakeServer, stub: Stub) -> None:
    server.generator.script = [
        TextDelta(1, "b", (2,)),
        TextDelta(0, "a", (1,)),
        TextDelta(1, "B", (4,)),
        end(0, FinishReason.LENGTH),
        end(1, matched_stop="."),
    ]
    reply = stub.Generate(pb.GenerateRequest(prompt=TEXT, sampling_params=pb.SamplingParams(n=2)))
    assert [c.text for c in reply.choices] == ["a", "bB"]
    assert [c.index for c in reply.choices] == [0, 1]
    assert reply.choices[0].finish_reason == pb.FINISH_REASON_LENGTH
    assert reply.choices[1].matched_stop.text == "."


@pytest.mark.parametrize(
    ("request_message", "words"),
    [
        (pb.GenerateRequest(), "prompt is not set"),
        (pb.GenerateRequest(prompt=TEXT, request_id=""), "request_id"),
        (pb.GenerateRequest(prompt=TEXT, request_id="a b"), "request_id"),
        (pb.GenerateRequest(prompt=TEXT, request_id="a\nINFO forged"), "request_id"),
        (pb.GenerateRequest(prompt=TEXT, request_id="x" * 10_000), "10000 characters"),
        (pb.GenerateRequest(prompt=pb.Prompt(chat=pb.Chat())), "no messages"),
        (
            pb.GenerateRequest(prompt=pb.Prompt(chat=pb.Chat(messages=[{"role": "user"}]))),
            "message 0 has no content",
        ),
        (
            pb.GenerateRequest(prompt=pb.Prompt(chat=pb.Chat(messages=[{"content": "x"}]))),
            "message 0 has no role",
        ),
        (pb.GenerateRequest(prompt=TEXT, sampling_params={"temperature": -1}), "temperature"),
        (
            pb.GenerateRequest(prompt=TEXT, sampling_params={"temperature": float("nan")}),
            "temperature",
        ),
        (pb.GenerateRequest(prompt=TEXT, sampling_params={"seed": -1}), "seed"),
        (pb.GenerateRequest(prompt=TEXT, sampling_params={"stop": ["7", ""]}), "stop"),
        (pb.GenerateRequest(prompt=TEXT, sampling_params={"max_new_tokens": 0}), "max_new_tokens"),
        (pb.GenerateRequest(prompt=TEXT, sampling_params={"logprobs": 21}), "logprobs"),
        (pb.GenerateRequest(prompt=TEXT, sampling_params={"logit_bias": {3: 1e9}}), "logit_bias"),
    ],
)
def test_a_wrong_value_is_invalid_argument_and_named(
    stub: Stub, request_message: pb.GenerateRequest, words: str
) -> None:
    """BL-16, BL-22, BL-24, BL-27, BL-28, BL-39."""
    code, details = refusal(lambda: stub.Generate(request_message))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    assert stub.Generate(pb.GenerateRequest(prompt=TEXT)).choices[0].text == "Hi!"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RequestError("m"), "INVALID_ARGUMENT"),
        (errors.PromptTooLongError("m"), "INVALID_ARGUMENT"),
        (errors.UnknownModelError("m"), "NOT_FOUND"),
        (errors.DuplicateRequestError("m"), "ALREADY_EXISTS"),
        (errors.PreconditionError("m"), "FAILED_PRECONDITION"),
        (errors.NotBuiltInError("m"), "UNIMPLEMENTED"),
        (errors.OverloadedError("m"), "RESOURCE_EXHAUSTED"),
        (errors.ShuttingDownError("m"), "UNAVAILABLE"),
        (errors.NotReadyError("m"), "UNAVAILABLE"),
        (errors.DeviceError("m"), "INTERNAL"),
        (errors.OutOfDeviceMemoryError("m"), "INTERNAL"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_before_acceptance_is_a_status_code(
    server: FakeServer, stub: Stub, error: Exception, code: str, streamed: bool
) -> None:
    server.generator.script = [error]

    def call() -> object:
        if streamed:
            return list(stub.GenerateStream(pb.GenerateStreamRequest(prompt=TEXT)))
        return stub.Generate(pb.GenerateRequest(prompt=TEXT))

    got, details = refusal(call)
    assert (got.name, details) == (code, "m")


def test_an_error_after_acceptance_is_one_terminal_event(server: FakeServer, stub: Stub) -> None:
    server.generator.script = [
        TextDelta(0, "a", (1,)),
        end(1),
        errors.DeviceError("acl.mdl.execute returned 507011"),
    ]
    events = list(
        stub.GenerateStream(
            pb.GenerateStreamRequest(prompt=TEXT, sampling_params=pb.SamplingParams(n=2))
        )
    )
    ends = [e for e in events if e.finish_reason]
    assert [(e.index, e.finish_reason) for e in ends] == [
        (1, pb.FINISH_REASON_STOP),
        (0, pb.FINISH_REASON_ERROR),
    ]
    assert "507011" in ends[1].error


def test_a_unary_request_that_fails_after_acceptance_is_internal(
    server: FakeServer, stub: Stub
) -> None:
    server.generator.script = [
        TextDelta(0, "a", (1,)),
        end(reason=FinishReason.ERROR, error="the logits hold NaN"),
    ]
    code, details = refusal(lambda: stub.Generate(pb.GenerateRequest(prompt=TEXT)))
    assert code is grpc.StatusCode.INTERNAL
    assert "the logits hold NaN" in details


def test_parameters_that_leave_no_token_are_the_callers_error(
    server: FakeServer, stub: Stub
) -> None:
    failed = end(reason=FinishReason.ERROR, error="the sampling parameters leave no token")
    server.generator.script = [TextDelta(0, "a", (1,)), replace(failed, is_refusal=True)]
    code, details = refusal(lambda: stub.Generate(pb.GenerateRequest(prompt=TEXT)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "leave no token" in details


def test_a_stream_that_ends_without_a_reason_still_gets_its_terminal_event(
    server: FakeServer, stub: Stub
) -> None:
    server.generator.script = [TextDelta(0, "a", (1,))]
    events = list(stub.GenerateStream(pb.GenerateStreamRequest(prompt=TEXT)))
    assert [e.finish_reason for e in events] == [0, pb.FINISH_REASON_ERROR]


def test_an_unknown_model_is_not_found_and_names_the_served_one(stub: Stub) -> None:
    """BL-38."""
    for name in ("gpt-4o", "", "x" * 100_000):
        code, details = refusal(
            lambda name=name: stub.Generate(pb.GenerateRequest(prompt=TEXT, model=name))
        )
        assert code is grpc.StatusCode.NOT_FOUND
        assert "org/toy" in details
    assert stub.Generate(pb.GenerateRequest(prompt=TEXT, model="org/toy")).model == "org/toy"


def test_fields_of_a_newer_client_are_refused_not_ignored(stub: Stub) -> None:
    newer = pb.GenerateRequest(prompt=TEXT).SerializeToString() + b"\xfa\x3f\x01x"
    code, details = refusal(lambda: stub.Generate(pb.GenerateRequest.FromString(newer)))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "1023" in details


def test_a_live_id_is_refused_and_free_again_after_the_terminal_event(
    server: FakeServer, stub: Stub
) -> None:
    """BL-39."""
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    first = stub.GenerateStream(pb.GenerateStreamRequest(prompt=TEXT, request_id="id"))
    assert next(first).text == "a"
    code, _ = refusal(lambda: stub.Generate(pb.GenerateRequest(prompt=TEXT, request_id="id")))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    server.call(lambda: server.generator.abort("id"))
    assert [e.finish_reason for e in first] == [pb.FINISH_REASON_ABORT]
    server.generator.script = [end()]
    stub.Generate(pb.GenerateRequest(prompt=TEXT, request_id="id"))


def test_odd_metadata_does_no_harm(stub: Stub) -> None:
    """BL-44."""
    metadata = (
        ("x-request-id", "a b"),
        ("odd-bin", bytes(range(256))),
        ("traceparent", "not-a-trace"),
        ("authorization", "bearer x"),
    )
    reply = stub.Generate(pb.GenerateRequest(prompt=TEXT), metadata=metadata)
    assert reply.choices[0].text == "Hi!"


def test_logprobs_travel_beside_their_tokens(server: FakeServer, stub: Stub) -> None:
    """BL-27."""
    entry = TokenLogprobs(-0.258, ((7042, -0.258), (260, -2.5)))
    server.generator.script = [TextDelta(0, "a", (7042,), logprobs=(entry,)), end()]
    (choice,) = stub.Generate(pb.GenerateRequest(prompt=TEXT)).choices
    assert choice.logprobs[0].logprob == -0.258
    assert [(t.token_id, t.logprob) for t in choice.logprobs[0].top] == [
        (7042, -0.258),
        (260, -2.5),
    ]


def test_large_answers_stay_readable_for_a_client_at_grpc_defaults(
    server: FakeServer, stub: Stub
) -> None:
    """BL-42: streams are cut into events; a unary reply over 4 MiB is refused by name."""
    num_tokens = 20 * MAX_EVENT_TOKENS + 1
    entry = TokenLogprobs(-1.0, tuple((i, -float(i)) for i in range(20)))
    merged = TextDelta(0, "text", tuple(range(num_tokens)), logprobs=(entry,) * num_tokens)
    server.generator.script = [merged, end()]
    events = list(stub.GenerateStream(pb.GenerateStreamRequest(prompt=TEXT)))
    assert max(e.ByteSize() for e in events) < 1 << 20
    assert [i for e in events for i in e.token_ids] == list(range(num_tokens))
    assert sum(len(e.logprobs) for e in events) == num_tokens
    assert "".join(e.text for e in events) == "text"
    code, details = refusal(lambda: stub.Generate(pb.GenerateRequest(prompt=TEXT)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "GenerateStream" in details


def test_a_message_over_the_bound_is_refused_and_names_it(stub: Stub) -> None:
    """BL-42."""
    message = pb.GenerateRequest(prompt=pb.Prompt(text="x" * (17 << 20)))
    code, details = refusal(lambda: stub.Generate(message))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(16 << 20) in details


def test_over_a_million_token_ids_are_taken(server: FakeServer, stub: Stub) -> None:
    """BL-42: gRPC's own bound of 4 MiB would refuse them without a word from us."""
    ids = [2**31 - 1] * 1_200_000
    stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=ids))))
    assert len(server.generator.requests[0].token_ids or ()) == 1_200_000


@pytest.mark.parametrize("ending", ["cancel", "deadline", "disconnect"])
@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
@pytest.mark.parametrize("place", ["queued", "decoding"])
def test_a_client_that_goes_away_ends_its_request(
    server: FakeServer, ending: str, method: str, place: str
) -> None:
    """BL-43: noticed in the queue, while decoding, streamed or not."""
    first = [TextDelta(0, "a", (1,))] if place == "decoding" else []
    server.generator.script = [*first, FakeGenerator.HOLD]

    async def run() -> None:
        channel = grpc.aio.insecure_channel(server.target)
        stub = Stub(channel)
        timeout = 0.5 if ending == "deadline" else None
        message_type = pb.GenerateRequest if method == "Generate" else pb.GenerateStreamRequest
        call = getattr(stub, method)(message_type(prompt=TEXT), timeout=timeout)
        # Nothing of it is sent before somebody waits for the call.
        waiting = asyncio.ensure_future(call.initial_metadata())
        await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(
                server.wait_until(lambda: bool(server.generator.live)), server._loop
            )
        )
        if ending == "cancel":
            call.cancel()
        elif ending == "disconnect":
            await channel.close()
        else:
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.gather(waiting, return_exceptions=True)
        await channel.close()

    asyncio.run(run())
    server.await_that(lambda: server.generator.num_closed == 1)
    server.await_that(lambda: server.lifecycle.num_running == 0)


def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    """BL-43: the request ends although the client neither reads nor leaves."""
    piece = TextDelta(0, "x" * 100_000, (1,))
    with FakeServer(settings_of(slow_reader_timeout_s=0.3)) as server:
        server.generator.script = [*[piece] * 1000, end()]
        with grpc.insecure_channel(server.target) as channel:
            call = Stub(channel).GenerateStream(pb.GenerateStreamRequest(prompt=TEXT))
            server.await_that(lambda: server.generator.num_closed == 1)
            server.await_that(lambda: server.lifecycle.num_running == 0)
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "took nothing for 0.3 s" in caught.value.details()


def test_tokenize_text_and_chat(stub: Stub) -> None:
    reply = stub.Tokenize(pb.TokenizeRequest(text="ab"))
    assert list(reply.token_ids) == [1, 97, 98]
    bare = stub.Tokenize(pb.TokenizeRequest(text="ab", add_special_tokens=False))
    assert list(bare.token_ids) == [97, 98]
    chat = pb.Chat(messages=[{"role": "user", "content": "x"}])
    rendered = stub.Tokenize(pb.TokenizeRequest(chat=chat))
    assert rendered.text == "<user>x"
    assert list(rendered.token_ids) == [ord(c) for c in "<user>x"]


def test_detokenize(stub: Stub) -> None:
    assert stub.Detokenize(pb.DetokenizeRequest(token_ids=[2, 97])).text == "a"
    whole = pb.DetokenizeRequest(token_ids=[2, 97], skip_special_tokens=False)
    assert stub.Detokenize(whole).text == "\x02a"


def test_tokenize_and_detokenize_are_bounded(server: FakeServer, stub: Stub) -> None:
    """Within the bounds no reply passes what a client at gRPC's defaults reads."""
    most_chars, most_ids = MAX_TOKENIZE_CHARS, MAX_DETOKENIZE_IDS
    stub.Tokenize(pb.TokenizeRequest(text="x" * most_chars))
    stub.Detokenize(pb.DetokenizeRequest(token_ids=[97] * most_ids))
    chat = pb.Chat(messages=[{"role": "user", "content": "x" * most_chars}])
    for call, words in (
        (lambda: stub.Tokenize(pb.TokenizeRequest(text="x" * (most_chars + 1))), "text has 262145"),
        (lambda: stub.Tokenize(pb.TokenizeRequest(chat=chat)), "chat has 2621"),
        (
            lambda: stub.Detokenize(pb.DetokenizeRequest(token_ids=[97] * (most_ids + 1))),
            "token_ids has 262145",
        ),
    ):
        code, details = refusal(call)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert words in details
        assert "wanted at most 262144" in details


def test_a_tokenize_reply_over_the_unary_limit_is_refused(server: FakeServer, stub: Stub) -> None:
    """A tokenizer that makes more ids of a text than it has bytes."""
    server.generator.ids_per_char = 20
    code, details = refusal(lambda: stub.Tokenize(pb.TokenizeRequest(text="x" * (1 << 18))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "a unary reply may have 4,194,304" in details


def test_a_detokenize_reply_over_the_unary_limit_is_refused(server: FakeServer, stub: Stub) -> None:
    server.generator.chars_per_id = 20
    ids = pb.DetokenizeRequest(token_ids=[97] * (1 << 18))
    code, details = refusal(lambda: stub.Detokenize(ids))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "a unary reply may have 4,194,304" in details


def test_tokenize_refusals(server: FakeServer, stub: Stub) -> None:
    """BL-09 d: no chat template."""
    code, details = refusal(lambda: stub.Tokenize(pb.TokenizeRequest()))
    assert (code, "text and chat" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    server.generator.error = errors.PreconditionError("the bundle has no chat template")
    chat = pb.Chat(messages=[{"role": "user", "content": "x"}])
    code, details = refusal(lambda: stub.Tokenize(pb.TokenizeRequest(chat=chat)))
    assert (code, details) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "the bundle has no chat template",
    )
    code, _ = refusal(lambda: stub.Detokenize(pb.DetokenizeRequest(model="other")))
    assert code is grpc.StatusCode.NOT_FOUND


def test_requests_are_refused_while_loading_and_while_draining() -> None:
    with FakeServer(loaded=False) as server, grpc.insecure_channel(server.target) as channel:
        stub = Stub(channel)
        code, details = refusal(lambda: stub.Generate(pb.GenerateRequest(prompt=TEXT)))
        assert (code, "still loading" in details) == (grpc.StatusCode.UNAVAILABLE, True)
        server.call(lambda: server.lifecycle.begin_serving(server.generator))
        stub.Generate(pb.GenerateRequest(prompt=TEXT))
        server.call(server.lifecycle.begin_draining)
        for call in (
            lambda: stub.Generate(pb.GenerateRequest(prompt=TEXT)),
            lambda: stub.Tokenize(pb.TokenizeRequest(text="x")),
        ):
            code, details = refusal(call)
            assert (code, "shutting down" in details) == (grpc.StatusCode.UNAVAILABLE, True)
