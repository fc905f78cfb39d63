import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ContentType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    CONTENT_TYPE_BYTES: _ClassVar[ContentType]
    CONTENT_TYPE_JSON: _ClassVar[ContentType]
    CONTENT_TYPE_TEXT: _ClassVar[ContentType]
    CONTENT_TYPE_TASK: _ClassVar[ContentType]
    CONTENT_TYPE_TOMBSTONE: _ClassVar[ContentType]

class OnError(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    ON_ERROR_FAIL: _ClassVar[OnError]
    ON_ERROR_SKIP: _ClassVar[OnError]

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    DURABILITY_DEFAULT: _ClassVar[Durability]
    DURABILITY_FSYNC: _ClassVar[Durability]
    DURABILITY_INTERVAL: _ClassVar[Durability]
    DURABILITY_OS: _ClassVar[Durability]

class QueueOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    QUEUE_ORDER_FAIR: _ClassVar[QueueOrder]
    QUEUE_ORDER_LISTED: _ClassVar[QueueOrder]
CONTENT_TYPE_BYTES: ContentType
CONTENT_TYPE_JSON: ContentType
CONTENT_TYPE_TEXT: ContentType
CONTENT_TYPE_TASK: ContentType
CONTENT_TYPE_TOMBSTONE: ContentType
ON_ERROR_FAIL: OnError
ON_ERROR_SKIP: OnError
DURABILITY_DEFAULT: Durability
DURABILITY_FSYNC: Durability
DURABILITY_INTERVAL: Durability
DURABILITY_OS: Durability
QUEUE_ORDER_FAIR: QueueOrder
QUEUE_ORDER_LISTED: QueueOrder

class NewMessage(_message.Message):
    class HeadersEntry(_message.Message):
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    payload: bytes
    content_type: ContentType
    key: str
    priority: int
    delay_ms: int
    deliver_at: _timestamp_pb2.Timestamp
    ttl_ms: int
    headers: _containers.ScalarMap[str, str]
    dedup_key: str
    partition: str
    max_attempts: int
    trace: str
    def __init__(self, payload: _Optional[bytes] = ..., content_type: _Optional[_Union[ContentType, str]] = ..., key: _Optional[str] = ..., priority: _Optional[int] = ..., delay_ms: _Optional[int] = ..., deliver_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ttl_ms: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ..., dedup_key: _Optional[str] = ..., partition: _Optional[str] = ..., max_attempts: _Optional[int] = ..., trace: _Optional[str] = ...) -> None: ...

class PushRequest(_message.Message):
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[NewMessage]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    batch: bytes
    partition: str
    durability: Durability
    on_error: OnError
    def __init__(self, queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[NewMessage, _Mapping]]] = ..., payloads: _Optional[_Iterable[bytes]] = ..., batch: _Optional[bytes] = ..., partition: _Optional[str] = ..., durability: _Optional[_Union[Durability, str]] = ..., on_error: _Optional[_Union[OnError, str]] = ...) -> None: ...

class PushResponse(_message.Message):
    ids: _containers.RepeatedScalarFieldContainer[str]
    duplicates: _containers.RepeatedScalarFieldContainer[int]
    failures: _containers.RepeatedCompositeFieldContainer[PushFailure]
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., duplicates: _Optional[_Iterable[int]] = ..., failures: _Optional[_Iterable[_Union[PushFailure, _Mapping]]] = ...) -> None: ...

class PushFailure(_message.Message):
    place: int
    error: Error
    def __init__(self, place: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class LeaseRequest(_message.Message):
    queue: str
    group: str
    max: int
    wait_ms: int
    lease_ms: int
    consumer: str
    partitions: _containers.RepeatedScalarFieldContainer[str]
    auto_ack: bool
    member: str
    generation: int
    max_bytes: int
    start: Position
    task_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., consumer: _Optional[str] = ..., partitions: _Optional[_Iterable[str]] = ..., auto_ack: _Optional[bool] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ..., max_bytes: _Optional[int] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., task_types: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaseQueuesRequest(_message.Message):
    queues: _containers.RepeatedScalarFieldContainer[str]
    order: QueueOrder
    group: str
    max: int
    wait_ms: int
    lease_ms: int
    consumer: str
    auto_ack: bool
    max_bytes: int
    start: Position
    task_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., order: _Optional[_Union[QueueOrder, str]] = ..., group: _Optional[str] = ..., max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., consumer: _Optional[str] = ..., auto_ack: _Optional[bool] = ..., max_bytes: _Optional[int] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., task_types: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaseQueuesResponse(_message.Message):
    leases: _containers.RepeatedCompositeFieldContainer[LeaseResponse]
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseResponse, _Mapping]]] = ...) -> None: ...

class LeaseResponse(_message.Message):
    lease_id: str
    expires_at: _timestamp_pb2.Timestamp
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, lease_id: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Delivery(_message.Message):
    class HeadersEntry(_message.Message):
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    id: str
    receipt: str
    payload: bytes
    content_type: ContentType
    attempt: int
    key: str
    priority: int
    headers: _containers.ScalarMap[str, str]
    trace: str
    pushed_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., receipt: _Optional[str] = ..., payload: _Optional[bytes] = ..., content_type: _Optional[_Union[ContentType, str]] = ..., attempt: _Optional[int] = ..., key: _Optional[str] = ..., priority: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ..., trace: _Optional[str] = ..., pushed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Settlement(_message.Message):
    receipts: _containers.RepeatedScalarFieldContainer[str]
    lease_id: str
    ack: Ack
    nack: Nack
    reject: Reject
    release: Release
    snooze: Snooze
    def __init__(self, receipts: _Optional[_Iterable[str]] = ..., lease_id: _Optional[str] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., reject: _Optional[_Union[Reject, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., snooze: _Optional[_Union[Snooze, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    def __init__(self) -> None: ...

class Nack(_message.Message):
    delay_ms: int
    error: str
    def __init__(self, delay_ms: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Reject(_message.Message):
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    def __init__(self) -> None: ...

class Snooze(_message.Message):
    delay_ms: int
    def __init__(self, delay_ms: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    def __init__(self, settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ...) -> None: ...

class SettleResponse(_message.Message):
    results: _containers.RepeatedCompositeFieldContainer[SettleResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SettleResult, _Mapping]]] = ...) -> None: ...

class SettleResult(_message.Message):
    receipt: str
    error: Error
    def __init__(self, receipt: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    code: str
    message: str
    hint: str
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class ExtendRequest(_message.Message):
    receipts: _containers.RepeatedScalarFieldContainer[str]
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    lease_ms: int
    def __init__(self, receipts: _Optional[_Iterable[str]] = ..., lease_ids: _Optional[_Iterable[str]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class ExtendResponse(_message.Message):
    results: _containers.RepeatedCompositeFieldContainer[ExtendResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ExtendResult, _Mapping]]] = ...) -> None: ...

class ExtendResult(_message.Message):
    receipt: str
    expires_at: _timestamp_pb2.Timestamp
    error: Error
    def __init__(self, receipt: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class StreamOpen(_message.Message):
    queue: str
    group: str
    batch: int
    lease_ms: int
    consumer: str
    partitions: _containers.RepeatedScalarFieldContainer[str]
    auto_ack: bool
    credit: int
    start: Position
    queues: _containers.RepeatedScalarFieldContainer[str]
    order: QueueOrder
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., batch: _Optional[int] = ..., lease_ms: _Optional[int] = ..., consumer: _Optional[str] = ..., partitions: _Optional[_Iterable[str]] = ..., auto_ack: _Optional[bool] = ..., credit: _Optional[int] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., queues: _Optional[_Iterable[str]] = ..., order: _Optional[_Union[QueueOrder, str]] = ...) -> None: ...

class StreamRequest(_message.Message):
    id: int
    open: StreamOpen
    credit: int
    settle: Settlement
    extend: ExtendRequest
    def __init__(self, id: _Optional[int] = ..., open: _Optional[_Union[StreamOpen, _Mapping]] = ..., credit: _Optional[int] = ..., settle: _Optional[_Union[Settlement, _Mapping]] = ..., extend: _Optional[_Union[ExtendRequest, _Mapping]] = ...) -> None: ...

class StreamResponse(_message.Message):
    id: int
    lease: LeaseResponse
    settled: SettleResponse
    extended: ExtendResponse
    goodbye: Goodbye
    error: Error
    def __init__(self, id: _Optional[int] = ..., lease: _Optional[_Union[LeaseResponse, _Mapping]] = ..., settled: _Optional[_Union[SettleResponse, _Mapping]] = ..., extended: _Optional[_Union[ExtendResponse, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Goodbye(_message.Message):
    def __init__(self) -> None: ...

class TransactRequest(_message.Message):
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...

class Operation(_message.Message):
    push: PushRequest
    settle: Settlement
    def __init__(self, push: _Optional[_Union[PushRequest, _Mapping]] = ..., settle: _Optional[_Union[Settlement, _Mapping]] = ...) -> None: ...

class TransactResponse(_message.Message):
    pushes: _containers.RepeatedCompositeFieldContainer[PushResponse]
    def __init__(self, pushes: _Optional[_Iterable[_Union[PushResponse, _Mapping]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    queue: str
    partition: str
    offset: int
    timestamp: _timestamp_pb2.Timestamp
    limit: int
    def __init__(self, queue: _Optional[str] = ..., partition: _Optional[str] = ..., offset: _Optional[int] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class PeekRequest(_message.Message):
    queue: str
    limit: int
    def __init__(self, queue: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GetLatestRequest(_message.Message):
    queue: str
    key: str
    def __init__(self, queue: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class ListDelayedRequest(_message.Message):
    queue: str
    limit: int
    include: str
    def __init__(self, queue: _Optional[str] = ..., limit: _Optional[int] = ..., include: _Optional[str] = ...) -> None: ...

class ReadResponse(_message.Message):
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ...) -> None: ...

class StoredMessage(_message.Message):
    class HeadersEntry(_message.Message):
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    id: str
    payload: bytes
    content_type: ContentType
    key: str
    priority: int
    headers: _containers.ScalarMap[str, str]
    dedup_key: str
    max_attempts: int
    trace: str
    pushed_at: _timestamp_pb2.Timestamp
    available_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    retry: Retry
    def __init__(self, id: _Optional[str] = ..., payload: _Optional[bytes] = ..., content_type: _Optional[_Union[ContentType, str]] = ..., key: _Optional[str] = ..., priority: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ..., dedup_key: _Optional[str] = ..., max_attempts: _Optional[int] = ..., trace: _Optional[str] = ..., pushed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., available_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., retry: _Optional[_Union[Retry, _Mapping]] = ...) -> None: ...

class Retry(_message.Message):
    group: str
    attempt: int
    due_at: _timestamp_pb2.Timestamp
    reason: str
    error: str
    failed_at: _timestamp_pb2.Timestamp
    def __init__(self, group: _Optional[str] = ..., attempt: _Optional[int] = ..., due_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ..., failed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WhyRequest(_message.Message):
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class WhyResponse(_message.Message):
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    def __init__(self, reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ...) -> None: ...

class Reason(_message.Message):
    group: str
    code: str
    text: str
    outcome: str
    error: str
    due_at: _timestamp_pb2.Timestamp
    def __init__(self, group: _Optional[str] = ..., code: _Optional[str] = ..., text: _Optional[str] = ..., outcome: _Optional[str] = ..., error: _Optional[str] = ..., due_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WhyQueueRequest(_message.Message):
    queue: str
    group: str
    limit: int
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class QueueWait(_message.Message):
    queue: str
    at: _timestamp_pb2.Timestamp
    groups: _containers.RepeatedCompositeFieldContainer[GroupWait]
    def __init__(self, queue: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupWait, _Mapping]]] = ...) -> None: ...

class GroupWait(_message.Message):
    group: str
    open: int
    leased: int
    waiting: int
    settled_per_second: float
    eta_ms: int
    examined: int
    is_complete: bool
    reasons: _containers.RepeatedCompositeFieldContainer[WaitReason]
    def __init__(self, group: _Optional[str] = ..., open: _Optional[int] = ..., leased: _Optional[int] = ..., waiting: _Optional[int] = ..., settled_per_second: _Optional[float] = ..., eta_ms: _Optional[int] = ..., examined: _Optional[int] = ..., is_complete: _Optional[bool] = ..., reasons: _Optional[_Iterable[_Union[WaitReason, _Mapping]]] = ...) -> None: ...

class WaitReason(_message.Message):
    code: str
    count: int
    text: str
    key: str
    in_flight: int
    limit: int
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    eta_ms: int
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    sample: str
    def __init__(self, code: _Optional[str] = ..., count: _Optional[int] = ..., text: _Optional[str] = ..., key: _Optional[str] = ..., in_flight: _Optional[int] = ..., limit: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., eta_ms: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., sample: _Optional[str] = ...) -> None: ...

class Holder(_message.Message):
    consumer: str
    messages: int
    since: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, consumer: _Optional[str] = ..., messages: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    queue: str
    group: str
    key: str
    prefix: str
    limit: int
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., key: _Optional[str] = ..., prefix: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    queue: str
    group: str
    at: _timestamp_pb2.Timestamp
    keys: _containers.RepeatedCompositeFieldContainer[KeyBacklog]
    distinct: int
    without_key: int
    examined: int
    is_complete: bool
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., keys: _Optional[_Iterable[_Union[KeyBacklog, _Mapping]]] = ..., distinct: _Optional[int] = ..., without_key: _Optional[int] = ..., examined: _Optional[int] = ..., is_complete: _Optional[bool] = ...) -> None: ...

class KeyBacklog(_message.Message):
    key: str
    backlog: int
    in_flight: int
    waiting: int
    code: str
    oldest_at: _timestamp_pb2.Timestamp
    oldest_id: str
    in_flight_max: int
    rate_per_second: float
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    def __init__(self, key: _Optional[str] = ..., backlog: _Optional[int] = ..., in_flight: _Optional[int] = ..., waiting: _Optional[int] = ..., code: _Optional[str] = ..., oldest_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., oldest_id: _Optional[str] = ..., in_flight_max: _Optional[int] = ..., rate_per_second: _Optional[float] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ...) -> None: ...

class GetAccountRequest(_message.Message):
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class QueueAccount(_message.Message):
    queue: str
    at: _timestamp_pb2.Timestamp
    is_balanced: bool
    groups: _containers.RepeatedCompositeFieldContainer[GroupAccount]
    def __init__(self, queue: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., is_balanced: _Optional[bool] = ..., groups: _Optional[_Iterable[_Union[GroupAccount, _Mapping]]] = ...) -> None: ...

class GroupAccount(_message.Message):
    group: str
    accepted: int
    acked: int
    dead: int
    dropped: int
    open: int
    difference: int
    def __init__(self, group: _Optional[str] = ..., accepted: _Optional[int] = ..., acked: _Optional[int] = ..., dead: _Optional[int] = ..., dropped: _Optional[int] = ..., open: _Optional[int] = ..., difference: _Optional[int] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class MessageDetails(_message.Message):
    message: StoredMessage
    groups: _containers.RepeatedCompositeFieldContainer[MessageState]
    def __init__(self, message: _Optional[_Union[StoredMessage, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[MessageState, _Mapping]]] = ...) -> None: ...

class MessageState(_message.Message):
    group: str
    state: str
    code: str
    text: str
    attempts: int
    outcome: str
    error: str
    failed_at: _timestamp_pb2.Timestamp
    due_at: _timestamp_pb2.Timestamp
    consumer: str
    leased_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, group: _Optional[str] = ..., state: _Optional[str] = ..., code: _Optional[str] = ..., text: _Optional[str] = ..., attempts: _Optional[int] = ..., outcome: _Optional[str] = ..., error: _Optional[str] = ..., failed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., due_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., consumer: _Optional[str] = ..., leased_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListMessageEventsRequest(_message.Message):
    id: str
    limit: int
    def __init__(self, id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListMessageEventsResponse(_message.Message):
    events: _containers.RepeatedCompositeFieldContainer[MessageEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[MessageEvent, _Mapping]]] = ...) -> None: ...

class MessageEvent(_message.Message):
    at: _timestamp_pb2.Timestamp
    what: str
    group: str
    attempt: int
    consumer: str
    error: str
    due_at: _timestamp_pb2.Timestamp
    letter: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., what: _Optional[str] = ..., group: _Optional[str] = ..., attempt: _Optional[int] = ..., consumer: _Optional[str] = ..., error: _Optional[str] = ..., due_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., letter: _Optional[str] = ...) -> None: ...

class FindMessagesRequest(_message.Message):
    queue: str
    key: str
    trace: str
    limit: int
    look_back: int
    def __init__(self, queue: _Optional[str] = ..., key: _Optional[str] = ..., trace: _Optional[str] = ..., limit: _Optional[int] = ..., look_back: _Optional[int] = ...) -> None: ...

class FindMessagesResponse(_message.Message):
    timelines: _containers.RepeatedCompositeFieldContainer[Timeline]
    examined: int
    looked_back_to: _timestamp_pb2.Timestamp
    is_complete: bool
    def __init__(self, timelines: _Optional[_Iterable[_Union[Timeline, _Mapping]]] = ..., examined: _Optional[int] = ..., looked_back_to: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., is_complete: _Optional[bool] = ...) -> None: ...

class MessageFilter(_message.Message):
    class HeadersEntry(_message.Message):
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    key: str
    headers: _containers.ScalarMap[str, str]
    text: str
    trace: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., key: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., text: _Optional[str] = ..., trace: _Optional[str] = ...) -> None: ...

class SearchMessagesRequest(_message.Message):
    queue: str
    filter: MessageFilter
    state: str
    group: str
    limit: int
    look_back: int
    cursor: str
    def __init__(self, queue: _Optional[str] = ..., filter: _Optional[_Union[MessageFilter, _Mapping]] = ..., state: _Optional[str] = ..., group: _Optional[str] = ..., limit: _Optional[int] = ..., look_back: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class SearchMessagesResponse(_message.Message):
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    cursor: str
    examined: int
    looked_back_to: _timestamp_pb2.Timestamp
    def __init__(self, messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ..., cursor: _Optional[str] = ..., examined: _Optional[int] = ..., looked_back_to: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Timeline(_message.Message):
    id: str
    pushed_at: _timestamp_pb2.Timestamp
    key: str
    trace: str
    events: _containers.RepeatedCompositeFieldContainer[MessageEvent]
    def __init__(self, id: _Optional[str] = ..., pushed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., key: _Optional[str] = ..., trace: _Optional[str] = ..., events: _Optional[_Iterable[_Union[MessageEvent, _Mapping]]] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    queue: str
    messages: int
    partitions: int
    bytes_stored: int
    paused: bool
    groups: _containers.RepeatedCompositeFieldContainer[GroupStats]
    push_paused: bool
    def __init__(self, queue: _Optional[str] = ..., messages: _Optional[int] = ..., partitions: _Optional[int] = ..., bytes_stored: _Optional[int] = ..., paused: _Optional[bool] = ..., groups: _Optional[_Iterable[_Union[GroupStats, _Mapping]]] = ..., push_paused: _Optional[bool] = ...) -> None: ...

class GroupStats(_message.Message):
    class DroppedByEntry(_message.Message):
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    name: str
    messages: int
    ready: int
    leased: int
    waiting: int
    acked: int
    dead: int
    dropped: int
    dropped_by: _containers.ScalarMap[str, int]
    lag: int
    oldest_unsettled_at: _timestamp_pb2.Timestamp
    paused: bool
    def __init__(self, name: _Optional[str] = ..., messages: _Optional[int] = ..., ready: _Optional[int] = ..., leased: _Optional[int] = ..., waiting: _Optional[int] = ..., acked: _Optional[int] = ..., dead: _Optional[int] = ..., dropped: _Optional[int] = ..., dropped_by: _Optional[_Mapping[str, int]] = ..., lag: _Optional[int] = ..., oldest_unsettled_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., paused: _Optional[bool] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    queues: _containers.RepeatedScalarFieldContainer[str]
    interval_ms: int
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    type: str
    queue: str
    group: str
    at: _timestamp_pb2.Timestamp
    counters: _containers.RepeatedCompositeFieldContainer[GetStatsResponse]
    missed: int
    def __init__(self, type: _Optional[str] = ..., queue: _Optional[str] = ..., group: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., counters: _Optional[_Iterable[_Union[GetStatsResponse, _Mapping]]] = ..., missed: _Optional[int] = ...) -> None: ...

class CreateQueueRequest(_message.Message):
    queue: str
    options: _struct_pb2.Struct
    exist_ok: bool
    def __init__(self, queue: _Optional[str] = ..., options: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., exist_ok: _Optional[bool] = ...) -> None: ...

class GetQueueRequest(_message.Message):
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class UpdateQueueRequest(_message.Message):
    queue: str
    options: _struct_pb2.Struct
    def __init__(self, queue: _Optional[str] = ..., options: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Queue(_message.Message):
    name: str
    options: _struct_pb2.Struct
    def __init__(self, name: _Optional[str] = ..., options: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class DeleteQueueRequest(_message.Message):
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class DeleteQueueResponse(_message.Message):
    def __init__(self) -> None: ...

class ListQueuesRequest(_message.Message):
    def __init__(self) -> None: ...

class ListQueuesResponse(_message.Message):
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queues: _Optional[_Iterable[str]] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    queue: str
    group: str
    limit: int
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    leases: _containers.RepeatedCompositeFieldContainer[HeldLease]
    def __init__(self, leases: _Optional[_Iterable[_Union[HeldLease, _Mapping]]] = ...) -> None: ...

class HeldLease(_message.Message):
    lease_id: str
    group: str
    consumer: str
    leased_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    messages: int
    partitions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease_id: _Optional[str] = ..., group: _Optional[str] = ..., consumer: _Optional[str] = ..., leased_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., messages: _Optional[int] = ..., partitions: _Optional[_Iterable[str]] = ...) -> None: ...

class PauseRequest(_message.Message):
    queue: str
    what: str
    group: str
    reason: str
    def __init__(self, queue: _Optional[str] = ..., what: _Optional[str] = ..., group: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PauseResponse(_message.Message):
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    queue: str
    what: str
    group: str
    def __init__(self, queue: _Optional[str] = ..., what: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ResumeResponse(_message.Message):
    def __init__(self) -> None: ...

class PauseBrokerRequest(_message.Message):
    what: str
    reason: str
    def __init__(self, what: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ResumeBrokerRequest(_message.Message):
    what: str
    def __init__(self, what: _Optional[str] = ...) -> None: ...

class PauseNamespaceRequest(_message.Message):
    namespace: str
    what: str
    reason: str
    def __init__(self, namespace: _Optional[str] = ..., what: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ResumeNamespaceRequest(_message.Message):
    namespace: str
    what: str
    def __init__(self, namespace: _Optional[str] = ..., what: _Optional[str] = ...) -> None: ...

class ListPausesRequest(_message.Message):
    def __init__(self) -> None: ...

class ListPausesResponse(_message.Message):
    pauses: _containers.RepeatedCompositeFieldContainer[Pause]
    def __init__(self, pauses: _Optional[_Iterable[_Union[Pause, _Mapping]]] = ...) -> None: ...

class Pause(_message.Message):
    scope: str
    namespace: str
    queue: str
    group: str
    push: bool
    delivery: bool
    since: _timestamp_pb2.Timestamp
    reason: str
    def __init__(self, scope: _Optional[str] = ..., namespace: _Optional[str] = ..., queue: _Optional[str] = ..., group: _Optional[str] = ..., push: _Optional[bool] = ..., delivery: _Optional[bool] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class PurgeRequest(_message.Message):
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class PurgeResponse(_message.Message):
    def __init__(self) -> None: ...

class CompactQueueRequest(_message.Message):
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class CompactQueueResponse(_message.Message):
    files_removed: int
    files_rewritten: int
    bytes_freed: int
    messages_removed: int
    def __init__(self, files_removed: _Optional[int] = ..., files_rewritten: _Optional[int] = ..., bytes_freed: _Optional[int] = ..., messages_removed: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    def __init__(self) -> None: ...

class Position(_message.Message):
    earliest: bool
    latest: bool
    offset: int
    timestamp: _timestamp_pb2.Timestamp
    offsets: PartitionOffsets
    def __init__(self, earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., offset: _Optional[int] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., offsets: _Optional[_Union[PartitionOffsets, _Mapping]] = ...) -> None: ...

class PartitionOffsets(_message.Message):
    class OffsetsEntry(_message.Message):
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    offsets: _containers.ScalarMap[str, int]
    def __init__(self, offsets: _Optional[_Mapping[str, int]] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    queue: str
    group: str
    start: Position
    observes: bool
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., observes: _Optional[bool] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    def __init__(self) -> None: ...

class DeleteGroupRequest(_message.Message):
    queue: str
    group: str
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    def __init__(self) -> None: ...

class SeekRequest(_message.Message):
    queue: str
    group: str
    to: Position
    partition: str
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., to: _Optional[_Union[Position, _Mapping]] = ..., partition: _Optional[str] = ...) -> None: ...

class SeekResponse(_message.Message):
    def __init__(self) -> None: ...

class PreviewSeekResponse(_message.Message):
    redelivered: int
    skipped: int
    leased: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionSeek]
    def __init__(self, redelivered: _Optional[int] = ..., skipped: _Optional[int] = ..., leased: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionSeek, _Mapping]]] = ...) -> None: ...

class PartitionSeek(_message.Message):
    partition: str
    from_offset: int
    to_offset: int
    redelivered: int
    skipped: int
    leased: int
    def __init__(self, partition: _Optional[str] = ..., from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., redelivered: _Optional[int] = ..., skipped: _Optional[int] = ..., leased: _Optional[int] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class Group(_message.Message):
    name: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionLag]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionLag, _Mapping]]] = ...) -> None: ...

class PartitionLag(_message.Message):
    partition: str
    start_offset: int
    committed_offset: int
    end_offset: int
    lag: int
    def __init__(self, partition: _Optional[str] = ..., start_offset: _Optional[int] = ..., committed_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    queue: str
    group: str
    member: str
    session_ms: int
    start: Position
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., session_ms: _Optional[int] = ..., start: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    queue: str
    group: str
    member: str
    generation: int
    held: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ..., held: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    queue: str
    group: str
    member: str
    generation: int
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class LeaveResponse(_message.Message):
    def __init__(self) -> None: ...

class Assignment(_message.Message):
    member: str
    generation: int
    assigned: _containers.RepeatedScalarFieldContainer[str]
    revoking: _containers.RepeatedScalarFieldContainer[str]
    heartbeat_ms: int
    def __init__(self, member: _Optional[str] = ..., generation: _Optional[int] = ..., assigned: _Optional[_Iterable[str]] = ..., revoking: _Optional[_Iterable[str]] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    queue: str
    group: str
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ListMembersResponse(_message.Message):
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    member: str
    generation: int
    partitions: _containers.RepeatedScalarFieldContainer[str]
    last_heartbeat_at: _timestamp_pb2.Timestamp
    def __init__(self, member: _Optional[str] = ..., generation: _Optional[int] = ..., partitions: _Optional[_Iterable[str]] = ..., last_heartbeat_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class LetterFilter(_message.Message):
    group: str
    reason: str
    error_contains: str
    key: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    ids: _containers.RepeatedScalarFieldContainer[str]
    signature: str
    def __init__(self, group: _Optional[str] = ..., reason: _Optional[str] = ..., error_contains: _Optional[str] = ..., key: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ids: _Optional[_Iterable[str]] = ..., signature: _Optional[str] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    queue: str
    filter: LetterFilter
    limit: int
    def __init__(self, queue: _Optional[str] = ..., filter: _Optional[_Union[LetterFilter, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class RedriveRequest(_message.Message):
    queue: str
    filter: LetterFilter
    per_second: float
    limit: int
    def __init__(self, queue: _Optional[str] = ..., filter: _Optional[_Union[LetterFilter, _Mapping]] = ..., per_second: _Optional[float] = ..., limit: _Optional[int] = ...) -> None: ...

class RedriveResponse(_message.Message):
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class ReplaceDeadLettersRequest(_message.Message):
    queue: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    messages: _containers.RepeatedCompositeFieldContainer[NewMessage]
    def __init__(self, queue: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., messages: _Optional[_Iterable[_Union[NewMessage, _Mapping]]] = ...) -> None: ...

class ReplaceDeadLettersResponse(_message.Message):
    def __init__(self) -> None: ...

class PurgeDeadLettersRequest(_message.Message):
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class PurgeDeadLettersResponse(_message.Message):
    def __init__(self) -> None: ...
