"""The messages of `vllm.grpc.engine.VllmEngine`, as data.

Names, numbers and types are those of crates/grpc_client/proto/vllm_engine.proto of lightseekorg/smg
(Apache-2.0). Messages that we only refuse have no fields here.
"""

from __future__ import annotations

from server.dialects.private_pool import Dialect, Method, PrivateMessages

VLLM = Dialect(
    package="vllm.grpc.engine",
    service="VllmEngine",
    messages={
        "SamplingParams": (
            "optional float temperature = 1",
            "float top_p = 2",
            "uint32 top_k = 3",
            "float min_p = 4",
            "float frequency_penalty = 5",
            "float presence_penalty = 6",
            "float repetition_penalty = 7",
            "optional uint32 max_tokens = 8",
            "uint32 min_tokens = 9",
            "repeated string stop = 10",
            "repeated uint32 stop_token_ids = 11",
            "bool skip_special_tokens = 12",
            "bool spaces_between_special_tokens = 13",
            "bool ignore_eos = 14",
            "uint32 n = 15",
            "optional int32 logprobs = 22",
            "optional int32 prompt_logprobs = 23",
            "optional int32 seed = 24",
            "bool include_stop_str_in_output = 25",
            "map<int32, float> logit_bias = 26",
            "optional int32 truncate_prompt_tokens = 27",
        ),
        "SamplingParams/constraint": (
            "string json_schema = 16",
            "string regex = 17",
            "string grammar = 18",
            "string structural_tag = 19",
            "bool json_object = 20",
            "ChoiceConstraint choice = 21",
        ),
        "ChoiceConstraint": ("repeated string choices = 1",),
        "TokenizedInput": ("string original_text = 1", "repeated uint32 input_ids = 2"),
        "MultimodalInputs": (),
        "KvTransferParams": (),
        "GenerateRequest": (
            "string request_id = 1",
            "SamplingParams sampling_params = 4",
            "bool stream = 5",
            "KvTransferParams kv_transfer_params = 6",
            "MultimodalInputs mm_inputs = 7",
            "optional string kv_transfer_params_json = 8",
            "optional int32 data_parallel_rank = 9",
        ),
        "GenerateRequest/input": ("TokenizedInput tokenized = 2", "string text = 3"),
        "TopLogProbs": ("repeated float values = 1", "repeated uint32 token_ids = 2"),
        "OutputLogProbs": (
            "repeated float token_logprobs = 1",
            "repeated uint32 token_ids = 2",
            "repeated TopLogProbs top_logprobs = 3",
        ),
        "GenerateStreamChunk": (
            "repeated uint32 token_ids = 1",
            "uint32 prompt_tokens = 2",
            "uint32 completion_tokens = 3",
            "uint32 cached_tokens = 4",
            "OutputLogProbs output_logprobs = 5",
            "uint32 index = 7",
        ),
        "GenerateComplete": (
            "repeated uint32 output_ids = 1",
            "string finish_reason = 2",
            "uint32 prompt_tokens = 3",
            "uint32 completion_tokens = 4",
            "uint32 cached_tokens = 5",
            "OutputLogProbs output_logprobs = 6",
            "uint32 index = 8",
        ),
        "GenerateComplete/matched_stop": (
            "uint32 matched_token_id = 10",
            "string matched_stop_str = 11",
        ),
        "GenerateResponse/response": (
            "GenerateStreamChunk chunk = 1",
            "GenerateComplete complete = 2",
        ),
        "HealthCheckRequest": (),
        "HealthCheckResponse": ("bool healthy = 1", "string message = 2"),
        "AbortRequest": ("repeated string request_ids = 1",),
        "AbortResponse": (),
        "GetModelInfoRequest": (),
        "GetModelInfoResponse": (
            "string model_path = 1",
            "bool is_generation = 2",
            "uint32 max_context_length = 3",
            "uint32 vocab_size = 4",
            "bool supports_vision = 5",
            "string served_model_name = 6",
            "string tokenizer_path = 7",
            "string model_type = 8",
            "repeated string architectures = 9",
            "repeated int32 eos_token_ids = 10",
            "int32 pad_token_id = 11",
            "int32 bos_token_id = 12",
            "int32 max_req_input_len = 13",
            "string default_sampling_params_json = 14",
        ),
        "GetServerInfoRequest": (),
        "GetServerInfoResponse": (
            "uint32 active_requests = 1",
            "bool is_paused = 2",
            "double last_receive_timestamp = 3",
            "double uptime_seconds = 4",
            "string server_type = 5",
            "int32 data_parallel_size = 9",
        ),
    },
    methods=(
        Method("Generate", "GenerateRequest", "GenerateResponse", streams_responses=True),
        *(
            Method(name, f"{name}Request", f"{name}Response")
            for name in ("HealthCheck", "Abort", "GetModelInfo", "GetServerInfo")
        ),
    ),
)

REFUSED_METHODS = ("Embed", "GetLoads", "GetTokenizer", "SubscribeKvEvents")

MESSAGES = PrivateMessages(VLLM)
