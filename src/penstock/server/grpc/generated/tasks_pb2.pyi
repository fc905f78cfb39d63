import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from penstock.server.grpc.generated import queues_pb2 as _queues_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_SCHEDULED: _ClassVar[TaskState]
    TASK_STATE_PENDING: _ClassVar[TaskState]
    TASK_STATE_BLOCKED: _ClassVar[TaskState]
    TASK_STATE_RUNNING: _ClassVar[TaskState]
    TASK_STATE_COMPLETED: _ClassVar[TaskState]
    TASK_STATE_FAILED: _ClassVar[TaskState]
    TASK_STATE_DEAD: _ClassVar[TaskState]
    TASK_STATE_CANCELLED: _ClassVar[TaskState]

class Takes(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    TAKES_NONE: _ClassVar[Takes]
    TAKES_ONE: _ClassVar[Takes]
    TAKES_ALL: _ClassVar[Takes]

class Missed(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    MISSED_SKIP: _ClassVar[Missed]
    MISSED_CATCH_UP: _ClassVar[Missed]
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_SCHEDULED: TaskState
TASK_STATE_PENDING: TaskState
TASK_STATE_BLOCKED: TaskState
TASK_STATE_RUNNING: TaskState
TASK_STATE_COMPLETED: TaskState
TASK_STATE_FAILED: TaskState
TASK_STATE_DEAD: TaskState
TASK_STATE_CANCELLED: TaskState
TAKES_NONE: Takes
TAKES_ONE: Takes
TAKES_ALL: Takes
MISSED_SKIP: Missed
MISSED_CATCH_UP: Missed

class NewTask(_message.Message):
    class HeadersEntry(_message.Message):
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    task_type: str
    queue: str
    args: str
    kwargs: str
    task_id: str
    priority: int
    delay_ms: int
    deliver_at: _timestamp_pb2.Timestamp
    ttl_ms: int
    timeout_ms: int
    max_attempts: int
    key: str
    unique_key: str
    unique_ms: int
    depends_on: _containers.RepeatedScalarFieldContainer[str]
    run_despite_parent_failure: bool
    takes: Takes
    workflow: str
    headers: _containers.ScalarMap[str, str]
    trace: str
    payload: bytes
    def __init__(self, task_type: _Optional[str] = ..., queue: _Optional[str] = ..., args: _Optional[str] = ..., kwargs: _Optional[str] = ..., task_id: _Optional[str] = ..., priority: _Optional[int] = ..., delay_ms: _Optional[int] = ..., deliver_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ttl_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., max_attempts: _Optional[int] = ..., key: _Optional[str] = ..., unique_key: _Optional[str] = ..., unique_ms: _Optional[int] = ..., depends_on: _Optional[_Iterable[str]] = ..., run_despite_parent_failure: _Optional[bool] = ..., takes: _Optional[_Union[Takes, str]] = ..., workflow: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., trace: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class SubmittedTask(_message.Message):
    task_id: str
    is_new: bool
    def __init__(self, task_id: _Optional[str] = ..., is_new: _Optional[bool] = ...) -> None: ...

class SubmitTasksRequest(_message.Message):
    tasks: _containers.RepeatedCompositeFieldContainer[NewTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[NewTask, _Mapping]]] = ...) -> None: ...

class SubmitTasksResponse(_message.Message):
    tasks: _containers.RepeatedCompositeFieldContainer[SubmittedTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[SubmittedTask, _Mapping]]] = ...) -> None: ...

class Task(_message.Message):
    task_id: str
    task_type: str
    queue: str
    state: TaskState
    priority: int
    attempt: int
    max_attempts: int
    args: str
    kwargs: str
    result: str
    progress: str
    error: str
    worker: str
    key: str
    submitted_at: _timestamp_pb2.Timestamp
    due_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    timeout_ms: int
    depends_on: _containers.RepeatedScalarFieldContainer[str]
    workflow: str
    schedule: str
    message_id: str
    trace: str
    runs: _containers.RepeatedCompositeFieldContainer[TaskRun]
    result_error: str
    updated_at: _timestamp_pb2.Timestamp
    lease_expires_at: _timestamp_pb2.Timestamp
    result_bytes: bytes
    def __init__(self, task_id: _Optional[str] = ..., task_type: _Optional[str] = ..., queue: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., priority: _Optional[int] = ..., attempt: _Optional[int] = ..., max_attempts: _Optional[int] = ..., args: _Optional[str] = ..., kwargs: _Optional[str] = ..., result: _Optional[str] = ..., progress: _Optional[str] = ..., error: _Optional[str] = ..., worker: _Optional[str] = ..., key: _Optional[str] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., due_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., depends_on: _Optional[_Iterable[str]] = ..., workflow: _Optional[str] = ..., schedule: _Optional[str] = ..., message_id: _Optional[str] = ..., trace: _Optional[str] = ..., runs: _Optional[_Iterable[_Union[TaskRun, _Mapping]]] = ..., result_error: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lease_expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., result_bytes: _Optional[bytes] = ...) -> None: ...

class CountTasksRequest(_message.Message):
    def __init__(self) -> None: ...

class CountTasksResponse(_message.Message):
    counts: _containers.RepeatedCompositeFieldContainer[TaskCounts]
    def __init__(self, counts: _Optional[_Iterable[_Union[TaskCounts, _Mapping]]] = ...) -> None: ...

class TaskCounts(_message.Message):
    queue: str
    scheduled: int
    pending: int
    blocked: int
    running: int
    completed: int
    failed: int
    dead: int
    cancelled: int
    def __init__(self, queue: _Optional[str] = ..., scheduled: _Optional[int] = ..., pending: _Optional[int] = ..., blocked: _Optional[int] = ..., running: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., dead: _Optional[int] = ..., cancelled: _Optional[int] = ...) -> None: ...

class TaskRun(_message.Message):
    attempt: int
    worker: str
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    outcome: str
    error: str
    def __init__(self, attempt: _Optional[int] = ..., worker: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., outcome: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class GetTaskStatusRequest(_message.Message):
    task_id: str
    wait_ms: int
    def __init__(self, task_id: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class TaskFilter(_message.Message):
    states: _containers.RepeatedScalarFieldContainer[TaskState]
    task_type: str
    queue: str
    worker: str
    workflow: str
    schedule: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    argument: str
    error_contains: str
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, states: _Optional[_Iterable[_Union[TaskState, str]]] = ..., task_type: _Optional[str] = ..., queue: _Optional[str] = ..., worker: _Optional[str] = ..., workflow: _Optional[str] = ..., schedule: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., argument: _Optional[str] = ..., error_contains: _Optional[str] = ..., task_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    filter: TaskFilter
    limit: int
    cursor: str
    def __init__(self, filter: _Optional[_Union[TaskFilter, _Mapping]] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    cursor: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class StreamTaskUpdatesRequest(_message.Message):
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    task_types: _containers.RepeatedScalarFieldContainer[str]
    queues: _containers.RepeatedScalarFieldContainer[str]
    workflow: str
    def __init__(self, task_ids: _Optional[_Iterable[str]] = ..., task_types: _Optional[_Iterable[str]] = ..., queues: _Optional[_Iterable[str]] = ..., workflow: _Optional[str] = ...) -> None: ...

class TaskUpdate(_message.Message):
    task: Task
    at: _timestamp_pb2.Timestamp
    missed: int
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., missed: _Optional[int] = ...) -> None: ...

class GetTaskStatsRequest(_message.Message):
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queues: _Optional[_Iterable[str]] = ...) -> None: ...

class TaskStats(_message.Message):
    queues: _containers.RepeatedCompositeFieldContainer[QueueTaskStats]
    workers_alive: int
    workers_dead: int
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueTaskStats, _Mapping]]] = ..., workers_alive: _Optional[int] = ..., workers_dead: _Optional[int] = ...) -> None: ...

class QueueTaskStats(_message.Message):
    queue: str
    pending: int
    waiting: int
    running: int
    completed: int
    dead: int
    dropped: int
    def __init__(self, queue: _Optional[str] = ..., pending: _Optional[int] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., completed: _Optional[int] = ..., dead: _Optional[int] = ..., dropped: _Optional[int] = ...) -> None: ...

class CancelTaskRequest(_message.Message):
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class RetryTaskRequest(_message.Message):
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class PurgeTasksRequest(_message.Message):
    filter: TaskFilter
    def __init__(self, filter: _Optional[_Union[TaskFilter, _Mapping]] = ...) -> None: ...

class PurgeTasksResponse(_message.Message):
    count: int
    operation_id: str
    is_done: bool
    def __init__(self, count: _Optional[int] = ..., operation_id: _Optional[str] = ..., is_done: _Optional[bool] = ...) -> None: ...

class BulkOptions(_message.Message):
    dry_run: bool
    rate: float
    canary: int
    as_of: _timestamp_pb2.Timestamp
    def __init__(self, dry_run: _Optional[bool] = ..., rate: _Optional[float] = ..., canary: _Optional[int] = ..., as_of: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class BeginOperationRequest(_message.Message):
    action: str
    filter: TaskFilter
    operation_id: str
    options: BulkOptions
    def __init__(self, action: _Optional[str] = ..., filter: _Optional[_Union[TaskFilter, _Mapping]] = ..., operation_id: _Optional[str] = ..., options: _Optional[_Union[BulkOptions, _Mapping]] = ...) -> None: ...

class RedriveLettersRequest(_message.Message):
    queue: str
    filter: _queues_pb2.LetterFilter
    edit: str
    operation_id: str
    options: BulkOptions
    def __init__(self, queue: _Optional[str] = ..., filter: _Optional[_Union[_queues_pb2.LetterFilter, _Mapping]] = ..., edit: _Optional[str] = ..., operation_id: _Optional[str] = ..., options: _Optional[_Union[BulkOptions, _Mapping]] = ...) -> None: ...

class DiscardLettersRequest(_message.Message):
    queue: str
    filter: _queues_pb2.LetterFilter
    operation_id: str
    options: BulkOptions
    def __init__(self, queue: _Optional[str] = ..., filter: _Optional[_Union[_queues_pb2.LetterFilter, _Mapping]] = ..., operation_id: _Optional[str] = ..., options: _Optional[_Union[BulkOptions, _Mapping]] = ...) -> None: ...

class ReplayMessagesRequest(_message.Message):
    queue: str
    filter: _queues_pb2.MessageFilter
    target: str
    operation_id: str
    options: BulkOptions
    def __init__(self, queue: _Optional[str] = ..., filter: _Optional[_Union[_queues_pb2.MessageFilter, _Mapping]] = ..., target: _Optional[str] = ..., operation_id: _Optional[str] = ..., options: _Optional[_Union[BulkOptions, _Mapping]] = ...) -> None: ...

class ContinueOperationRequest(_message.Message):
    operation_id: str
    def __init__(self, operation_id: _Optional[str] = ...) -> None: ...

class GetOperationRequest(_message.Message):
    operation_id: str
    def __init__(self, operation_id: _Optional[str] = ...) -> None: ...

class StopOperationRequest(_message.Message):
    operation_id: str
    def __init__(self, operation_id: _Optional[str] = ...) -> None: ...

class ListOperationsRequest(_message.Message):
    def __init__(self) -> None: ...

class ListOperationsResponse(_message.Message):
    operations: _containers.RepeatedCompositeFieldContainer[TaskOperation]
    def __init__(self, operations: _Optional[_Iterable[_Union[TaskOperation, _Mapping]]] = ...) -> None: ...

class TaskOperation(_message.Message):
    operation_id: str
    action: str
    state: str
    filter: TaskFilter
    started_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    matched: int
    cancelled: int
    purged: int
    error: str
    letters: _queues_pb2.LetterFilter
    messages: _queues_pb2.MessageFilter
    queue: str
    target: str
    who: str
    as_of: _timestamp_pb2.Timestamp
    done: int
    failed: int
    rate: float
    canary: int
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    samples: _containers.RepeatedScalarFieldContainer[str]
    is_exact: bool
    def __init__(self, operation_id: _Optional[str] = ..., action: _Optional[str] = ..., state: _Optional[str] = ..., filter: _Optional[_Union[TaskFilter, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., matched: _Optional[int] = ..., cancelled: _Optional[int] = ..., purged: _Optional[int] = ..., error: _Optional[str] = ..., letters: _Optional[_Union[_queues_pb2.LetterFilter, _Mapping]] = ..., messages: _Optional[_Union[_queues_pb2.MessageFilter, _Mapping]] = ..., queue: _Optional[str] = ..., target: _Optional[str] = ..., who: _Optional[str] = ..., as_of: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., done: _Optional[int] = ..., failed: _Optional[int] = ..., rate: _Optional[float] = ..., canary: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ..., samples: _Optional[_Iterable[str]] = ..., is_exact: _Optional[bool] = ...) -> None: ...

class ItemError(_message.Message):
    id: str
    code: str
    message: str
    def __init__(self, id: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ClaimTasksRequest(_message.Message):
    worker_id: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    max: int
    wait_ms: int
    lease_ms: int
    task_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker_id: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., task_types: _Optional[_Iterable[str]] = ...) -> None: ...

class ClaimTasksResponse(_message.Message):
    tasks: _containers.RepeatedCompositeFieldContainer[ClaimedTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[ClaimedTask, _Mapping]]] = ...) -> None: ...

class ClaimedTask(_message.Message):
    class HeadersEntry(_message.Message):
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    task_id: str
    task_type: str
    queue: str
    args: str
    kwargs: str
    attempt: int
    receipt: str
    expires_at: _timestamp_pb2.Timestamp
    timeout_ms: int
    priority: int
    key: str
    headers: _containers.ScalarMap[str, str]
    depends_on: _containers.RepeatedScalarFieldContainer[str]
    takes: Takes
    parents: _containers.RepeatedCompositeFieldContainer[ParentResult]
    workflow: str
    schedule: str
    scheduled_at: str
    trace: str
    submitted_at: _timestamp_pb2.Timestamp
    payload: bytes
    def __init__(self, task_id: _Optional[str] = ..., task_type: _Optional[str] = ..., queue: _Optional[str] = ..., args: _Optional[str] = ..., kwargs: _Optional[str] = ..., attempt: _Optional[int] = ..., receipt: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., priority: _Optional[int] = ..., key: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., depends_on: _Optional[_Iterable[str]] = ..., takes: _Optional[_Union[Takes, str]] = ..., parents: _Optional[_Iterable[_Union[ParentResult, _Mapping]]] = ..., workflow: _Optional[str] = ..., schedule: _Optional[str] = ..., scheduled_at: _Optional[str] = ..., trace: _Optional[str] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ParentResult(_message.Message):
    task_id: str
    state: TaskState
    result: str
    result_bytes: bytes
    def __init__(self, task_id: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., result: _Optional[str] = ..., result_bytes: _Optional[bytes] = ...) -> None: ...

class FinishTasksRequest(_message.Message):
    finishes: _containers.RepeatedCompositeFieldContainer[FinishedRun]
    is_again: bool
    def __init__(self, finishes: _Optional[_Iterable[_Union[FinishedRun, _Mapping]]] = ..., is_again: _Optional[bool] = ...) -> None: ...

class FinishedRun(_message.Message):
    receipt: str
    task_id: str
    outcome: str
    result: str
    error: str
    delay_ms: int
    result_bytes: bytes
    def __init__(self, receipt: _Optional[str] = ..., task_id: _Optional[str] = ..., outcome: _Optional[str] = ..., result: _Optional[str] = ..., error: _Optional[str] = ..., delay_ms: _Optional[int] = ..., result_bytes: _Optional[bytes] = ...) -> None: ...

class FinishTasksResponse(_message.Message):
    results: _containers.RepeatedCompositeFieldContainer[FinishResult]
    def __init__(self, results: _Optional[_Iterable[_Union[FinishResult, _Mapping]]] = ...) -> None: ...

class FinishResult(_message.Message):
    task_id: str
    error_code: str
    error_message: str
    def __init__(self, task_id: _Optional[str] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class HeartbeatWorkerRequest(_message.Message):
    info: WorkerInfo
    receipts: _containers.RepeatedScalarFieldContainer[str]
    lease_ms: int
    progress: _containers.RepeatedCompositeFieldContainer[RunProgress]
    def __init__(self, info: _Optional[_Union[WorkerInfo, _Mapping]] = ..., receipts: _Optional[_Iterable[str]] = ..., lease_ms: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[RunProgress, _Mapping]]] = ...) -> None: ...

class RunProgress(_message.Message):
    receipt: str
    task_id: str
    progress: str
    def __init__(self, receipt: _Optional[str] = ..., task_id: _Optional[str] = ..., progress: _Optional[str] = ...) -> None: ...

class HeartbeatWorkerResponse(_message.Message):
    cancelled: _containers.RepeatedScalarFieldContainer[str]
    lost: _containers.RepeatedScalarFieldContainer[str]
    requested: str
    grace_ms: int
    def __init__(self, cancelled: _Optional[_Iterable[str]] = ..., lost: _Optional[_Iterable[str]] = ..., requested: _Optional[str] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class WorkerInfo(_message.Message):
    worker_id: str
    host: str
    pid: int
    queues: _containers.RepeatedScalarFieldContainer[str]
    task_types: _containers.RepeatedScalarFieldContainer[str]
    concurrency: int
    running: int
    completed: int
    failed: int
    cpu_percent: float
    memory_bytes: int
    version: str
    is_stopping: bool
    abandoned: int
    is_stuck: bool
    is_quiet: bool
    def __init__(self, worker_id: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., queues: _Optional[_Iterable[str]] = ..., task_types: _Optional[_Iterable[str]] = ..., concurrency: _Optional[int] = ..., running: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., cpu_percent: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., version: _Optional[str] = ..., is_stopping: _Optional[bool] = ..., abandoned: _Optional[int] = ..., is_stuck: _Optional[bool] = ..., is_quiet: _Optional[bool] = ...) -> None: ...

class ForgetWorkerRequest(_message.Message):
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class ForgetWorkerResponse(_message.Message):
    def __init__(self) -> None: ...

class QuietWorkerRequest(_message.Message):
    worker_id: str
    owner: str
    def __init__(self, worker_id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class ResumeWorkerRequest(_message.Message):
    worker_id: str
    owner: str
    def __init__(self, worker_id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class StopWorkerRequest(_message.Message):
    worker_id: str
    owner: str
    grace_ms: int
    def __init__(self, worker_id: _Optional[str] = ..., owner: _Optional[str] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    def __init__(self) -> None: ...

class ListWorkersResponse(_message.Message):
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    def __init__(self, workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ...) -> None: ...

class Worker(_message.Message):
    info: WorkerInfo
    state: str
    first_seen_at: _timestamp_pb2.Timestamp
    last_heartbeat_at: _timestamp_pb2.Timestamp
    requested: str
    requested_at: _timestamp_pb2.Timestamp
    def __init__(self, info: _Optional[_Union[WorkerInfo, _Mapping]] = ..., state: _Optional[str] = ..., first_seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_heartbeat_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., requested: _Optional[str] = ..., requested_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WhyTaskRequest(_message.Message):
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class TaskWait(_message.Message):
    task_id: str
    state: TaskState
    queue: str
    message_id: str
    reasons: _containers.RepeatedCompositeFieldContainer[WaitingFor]
    parents: _containers.RepeatedCompositeFieldContainer[Parent]
    def __init__(self, task_id: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., queue: _Optional[str] = ..., message_id: _Optional[str] = ..., reasons: _Optional[_Iterable[_Union[WaitingFor, _Mapping]]] = ..., parents: _Optional[_Iterable[_Union[Parent, _Mapping]]] = ...) -> None: ...

class WaitingFor(_message.Message):
    code: str
    text: str
    outcome: str
    error: str
    due_at: _timestamp_pb2.Timestamp
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., outcome: _Optional[str] = ..., error: _Optional[str] = ..., due_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Parent(_message.Message):
    task_id: str
    task_type: str
    state: TaskState
    def __init__(self, task_id: _Optional[str] = ..., task_type: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ...) -> None: ...

class NewSchedule(_message.Message):
    name: str
    cron: str
    timezone: str
    missed: Missed
    task_type: str
    queue: str
    args: str
    kwargs: str
    timeout_ms: int
    max_attempts: int
    priority: int
    key: str
    is_paused: bool
    is_declared: bool
    def __init__(self, name: _Optional[str] = ..., cron: _Optional[str] = ..., timezone: _Optional[str] = ..., missed: _Optional[_Union[Missed, str]] = ..., task_type: _Optional[str] = ..., queue: _Optional[str] = ..., args: _Optional[str] = ..., kwargs: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., max_attempts: _Optional[int] = ..., priority: _Optional[int] = ..., key: _Optional[str] = ..., is_paused: _Optional[bool] = ..., is_declared: _Optional[bool] = ...) -> None: ...

class Schedule(_message.Message):
    spec: NewSchedule
    next_at: _timestamp_pb2.Timestamp
    last_at: _timestamp_pb2.Timestamp
    last_task_id: str
    def __init__(self, spec: _Optional[_Union[NewSchedule, _Mapping]] = ..., next_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_task_id: _Optional[str] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    def __init__(self) -> None: ...

class ListSchedulesResponse(_message.Message):
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...

class RunScheduleRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ScheduleRun(_message.Message):
    task_id: str
    schedule: str
    queue: str
    submitted_at: _timestamp_pb2.Timestamp
    def __init__(self, task_id: _Optional[str] = ..., schedule: _Optional[str] = ..., queue: _Optional[str] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListTicksRequest(_message.Message):
    name: str
    count: int
    runs: int
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ..., runs: _Optional[int] = ...) -> None: ...

class ListTicksResponse(_message.Message):
    schedule: str
    cron: str
    timezone: str
    is_paused: bool
    next: _containers.RepeatedCompositeFieldContainer[NextTick]
    runs: _containers.RepeatedCompositeFieldContainer[PastRun]
    def __init__(self, schedule: _Optional[str] = ..., cron: _Optional[str] = ..., timezone: _Optional[str] = ..., is_paused: _Optional[bool] = ..., next: _Optional[_Iterable[_Union[NextTick, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[PastRun, _Mapping]]] = ...) -> None: ...

class NextTick(_message.Message):
    at: _timestamp_pb2.Timestamp
    local: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., local: _Optional[str] = ...) -> None: ...

class PastRun(_message.Message):
    task_id: str
    trigger: str
    at: _timestamp_pb2.Timestamp
    state: TaskState
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    error: str
    def __init__(self, task_id: _Optional[str] = ..., trigger: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[TaskState, str]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class DeleteScheduleRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteScheduleResponse(_message.Message):
    def __init__(self) -> None: ...
