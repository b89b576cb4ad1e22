"""A client that knows nothing calls ours and the dialects by reflection alone."""

from __future__ import annotations

from google.protobuf.descriptor_pool import DescriptorPool
from grpc_requests import Client

from tests.server.wire_fakes import FakeServer


def test_grpc_requests_finds_and_calls_every_service(server: FakeServer) -> None:
    client = Client.get_by_endpoint(server.target, descriptor_pool=DescriptorPool())
    assert {"omserve.v1.InferenceService", "inference.GRPCInferenceService"} <= set(
        client.service_names
    )
    ours = client.request("omserve.v1.InferenceService", "Generate", {"prompt": {"text": "x"}})
    assert ours["choices"][0]["text"] == "Hi!"
    request = {
        "model_name": "org/toy",
        "inputs": [
            {
                "name": "input_ids",
                "datatype": "INT64",
                "shape": [1],
                "contents": {"int64_contents": [4]},
            }
        ],
    }
    theirs = client.request("inference.GRPCInferenceService", "ModelInfer", request)
    assert theirs["outputs"][0]["name"] == "text_output"
    assert theirs["parameters"]["triton_final_response"] == {"bool_param": True}
