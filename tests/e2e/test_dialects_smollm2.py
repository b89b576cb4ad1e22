"""Real clients of foreign dialects against SmolLM2: the same answers as over our own service."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import openai
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_requests import Client as ReflectionClient
from tritonclient import grpc as triton

from omruntime.sampling_params import SamplingParams
from server.client import Client
from server.text import ChatMessage
from tests.e2e.server_child import ServerChild

MODEL = "SmolLM2-135M-Instruct"
FRANCE = "The capital of France is"
SMG_READY_S = 60.0


def test_tritonclient_gets_the_same_greedy_answer(server: ServerChild, client: Client) -> None:
    wanted = client.generate(FRANCE, SamplingParams(temperature=0.0, max_new_tokens=12))
    prompt = triton.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([FRANCE.encode()], np.object_))
    wishes = {"temperature": 0.0, "max_tokens": 12}
    results: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with triton.InferenceServerClient(server.target) as connected:
        whole = connected.infer(MODEL, [prompt], parameters=wishes)
        connected.start_stream(lambda result, error: results.put((result, error)))
        connected.async_stream_infer(MODEL, [prompt], parameters={"stream": True, **wishes})
        pieces, is_final = [], False
        while not is_final:
            result, error = results.get(timeout=60)
            assert error is None
            pieces.append(result.as_numpy("text_output")[0].decode())
            is_final = result.get_response().parameters["triton_final_response"].bool_param
        connected.stop_stream()
    assert "".join(pieces) == wanted.answers[0].text
    assert len(pieces) > 2
    # Triton's default for whole answers puts the prompt first.
    assert whole.as_numpy("text_output")[0].decode() == FRANCE + wanted.answers[0].text


def test_a_client_of_reflection_gets_the_same_greedy_answer(
    server: ServerChild, client: Client
) -> None:
    params = SamplingParams(temperature=0.0, max_new_tokens=12)
    wanted = client.generate(FRANCE, params).answers[0].text
    knows_nothing = ReflectionClient.get_by_endpoint(
        server.target, descriptor_pool=DescriptorPool()
    )
    request = {
        "prompt": {"text": FRANCE},
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 12},
    }
    service = "omserve.v1.InferenceService"
    whole = knows_nothing.request(service, "Generate", request)
    assert whole["choices"][0]["text"] == wanted
    events = knows_nothing.request(service, "GenerateStream", request)
    assert "".join(event.get("text", "") for event in events) == wanted


def test_health_clients_see_it_serve(server: ServerChild) -> None:
    with grpc.insecure_channel(server.target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "ready", "omserve.v1.InferenceService"):
            request = health_pb2.HealthCheckRequest(service=name)
            assert health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
            watch = health.Watch(request)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            watch.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="unknown"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.fixture
def smg_url(server: ServerChild, smollm2_bundle: Path, tmp_path: Path) -> Iterator[str]:
    """The gateway smg in front of our gRPC port."""
    # It takes the model's name for the path of its tokenizer.
    (tmp_path / MODEL).symlink_to(smollm2_bundle / "tokenizer")
    port, metrics_port = _free_ports(2)
    command = [sys.executable, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", port]
    command += ["--worker-urls", f"grpc://{server.target}", "--log-level", "warn"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", metrics_port]
    with (tmp_path / "smg.log").open("wb") as log:
        smg = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        # On SIGTERM it would wait for five seconds.
        smg.kill()
        smg.wait()


def _free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_openai_client_behind_smg(smg_url: str, client: Client) -> None:
    """Its templates and its text are its own, the tokens are ours."""
    params = SamplingParams(temperature=0.0, max_new_tokens=12)
    question = "Name three fruits."
    wanted = client.generate([ChatMessage("user", question)], params).answers[0].text
    ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": question}]}
    ask |= {"temperature": 0, "max_completion_tokens": 12}
    with openai.OpenAI(base_url=smg_url, api_key="none", max_retries=0) as sdk:
        assert _once_ready(sdk, ask) == wanted
        chunks = list(sdk.chat.completions.create(**ask, stream=True))
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == wanted


def _once_ready(sdk: openai.OpenAI, ask: Any) -> str | None:
    """The answer, asked for until the gateway knows its worker and the tokenizer."""
    deadline = time.monotonic() + SMG_READY_S
    while True:
        try:
            return sdk.chat.completions.create(**ask).choices[0].message.content
        except (openai.APIConnectionError, openai.InternalServerError, openai.NotFoundError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
