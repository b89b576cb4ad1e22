"""`inference.GRPCInferenceService` as the real tritonclient speaks it, over a real socket."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from omruntime.constraint import Constraint
from omruntime.errors import OverloadedError
from omruntime.sampling_params import SamplingParams
from omruntime.sequence import FinishReason
from server.text import TextDelta
from tests.server.wire_fakes import FakeGenerator, FakeServer, end

MODEL = "org/toy"


@pytest.fixture
def client(server: FakeServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.target) as opened:
        yield opened


def tensor(name: str, values: list[Any], datatype: str) -> triton.InferInput:
    kinds = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64}
    array = np.array(values, kinds.get(datatype, np.float32))
    made = triton.InferInput(name, array.shape, datatype)
    made.set_data_from_numpy(array)
    return made


def text(prompt: str = "hello") -> triton.InferInput:
    return tensor("text_input", [prompt.encode()], "BYTES")


class Stream:
    """The results of one stream, as its callback gets them."""

    def __init__(self, client: triton.InferenceServerClient) -> None:
        self._client = client
        self._results: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def __enter__(self) -> Stream:
        self._client.start_stream(lambda result, error: self._results.put((result, error)))
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream(cancel_requests=True)

    def send(self, *inputs: triton.InferInput, **others: Any) -> None:
        self._client.async_stream_infer(MODEL, list(inputs), **others)

    def next(self) -> tuple[Any, Any]:
        return self._results.get(timeout=20)


def text_of(result: Any) -> list[bytes]:
    return list(result.as_numpy("text_output"))


def is_final(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def refusal(work: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        work()
    return caught.value.status(), caught.value.message()


def test_live_ready_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready(MODEL, "2")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata().name == "omserve"
    metadata = client.get_model_metadata(MODEL)
    assert [(i.name, i.datatype) for i in metadata.inputs[:2]] == [
        ("text_input", "BYTES"),
        ("input_ids", "INT64"),
    ]
    assert metadata.outputs[0].name == "text_output"
    config = client.get_model_config(MODEL).config
    assert config.model_transaction_policy.decoupled
    assert config.input[0].data_type == config.output[0].data_type == 13  # TYPE_STRING


def test_loading_and_draining_are_not_ready_and_refuse() -> None:
    with FakeServer(loaded=False) as server, triton.InferenceServerClient(server.target) as client:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready(MODEL)
        status, message = refusal(lambda: client.infer(MODEL, [text()]))
        assert status == "StatusCode.UNAVAILABLE"
        assert "still loading" in message
        server.call(lambda: server.lifecycle.begin_serving(server.generator))
        server.call(server.lifecycle.begin_draining)
        assert not client.is_server_ready()
        assert "shutting down" in refusal(lambda: client.infer(MODEL, [text()]))[1]


def test_infer_maps_every_sampling_parameter(
    server: FakeServer, client: triton.InferenceServerClient
) -> None:
    wishes = {"top_p": "0.9", "stop": "END", "min_tokens": 1, "ignore_eos": "True", "seed": 0}
    result = client.infer(
        MODEL,
        [
            text(),
            tensor("sampling_parameters", [json.dumps(wishes).encode()], "BYTES"),
            tensor("temperature", [0.5], "FP32"),
            tensor("exclude_input_in_output", [True], "BOOL"),
        ],
        request_id="mine",
        parameters={"max_tokens": 7},
    )
    assert text_of(result) == [b"Hi!"]
    assert result.get_response().id == "mine"
    assert is_final(result)
    (request,) = server.generator.requests
    assert (request.text, request.output.echo) == ("hello", False)
    assert request.params == SamplingParams(
        temperature=0.5,
        max_new_tokens=7,
        top_p=0.9,
        stop=("END",),
        min_new_tokens=1,
        ignore_eos=True,
        seed=0,
    )


def test_infer_takes_structured_outputs(
    server: FakeServer, client: triton.InferenceServerClient
) -> None:
    def infer(wanted: object) -> None:
        wishes = json.dumps({"structured_outputs": wanted}).encode()
        client.infer(MODEL, [text(), tensor("sampling_parameters", [wishes], "BYTES")])

    infer({"choice": ["yes", "no"]})
    constraint = server.generator.requests[-1].params.constraint
    assert constraint == Constraint(choices=("yes", "no"))
    status, message = refusal(lambda: infer({"json": "", "regex": 7}))
    assert status == "StatusCode.INVALID_ARGUMENT"
    assert "structured_outputs sets json, regex" in message
    assert "wanted an object" in refusal(lambda: infer([]))[1]


@pytest.mark.parametrize("datatype", ["INT32", "INT64"])
def test_infer_takes_token_ids(
    server: FakeServer, client: triton.InferenceServerClient, datatype: str
) -> None:
    client.infer(MODEL, [tensor("input_ids", [[5, 6, 7]], datatype)])
    (request,) = server.generator.requests
    assert (request.token_ids, request.output.echo) == ((5, 6, 7), False)


def test_a_whole_answer_begins_with_its_text_prompt_as_in_triton(
    server: FakeServer, client: triton.InferenceServerClient
) -> None:
    client.infer(MODEL, [text()])
    assert server.generator.requests[0].output.echo


def test_infer_gives_the_other_outputs_when_asked(client: triton.InferenceServerClient) -> None:
    asked = tensor("return_num_input_tokens", [True], "BOOL")
    names = ("text_output", "finish_reason", "num_output_tokens")
    outputs = [triton.InferRequestedOutput(name) for name in names]
    result = client.infer(MODEL, [text(), asked], outputs=outputs)
    assert list(result.as_numpy("finish_reason")) == [b"stop"]
    assert list(result.as_numpy("num_output_tokens")) == [2]
    assert list(result.as_numpy("num_input_tokens")) == [3]


def test_several_answers_are_one_tensor(
    server: FakeServer, client: triton.InferenceServerClient
) -> None:
    server.generator.script = [TextDelta(1, "b", (1,)), TextDelta(0, "a", (1,)), end(0), end(1)]
    assert text_of(client.infer(MODEL, [text()], parameters={"n": 2})) == [b"a", b"b"]


def test_a_stream_gives_pieces_and_says_which_is_the_last(
    server: FakeServer, client: triton.InferenceServerClient
) -> None:
    with Stream(client) as stream:
        stream.send(
            text(),
            tensor("stream", [True], "BOOL"),
            request_id="a",
            enable_empty_final_response=True,
        )
        results = [stream.next()[0] for _ in range(3)]
    assert [text_of(r)[0] for r in results] == [b"Hi", b"!", b""]
    assert [is_final(r) for r in results] == [False, False, True]
    assert {r.get_response().id for r in results} == {"a"}
    assert not server.generator.requests[0].output.echo


def test_a_stream_without_the_wish_gives_one_reply(client: triton.InferenceServerClient) -> None:
    with Stream(client) as stream:
        stream.send(text())
        result, error = stream.next()
    assert error is None
    assert text_of(result) == [b"Hi!"]
    assert is_final(result)


def test_a_request_that_fails_leaves_its_stream_alive(
    client: triton.InferenceServerClient,
) -> None:
    with Stream(client) as stream:
        stream.send(text(), parameters={"top_p": 0.0})
        assert "top_p is 0" in stream.next()[1].message()
        stream.send(text())
        assert text_of(stream.next()[0]) == [b"Hi!"]


def test_requests_of_a_stream_do_not_wait_for_each_other(
    server: FakeServer, client: triton.InferenceServerClient
) -> None:
    server.generator.script = [TextDelta(0, "a", (1,)), FakeGenerator.HOLD]
    with Stream(client) as stream:
        for request_id in ("1", "2"):
            stream.send(text(), parameters={"stream": True}, request_id=request_id)
        ids = {stream.next()[0].get_response().id for _ in range(2)}
    assert ids == {"1", "2"}
    server.await_that(lambda: not server.generator.live and not server.lifecycle.num_running)


def test_cancelling_a_unary_call_aborts_its_request(
    server: FakeServer, client: triton.InferenceServerClient
) -> None:
    server.generator.script = [FakeGenerator.HOLD]
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    call = client.async_infer(MODEL, [text()], lambda result, error: ended.put(error))
    server.await_that(lambda: bool(server.generator.live))
    call.cancel()
    assert ended.get(timeout=20).status() == "StatusCode.CANCELLED"
    server.await_that(lambda: not server.generator.live and not server.lifecycle.num_running)


@pytest.mark.parametrize(
    ("error", "status"),
    [(OverloadedError("full"), "RESOURCE_EXHAUSTED"), (RuntimeError("oops"), "INTERNAL")],
)
def test_errors_keep_their_codes(
    server: FakeServer, client: triton.InferenceServerClient, error: Exception, status: str
) -> None:
    server.generator.script = [error]
    got, message = refusal(lambda: client.infer(MODEL, [text()]))
    assert got == f"StatusCode.{status}"
    assert "oops" not in message


def test_an_answer_that_fails_is_an_error_in_both_methods(
    server: FakeServer, client: triton.InferenceServerClient
) -> None:
    server.generator.script = [
        TextDelta(0, "a", (1,)),
        end(0, FinishReason.ERROR, error="the device broke"),
    ]
    status, message = refusal(lambda: client.infer(MODEL, [text()]))
    assert status == "StatusCode.INTERNAL"
    assert "the device broke" in message
    with Stream(client) as stream:
        stream.send(text(), parameters={"stream": True})
        assert text_of(stream.next()[0]) == [b"a"]
        assert "the device broke" in stream.next()[1].message()


@pytest.mark.parametrize(
    ("inputs", "others", "status", "message"),
    [
        ([], {}, "INVALID_ARGUMENT", "neither of the inputs"),
        (
            [text(), tensor("input_ids", [1], "INT64")],
            {},
            "INVALID_ARGUMENT",
            "both of the inputs",
        ),
        ([text()], {"parameters": {"max_tokens": 0}}, "INVALID_ARGUMENT", "max_tokens is 0"),
        ([text()], {"parameters": {"min_tokens": -1}}, "INVALID_ARGUMENT", "min_tokens is -1"),
        ([tensor("text_input", [b"a", b"b"], "BYTES")], {}, "INVALID_ARGUMENT", "2 values"),
        (
            [tensor("text_input", [b""] * 1001, "BYTES")],
            {},
            "INVALID_ARGUMENT",
            "more than 1,000 strings",
        ),
        (
            [text(), tensor("sampling_parameters", [b" " * 262_145], "BYTES")],
            {},
            "INVALID_ARGUMENT",
            "sampling_parameters has 262145 characters, wanted at most 262144",
        ),
        ([tensor("input_ids", [[1], [2]], "INT64")], {}, "INVALID_ARGUMENT", r"[2, 1]"),
        ([tensor("input_ids", [1.0], "FP32")], {}, "INVALID_ARGUMENT", "'FP32'"),
        ([text(), tensor("image", [b"x"], "BYTES")], {}, "UNIMPLEMENTED", "'image'"),
        (
            [text(), tensor("sampling_parameters", [b"["], "BYTES")],
            {},
            "INVALID_ARGUMENT",
            "not JSON",
        ),
        (
            [text(), tensor("sampling_parameters", [b'{"beam_width": 2}'], "BYTES")],
            {},
            "UNIMPLEMENTED",
            "'beam_width'",
        ),
        (
            [text(), tensor("max_tokens", [1], "INT32")],
            {"parameters": {"max_tokens": 1}},
            "INVALID_ARGUMENT",
            "max_tokens is given twice",
        ),
        ([text()], {"parameters": {"stream": True}}, "INVALID_ARGUMENT", "ModelStreamInfer"),
        ([text()], {"parameters": {"max_tokens": "many"}}, "INVALID_ARGUMENT", "'many'"),
        ([text()], {"parameters": {"lora": "x"}}, "UNIMPLEMENTED", "'lora'"),
        ([text()], {"sequence_id": 3}, "UNIMPLEMENTED", "'sequence_"),
        ([text()], {"priority": 1}, "UNIMPLEMENTED", "'priority'"),
        ([text()], {"timeout": 5}, "UNIMPLEMENTED", "deadline"),
        ([text()], {"model_version": "2"}, "NOT_FOUND", "version '2'"),
        (
            [text()],
            {"outputs": [triton.InferRequestedOutput("logits")]},
            "INVALID_ARGUMENT",
            "'logits'",
        ),
        (
            [text()],
            {"outputs": [triton.InferRequestedOutput("text_output", class_count=2)]},
            "UNIMPLEMENTED",
            "classification",
        ),
    ],
)
def test_what_is_wrong_or_not_built_in_is_refused_by_name(
    client: triton.InferenceServerClient,
    inputs: list[triton.InferInput],
    others: dict[str, Any],
    status: str,
    message: str,
) -> None:
    got, said = refusal(lambda: client.infer(MODEL, inputs, **others))
    assert got == f"StatusCode.{status}"
    assert message in said


def test_n_beside_stream_is_refused(client: triton.InferenceServerClient) -> None:
    with Stream(client) as stream:
        stream.send(text(), parameters={"stream": True, "n": 2})
        assert "n is 2 beside stream" in stream.next()[1].message()


def test_shared_memory_is_refused(client: triton.InferenceServerClient) -> None:
    shared = triton.InferInput("text_input", [1], "BYTES")
    shared.set_shared_memory("region", 8)
    assert refusal(lambda: client.infer(MODEL, [shared]))[0] == "StatusCode.UNIMPLEMENTED"
    status, message = refusal(client.get_system_shared_memory_status)
    assert status == "StatusCode.UNIMPLEMENTED"
    assert "SystemSharedMemoryStatus is not built into" in message


@pytest.mark.parametrize("raw", [b"\x01", b"\x09\0\0\0ab", b""])
def test_broken_raw_strings_are_refused(channel: grpc.Channel, raw: bytes) -> None:
    request = service_pb2.ModelInferRequest(model_name=MODEL, raw_input_contents=[raw])
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    with pytest.raises(grpc.RpcError) as caught:
        call(request.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_typed_contents_serve_as_well(server: FakeServer, channel: grpc.Channel) -> None:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    tensor_of_ids = request.inputs.add(name="input_ids", datatype="INT32", shape=[2])
    tensor_of_ids.contents.int_contents.extend([8, 9])
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    call(request.SerializeToString())
    assert server.generator.requests[0].token_ids == (8, 9)


def test_a_message_of_a_stream_that_is_none_does_not_end_it(channel: grpc.Channel) -> None:
    good = service_pb2.ModelInferRequest(model_name=MODEL)
    good.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    good.raw_input_contents.append(b"\x01\0\0\0a")
    call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    raw = [b"\xff", good.SerializeToString()]
    events = [service_pb2.ModelStreamInferResponse.FromString(event) for event in call(iter(raw))]
    assert sorted(bool(event.error_message) for event in events) == [False, True]
