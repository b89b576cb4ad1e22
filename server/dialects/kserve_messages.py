"""The messages of `inference.GRPCInferenceService`, as data.

Names, numbers and types are those of the Open Inference Protocol, version 2 (KServe, Apache-2.0),
with the fields that Triton added (grpc_service.proto and model_config.proto of
triton-inference-server/common, BSD-3-Clause). What we neither read nor write is left out, so a
client that sends it is refused.
"""

from __future__ import annotations

from server.dialects.private_pool import Dialect, Method, PrivateMessages

_NAME_AND_VERSION = ("string name = 1", "string version = 2")
_PARAMETERS = "map<string, InferParameter> parameters"
_TENSOR = ("string name = 1", "string datatype = 2", "repeated int64 shape = 3")
_WITH_CONTENTS = (*_TENSOR, f"{_PARAMETERS} = 4", "InferTensorContents contents = 5")

KSERVE = Dialect(
    package="inference",
    service="GRPCInferenceService",
    messages={
        "ServerLiveRequest": (),
        "ServerLiveResponse": ("bool live = 1",),
        "ServerReadyRequest": (),
        "ServerReadyResponse": ("bool ready = 1",),
        "ModelReadyRequest": _NAME_AND_VERSION,
        "ModelReadyResponse": ("bool ready = 1",),
        "ServerMetadataRequest": (),
        "ServerMetadataResponse": (*_NAME_AND_VERSION, "repeated string extensions = 3"),
        "ModelMetadataRequest": _NAME_AND_VERSION,
        "ModelMetadataResponse": (
            "string name = 1",
            "repeated string versions = 2",
            "string platform = 3",
            "repeated ModelMetadataResponse.TensorMetadata inputs = 4",
            "repeated ModelMetadataResponse.TensorMetadata outputs = 5",
        ),
        "ModelMetadataResponse.TensorMetadata": _TENSOR,
        "ModelConfigRequest": _NAME_AND_VERSION,
        "ModelConfigResponse": ("ModelConfig config = 1",),
        "ModelConfig": (
            "string name = 1",
            "string platform = 2",
            "int32 max_batch_size = 4",
            "repeated ModelInput input = 5",
            "repeated ModelOutput output = 6",
            "string backend = 17",
            "ModelTransactionPolicy model_transaction_policy = 19",
        ),
        # data_type is an enum there, which is an int32 on the wire.
        "ModelInput": (
            "string name = 1",
            "int32 data_type = 2",
            "repeated int64 dims = 4",
            "bool optional = 8",
        ),
        "ModelOutput": ("string name = 1", "int32 data_type = 2", "repeated int64 dims = 3"),
        "ModelTransactionPolicy": ("bool decoupled = 1",),
        "InferParameter/parameter_choice": (
            "bool bool_param = 1",
            "int64 int64_param = 2",
            "string string_param = 3",
            "double double_param = 4",
            "uint64 uint64_param = 5",
        ),
        "InferTensorContents": (
            "repeated bool bool_contents = 1",
            "repeated int32 int_contents = 2",
            "repeated int64 int64_contents = 3",
            "repeated uint32 uint_contents = 4",
            "repeated uint64 uint64_contents = 5",
            "repeated float fp32_contents = 6",
            "repeated double fp64_contents = 7",
            "repeated bytes bytes_contents = 8",
        ),
        "ModelInferRequest": (
            "string model_name = 1",
            "string model_version = 2",
            "string id = 3",
            f"{_PARAMETERS} = 4",
            "repeated ModelInferRequest.InferInputTensor inputs = 5",
            "repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6",
            "repeated bytes raw_input_contents = 7",
        ),
        "ModelInferRequest.InferInputTensor": _WITH_CONTENTS,
        "ModelInferRequest.InferRequestedOutputTensor": ("string name = 1", f"{_PARAMETERS} = 2"),
        "ModelInferResponse": (
            "string model_name = 1",
            "string model_version = 2",
            "string id = 3",
            f"{_PARAMETERS} = 4",
            "repeated ModelInferResponse.InferOutputTensor outputs = 5",
            "repeated bytes raw_output_contents = 6",
        ),
        "ModelInferResponse.InferOutputTensor": _WITH_CONTENTS,
        "ModelStreamInferResponse": (
            "string error_message = 1",
            "ModelInferResponse infer_response = 2",
        ),
    },
    methods=(
        *(
            Method(name, f"{name}Request", f"{name}Response")
            for name in ["ServerLive", "ServerReady", "ModelReady", "ServerMetadata"]
        ),
        *(
            Method(name, f"{name}Request", f"{name}Response")
            for name in ["ModelMetadata", "ModelConfig", "ModelInfer"]
        ),
        Method("ModelStreamInfer", "ModelInferRequest", "ModelStreamInferResponse", True, True),
    ),
)

# Of Triton: its repository, shared memory, statistics and log settings have no counterpart here.
REFUSED_METHODS = (
    *("ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
    *("TraceSetting", "LogSettings"),
)

MESSAGES = PrivateMessages(KSERVE)
