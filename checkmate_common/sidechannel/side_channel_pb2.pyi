from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FramesRequest(_message.Message):
    __slots__ = ("job", "group", "epoch", "step", "frames")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    epoch: int
    step: int
    frames: _containers.RepeatedCompositeFieldContainer[FrameKey]
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[FrameKey, _Mapping]]] = ...) -> None: ...

class FrameKey(_message.Message):
    __slots__ = ("flow_id", "index")
    FLOW_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    flow_id: int
    index: int
    def __init__(self, flow_id: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class FrameBytes(_message.Message):
    __slots__ = ("frame", "start", "data")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    frame: FrameKey
    start: int
    data: bytes
    def __init__(self, frame: _Optional[_Union[FrameKey, _Mapping]] = ..., start: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("job", "group", "epoch", "first_step", "layout_json", "optimizer", "state_objects", "changes", "communicator", "rejoin", "current_step", "uploads_on_demand")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_JSON_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    STATE_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    REJOIN_FIELD_NUMBER: _ClassVar[int]
    CURRENT_STEP_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_ON_DEMAND_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    epoch: int
    first_step: int
    layout_json: str
    optimizer: OptimizerDescription
    state_objects: _containers.RepeatedCompositeFieldContainer[StateObjectInfo]
    changes: _containers.RepeatedCompositeFieldContainer[ChangeRequest]
    communicator: str
    rejoin: bool
    current_step: int
    uploads_on_demand: bool
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., first_step: _Optional[int] = ..., layout_json: _Optional[str] = ..., optimizer: _Optional[_Union[OptimizerDescription, _Mapping]] = ..., state_objects: _Optional[_Iterable[_Union[StateObjectInfo, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[ChangeRequest, _Mapping]]] = ..., communicator: _Optional[str] = ..., rejoin: _Optional[bool] = ..., current_step: _Optional[int] = ..., uploads_on_demand: _Optional[bool] = ...) -> None: ...

class StateObjectInfo(_message.Message):
    __slots__ = ("name", "kind", "shape", "dtype", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    digest: bytes
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class OptimizerDescription(_message.Message):
    __slots__ = ("name", "groups")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    groups: _containers.RepeatedCompositeFieldContainer[ParamGroup]
    def __init__(self, name: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[ParamGroup, _Mapping]]] = ...) -> None: ...

class ParamGroup(_message.Message):
    __slots__ = ("params", "options_json")
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    params: _containers.RepeatedScalarFieldContainer[str]
    options_json: str
    def __init__(self, params: _Optional[_Iterable[str]] = ..., options_json: _Optional[str] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("need_state",)
    NEED_STATE_FIELD_NUMBER: _ClassVar[int]
    need_state: bool
    def __init__(self, need_state: _Optional[bool] = ...) -> None: ...

class StateHeader(_message.Message):
    __slots__ = ("group", "epoch", "step", "final", "state_bytes", "state_sha256")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    step: int
    final: bool
    state_bytes: int
    state_sha256: bytes
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., final: _Optional[bool] = ..., state_bytes: _Optional[int] = ..., state_sha256: _Optional[bytes] = ...) -> None: ...

class StateChunk(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: StateHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[StateHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ("adopted",)
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    adopted: bool
    def __init__(self, adopted: _Optional[bool] = ...) -> None: ...

class OpenFlowRequest(_message.Message):
    __slots__ = ("group", "epoch", "flow_id", "source_port")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FLOW_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PORT_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    flow_id: int
    source_port: int
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., flow_id: _Optional[int] = ..., source_port: _Optional[int] = ...) -> None: ...

class OpenFlowReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("group", "epoch", "step", "rank", "layout_version", "group_options_json", "loss", "objects", "parameter_digest", "optimizer_digest", "state_digest", "state_objects", "gradient_scale", "skipped")
    class ObjectsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: StateObject
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[StateObject, _Mapping]] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_SCALE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    step: int
    rank: int
    layout_version: int
    group_options_json: _containers.RepeatedScalarFieldContainer[str]
    loss: float
    objects: _containers.MessageMap[str, StateObject]
    parameter_digest: bytes
    optimizer_digest: bytes
    state_digest: bytes
    state_objects: _containers.RepeatedCompositeFieldContainer[StateObjectInfo]
    gradient_scale: float
    skipped: bool
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ..., layout_version: _Optional[int] = ..., group_options_json: _Optional[_Iterable[str]] = ..., loss: _Optional[float] = ..., objects: _Optional[_Mapping[str, StateObject]] = ..., parameter_digest: _Optional[bytes] = ..., optimizer_digest: _Optional[bytes] = ..., state_digest: _Optional[bytes] = ..., state_objects: _Optional[_Iterable[_Union[StateObjectInfo, _Mapping]]] = ..., gradient_scale: _Optional[float] = ..., skipped: _Optional[bool] = ...) -> None: ...

class StateObject(_message.Message):
    __slots__ = ("json", "raw", "tensor", "step")
    JSON_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    json: str
    raw: bytes
    tensor: TensorValue
    step: int
    def __init__(self, json: _Optional[str] = ..., raw: _Optional[bytes] = ..., tensor: _Optional[_Union[TensorValue, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class TensorValue(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ChangeRequest(_message.Message):
    __slots__ = ("group", "epoch", "effective_step", "layout_json", "optimizer", "state")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_STEP_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_JSON_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    effective_step: int
    layout_json: str
    optimizer: OptimizerDescription
    state: bytes
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., effective_step: _Optional[int] = ..., layout_json: _Optional[str] = ..., optimizer: _Optional[_Union[OptimizerDescription, _Mapping]] = ..., state: _Optional[bytes] = ...) -> None: ...

class ChangeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordReply(_message.Message):
    __slots__ = ("state_wanted", "state_from", "flows_unknown", "list_wanted")
    STATE_WANTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FROM_FIELD_NUMBER: _ClassVar[int]
    FLOWS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    LIST_WANTED_FIELD_NUMBER: _ClassVar[int]
    state_wanted: bool
    state_from: int
    flows_unknown: bool
    list_wanted: bool
    def __init__(self, state_wanted: _Optional[bool] = ..., state_from: _Optional[int] = ..., flows_unknown: _Optional[bool] = ..., list_wanted: _Optional[bool] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("step", "reason", "detail")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    step: int
    reason: str
    detail: str
    def __init__(self, step: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("group", "epoch", "trained_step", "replica_step", "durable_step", "gaps", "replica_packets", "replica_payload_bytes", "discarded", "pending_bytes", "state_wanted", "state_from", "replica_lag", "durable_lag", "collecting_step", "coverage", "buffers", "load", "totals", "apply_durations", "store_durations", "confirmed")
    class DiscardedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PendingBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRAINED_STEP_FIELD_NUMBER: _ClassVar[int]
    REPLICA_STEP_FIELD_NUMBER: _ClassVar[int]
    DURABLE_STEP_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_PACKETS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_WANTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FROM_FIELD_NUMBER: _ClassVar[int]
    REPLICA_LAG_FIELD_NUMBER: _ClassVar[int]
    DURABLE_LAG_FIELD_NUMBER: _ClassVar[int]
    COLLECTING_STEP_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    APPLY_DURATIONS_FIELD_NUMBER: _ClassVar[int]
    STORE_DURATIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    trained_step: int
    replica_step: int
    durable_step: int
    gaps: _containers.RepeatedCompositeFieldContainer[Gap]
    replica_packets: int
    replica_payload_bytes: int
    discarded: _containers.ScalarMap[str, int]
    pending_bytes: _containers.ScalarMap[int, int]
    state_wanted: bool
    state_from: int
    replica_lag: Lag
    durable_lag: Lag
    collecting_step: int
    coverage: _containers.RepeatedCompositeFieldContainer[FlowCoverage]
    buffers: Buffers
    load: Load
    totals: Totals
    apply_durations: Durations
    store_durations: Durations
    confirmed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., trained_step: _Optional[int] = ..., replica_step: _Optional[int] = ..., durable_step: _Optional[int] = ..., gaps: _Optional[_Iterable[_Union[Gap, _Mapping]]] = ..., replica_packets: _Optional[int] = ..., replica_payload_bytes: _Optional[int] = ..., discarded: _Optional[_Mapping[str, int]] = ..., pending_bytes: _Optional[_Mapping[int, int]] = ..., state_wanted: _Optional[bool] = ..., state_from: _Optional[int] = ..., replica_lag: _Optional[_Union[Lag, _Mapping]] = ..., durable_lag: _Optional[_Union[Lag, _Mapping]] = ..., collecting_step: _Optional[int] = ..., coverage: _Optional[_Iterable[_Union[FlowCoverage, _Mapping]]] = ..., buffers: _Optional[_Union[Buffers, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., totals: _Optional[_Union[Totals, _Mapping]] = ..., apply_durations: _Optional[_Union[Durations, _Mapping]] = ..., store_durations: _Optional[_Union[Durations, _Mapping]] = ..., confirmed: _Optional[_Iterable[str]] = ...) -> None: ...

class Lag(_message.Message):
    __slots__ = ("steps", "seconds", "bytes", "reason", "detail")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    steps: int
    seconds: float
    bytes: int
    reason: str
    detail: str
    def __init__(self, steps: _Optional[int] = ..., seconds: _Optional[float] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class FlowCoverage(_message.Message):
    __slots__ = ("flow_id", "primary_bytes", "primary_expected_bytes", "redundant_bytes", "redundant_expected_bytes")
    FLOW_ID_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_EXPECTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REDUNDANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REDUNDANT_EXPECTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    flow_id: int
    primary_bytes: int
    primary_expected_bytes: int
    redundant_bytes: int
    redundant_expected_bytes: int
    def __init__(self, flow_id: _Optional[int] = ..., primary_bytes: _Optional[int] = ..., primary_expected_bytes: _Optional[int] = ..., redundant_bytes: _Optional[int] = ..., redundant_expected_bytes: _Optional[int] = ...) -> None: ...

class Buffers(_message.Message):
    __slots__ = ("slots_used", "slots", "held", "hold", "queued", "queue_limit", "store_stride", "collecting_bytes", "state_bytes", "queued_bytes", "log_bytes", "memory_limit_bytes")
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    STORE_STRIDE_FIELD_NUMBER: _ClassVar[int]
    COLLECTING_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    slots_used: int
    slots: int
    held: int
    hold: int
    queued: int
    queue_limit: int
    store_stride: int
    collecting_bytes: int
    state_bytes: int
    queued_bytes: int
    log_bytes: int
    memory_limit_bytes: int
    def __init__(self, slots_used: _Optional[int] = ..., slots: _Optional[int] = ..., held: _Optional[int] = ..., hold: _Optional[int] = ..., queued: _Optional[int] = ..., queue_limit: _Optional[int] = ..., store_stride: _Optional[int] = ..., collecting_bytes: _Optional[int] = ..., state_bytes: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., log_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("step_seconds", "apply_seconds", "store_seconds", "overloaded", "nodes_needed")
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    APPLY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OVERLOADED_FIELD_NUMBER: _ClassVar[int]
    NODES_NEEDED_FIELD_NUMBER: _ClassVar[int]
    step_seconds: float
    apply_seconds: float
    store_seconds: float
    overloaded: bool
    nodes_needed: int
    def __init__(self, step_seconds: _Optional[float] = ..., apply_seconds: _Optional[float] = ..., store_seconds: _Optional[float] = ..., overloaded: _Optional[bool] = ..., nodes_needed: _Optional[int] = ...) -> None: ...

class Totals(_message.Message):
    __slots__ = ("replicated_steps", "stored_steps", "repaired_bytes", "peer_bytes", "resyncs", "lost_steps", "unstored_steps")
    class LostStepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class UnstoredStepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REPLICATED_STEPS_FIELD_NUMBER: _ClassVar[int]
    STORED_STEPS_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEER_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESYNCS_FIELD_NUMBER: _ClassVar[int]
    LOST_STEPS_FIELD_NUMBER: _ClassVar[int]
    UNSTORED_STEPS_FIELD_NUMBER: _ClassVar[int]
    replicated_steps: int
    stored_steps: int
    repaired_bytes: int
    peer_bytes: int
    resyncs: int
    lost_steps: _containers.ScalarMap[str, int]
    unstored_steps: _containers.ScalarMap[str, int]
    def __init__(self, replicated_steps: _Optional[int] = ..., stored_steps: _Optional[int] = ..., repaired_bytes: _Optional[int] = ..., peer_bytes: _Optional[int] = ..., resyncs: _Optional[int] = ..., lost_steps: _Optional[_Mapping[str, int]] = ..., unstored_steps: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Durations(_message.Message):
    __slots__ = ("upper_bounds", "cumulative_counts", "sum_seconds")
    UPPER_BOUNDS_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_SECONDS_FIELD_NUMBER: _ClassVar[int]
    upper_bounds: _containers.RepeatedScalarFieldContainer[float]
    cumulative_counts: _containers.RepeatedScalarFieldContainer[int]
    sum_seconds: float
    def __init__(self, upper_bounds: _Optional[_Iterable[float]] = ..., cumulative_counts: _Optional[_Iterable[int]] = ..., sum_seconds: _Optional[float] = ...) -> None: ...

class NodeStatusRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("job", "shadow", "version", "groups", "parts")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    shadow: str
    version: str
    groups: _containers.RepeatedCompositeFieldContainer[Status]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, job: _Optional[str] = ..., shadow: _Optional[str] = ..., version: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[Status, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("name", "trouble", "lost")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    name: str
    trouble: str
    lost: int
    def __init__(self, name: _Optional[str] = ..., trouble: _Optional[str] = ..., lost: _Optional[int] = ...) -> None: ...

class RecoveryPointRequest(_message.Message):
    __slots__ = ("group", "step")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    group: str
    step: int
    def __init__(self, group: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class RecoveryPointChunk(_message.Message):
    __slots__ = ("manifest_json", "data")
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    manifest_json: str
    data: bytes
    def __init__(self, manifest_json: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("group", "step", "timeout_seconds")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    group: str
    step: int
    timeout_seconds: float
    def __init__(self, group: _Optional[str] = ..., step: _Optional[int] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...
