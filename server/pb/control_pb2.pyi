from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVER_STATE_UNSPECIFIED: _ClassVar[ServerState]
    SERVER_STATE_LOADING: _ClassVar[ServerState]
    SERVER_STATE_SERVING: _ClassVar[ServerState]
    SERVER_STATE_DRAINING: _ClassVar[ServerState]
    SERVER_STATE_FAILED: _ClassVar[ServerState]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_PREFILL: _ClassVar[Phase]
    PHASE_DECODE: _ClassVar[Phase]

class LogLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_LEVEL_UNSPECIFIED: _ClassVar[LogLevel]
    LOG_LEVEL_DEBUG: _ClassVar[LogLevel]
    LOG_LEVEL_INFO: _ClassVar[LogLevel]
    LOG_LEVEL_WARNING: _ClassVar[LogLevel]
    LOG_LEVEL_ERROR: _ClassVar[LogLevel]
SERVER_STATE_UNSPECIFIED: ServerState
SERVER_STATE_LOADING: ServerState
SERVER_STATE_SERVING: ServerState
SERVER_STATE_DRAINING: ServerState
SERVER_STATE_FAILED: ServerState
PHASE_UNSPECIFIED: Phase
PHASE_PREFILL: Phase
PHASE_DECODE: Phase
LOG_LEVEL_UNSPECIFIED: LogLevel
LOG_LEVEL_DEBUG: LogLevel
LOG_LEVEL_INFO: LogLevel
LOG_LEVEL_WARNING: LogLevel
LOG_LEVEL_ERROR: LogLevel

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "state", "detail", "uptime_s", "device", "max_message_bytes", "is_simulated")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_SIMULATED_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: ServerState
    detail: str
    uptime_s: float
    device: str
    max_message_bytes: int
    is_simulated: bool
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[ServerState, str]] = ..., detail: _Optional[str] = ..., uptime_s: _Optional[float] = ..., device: _Optional[str] = ..., max_message_bytes: _Optional[int] = ..., is_simulated: _Optional[bool] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class SamplingDefaults(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ...) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("name", "architecture", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "dtype", "bos_token_id", "eos_token_ids", "eos_source", "sampling_defaults", "max_model_len", "max_num_seqs", "block_size", "profile", "soc", "kv_identity")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EOS_SOURCE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SOC_FIELD_NUMBER: _ClassVar[int]
    KV_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    dtype: str
    bos_token_id: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    eos_source: str
    sampling_defaults: SamplingDefaults
    max_model_len: int
    max_num_seqs: int
    block_size: int
    profile: str
    soc: str
    kv_identity: str
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., num_layers: _Optional[int] = ..., num_heads: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., vocab_size: _Optional[int] = ..., dtype: _Optional[str] = ..., bos_token_id: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., eos_source: _Optional[str] = ..., sampling_defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., max_model_len: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., block_size: _Optional[int] = ..., profile: _Optional[str] = ..., soc: _Optional[str] = ..., kv_identity: _Optional[str] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("num_running", "num_waiting", "num_waiting_tokens", "num_referenced_blocks", "num_cached_blocks", "num_total_blocks", "num_preemptions", "num_prefix_hit_tokens", "num_finished", "num_free_cached_blocks")
    class NumFinishedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_FINISHED_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_referenced_blocks: int
    num_cached_blocks: int
    num_total_blocks: int
    num_preemptions: int
    num_prefix_hit_tokens: int
    num_finished: _containers.ScalarMap[str, int]
    num_free_cached_blocks: int
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_waiting_tokens: _Optional[int] = ..., num_referenced_blocks: _Optional[int] = ..., num_cached_blocks: _Optional[int] = ..., num_total_blocks: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., num_prefix_hit_tokens: _Optional[int] = ..., num_finished: _Optional[_Mapping[str, int]] = ..., num_free_cached_blocks: _Optional[int] = ...) -> None: ...

class GetBucketsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BucketUse(_message.Message):
    __slots__ = ("phase", "batch", "tokens", "past_blocks", "predicted_s", "is_measured", "num_steps", "num_computed_rows", "num_padded_rows", "num_computed_tokens", "num_padded_tokens", "warm_up_s")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_S_FIELD_NUMBER: _ClassVar[int]
    IS_MEASURED_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_PADDED_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PADDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_S_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    batch: int
    tokens: int
    past_blocks: int
    predicted_s: float
    is_measured: bool
    num_steps: int
    num_computed_rows: int
    num_padded_rows: int
    num_computed_tokens: int
    num_padded_tokens: int
    warm_up_s: float
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., batch: _Optional[int] = ..., tokens: _Optional[int] = ..., past_blocks: _Optional[int] = ..., predicted_s: _Optional[float] = ..., is_measured: _Optional[bool] = ..., num_steps: _Optional[int] = ..., num_computed_rows: _Optional[int] = ..., num_padded_rows: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_padded_tokens: _Optional[int] = ..., warm_up_s: _Optional[float] = ...) -> None: ...

class GetBucketsResponse(_message.Message):
    __slots__ = ("buckets", "warm_up_s", "switch_s", "num_switches", "is_simulated")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_S_FIELD_NUMBER: _ClassVar[int]
    SWITCH_S_FIELD_NUMBER: _ClassVar[int]
    NUM_SWITCHES_FIELD_NUMBER: _ClassVar[int]
    IS_SIMULATED_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedCompositeFieldContainer[BucketUse]
    warm_up_s: float
    switch_s: float
    num_switches: int
    is_simulated: bool
    def __init__(self, buckets: _Optional[_Iterable[_Union[BucketUse, _Mapping]]] = ..., warm_up_s: _Optional[float] = ..., switch_s: _Optional[float] = ..., num_switches: _Optional[int] = ..., is_simulated: _Optional[bool] = ...) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("interval_s", "details")
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    details: bool
    def __init__(self, interval_s: _Optional[float] = ..., details: _Optional[bool] = ...) -> None: ...

class DurationHistogram(_message.Message):
    __slots__ = ("bounds_s", "counts", "sum_s")
    BOUNDS_S_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_S_FIELD_NUMBER: _ClassVar[int]
    bounds_s: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum_s: float
    def __init__(self, bounds_s: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum_s: _Optional[float] = ...) -> None: ...

class LiveAnswer(_message.Message):
    __slots__ = ("request_id", "tenant", "is_running", "num_prompt_tokens", "num_output_tokens", "num_computed_tokens", "num_cached_tokens", "num_blocks", "num_preemptions", "age_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    is_running: bool
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_blocks: int
    num_preemptions: int
    age_s: float
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., is_running: _Optional[bool] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class LoadDetails(_message.Message):
    __slots__ = ("age_s", "answers", "buckets", "block_states")
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_STATES_FIELD_NUMBER: _ClassVar[int]
    age_s: float
    answers: _containers.RepeatedCompositeFieldContainer[LiveAnswer]
    buckets: _containers.RepeatedCompositeFieldContainer[BucketUse]
    block_states: bytes
    def __init__(self, age_s: _Optional[float] = ..., answers: _Optional[_Iterable[_Union[LiveAnswer, _Mapping]]] = ..., buckets: _Optional[_Iterable[_Union[BucketUse, _Mapping]]] = ..., block_states: _Optional[bytes] = ...) -> None: ...

class WatchLoadResponse(_message.Message):
    __slots__ = ("uptime_s", "state", "num_requests", "load", "num_steps", "num_prefill_tokens", "num_generated_tokens", "num_computed_tokens", "num_padded_tokens", "num_bucket_switches", "num_refused", "time_to_first_token", "inter_token", "request", "details", "is_simulated")
    class NumRefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PADDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BUCKET_SWITCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INTER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    IS_SIMULATED_FIELD_NUMBER: _ClassVar[int]
    uptime_s: float
    state: ServerState
    num_requests: int
    load: GetLoadResponse
    num_steps: int
    num_prefill_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    num_padded_tokens: int
    num_bucket_switches: int
    num_refused: _containers.ScalarMap[str, int]
    time_to_first_token: DurationHistogram
    inter_token: DurationHistogram
    request: DurationHistogram
    details: LoadDetails
    is_simulated: bool
    def __init__(self, uptime_s: _Optional[float] = ..., state: _Optional[_Union[ServerState, str]] = ..., num_requests: _Optional[int] = ..., load: _Optional[_Union[GetLoadResponse, _Mapping]] = ..., num_steps: _Optional[int] = ..., num_prefill_tokens: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_padded_tokens: _Optional[int] = ..., num_bucket_switches: _Optional[int] = ..., num_refused: _Optional[_Mapping[str, int]] = ..., time_to_first_token: _Optional[_Union[DurationHistogram, _Mapping]] = ..., inter_token: _Optional[_Union[DurationHistogram, _Mapping]] = ..., request: _Optional[_Union[DurationHistogram, _Mapping]] = ..., details: _Optional[_Union[LoadDetails, _Mapping]] = ..., is_simulated: _Optional[bool] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id", "tenant", "all")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    all: AllRequests
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., all: _Optional[_Union[AllRequests, _Mapping]] = ...) -> None: ...

class AllRequests(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("num_aborted",)
    NUM_ABORTED_FIELD_NUMBER: _ClassVar[int]
    num_aborted: int
    def __init__(self, num_aborted: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace_s",)
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    def __init__(self, grace_s: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("num_requests", "num_running", "num_waiting", "is_refusing", "num_aborted", "is_drained")
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    IS_REFUSING_FIELD_NUMBER: _ClassVar[int]
    NUM_ABORTED_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINED_FIELD_NUMBER: _ClassVar[int]
    num_requests: int
    num_running: int
    num_waiting: int
    is_refusing: bool
    num_aborted: int
    is_drained: bool
    def __init__(self, num_requests: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., is_refusing: _Optional[bool] = ..., num_aborted: _Optional[int] = ..., is_drained: _Optional[bool] = ...) -> None: ...

class FlushPrefixCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushPrefixCacheResponse(_message.Message):
    __slots__ = ("num_blocks",)
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: LogLevel
    def __init__(self, level: _Optional[_Union[LogLevel, str]] = ...) -> None: ...

class SetLogLevelResponse(_message.Message):
    __slots__ = ("previous_level",)
    PREVIOUS_LEVEL_FIELD_NUMBER: _ClassVar[int]
    previous_level: LogLevel
    def __init__(self, previous_level: _Optional[_Union[LogLevel, str]] = ...) -> None: ...

class DumpStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DumpStateResponse(_message.Message):
    __slots__ = ("json", "cuts")
    JSON_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    json: str
    cuts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, json: _Optional[str] = ..., cuts: _Optional[_Iterable[str]] = ...) -> None: ...
