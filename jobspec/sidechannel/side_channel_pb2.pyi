from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("job", "group", "epoch", "first_step", "layout_json", "optimizer")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_JSON_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    job: str
    group: str
    epoch: int
    first_step: int
    layout_json: str
    optimizer: OptimizerDescription
    def __init__(self, job: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., first_step: _Optional[int] = ..., layout_json: _Optional[str] = ..., optimizer: _Optional[_Union[OptimizerDescription, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("group", "epoch")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class StateChunk(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: StateHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[StateHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("group", "epoch", "step", "rank", "layout_version", "group_options_json", "loss", "objects", "parameter_digest")
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
    group: str
    epoch: int
    step: int
    rank: int
    layout_version: int
    group_options_json: _containers.RepeatedScalarFieldContainer[str]
    loss: float
    objects: _containers.MessageMap[str, StateObject]
    parameter_digest: bytes
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ..., layout_version: _Optional[int] = ..., group_options_json: _Optional[_Iterable[str]] = ..., loss: _Optional[float] = ..., objects: _Optional[_Mapping[str, StateObject]] = ..., parameter_digest: _Optional[bytes] = ...) -> None: ...

class StateObject(_message.Message):
    __slots__ = ("json", "raw")
    JSON_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    json: str
    raw: bytes
    def __init__(self, json: _Optional[str] = ..., raw: _Optional[bytes] = ...) -> None: ...

class RecordReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("group", "epoch", "trained_step", "replica_step", "durable_step", "gaps", "replica_packets", "replica_payload_bytes", "discarded", "pending_bytes")
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
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., trained_step: _Optional[int] = ..., replica_step: _Optional[int] = ..., durable_step: _Optional[int] = ..., gaps: _Optional[_Iterable[_Union[Gap, _Mapping]]] = ..., replica_packets: _Optional[int] = ..., replica_payload_bytes: _Optional[int] = ..., discarded: _Optional[_Mapping[str, int]] = ..., pending_bytes: _Optional[_Mapping[int, int]] = ...) -> None: ...

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
