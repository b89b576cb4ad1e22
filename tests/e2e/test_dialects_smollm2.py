"""Real clients of foreign dialects against SmolLM2: the same answers as over our own service."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
from tritonclient import grpc as triton

from omruntime.sampling_params import SamplingParams
from server.client import Client
from tests.e2e.server_child import ServerChild

MODEL = "SmolLM2-135M-Instruct"
FRANCE = "The capital of France is"


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
