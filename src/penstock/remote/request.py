"""Requests: what to send, how to read the answer, and whether it may be sent again when the connection is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final

import msgspec

from penstock.batch import Batch, typed_one
from penstock.errors import PenstockError
from penstock.model import Durability, MessageId, Position, Receipt, to_datetime
from penstock.model_tasks import Finish, Submitted, TaskSubmission
from penstock.remote.producer import Producer
from penstock.requests import LeaseRequest, Operation, PartitionChoice, PushOperation, Settling
from penstock.wire import answers, calls, requests
from penstock.wire.errors import to_error
from penstock.wire.frames import PROTOCOL_VERSION, Buffer, Type


class Again(Enum):
    """What to do with a request that was sent and whose answer did not come."""

    ALWAYS = "send it again: done twice it does no harm, or the broker knows it by its sequence"
    SETTLE = "send it again; a lease that is lost then may have been settled by the first try"
    NEVER = "say that nobody knows"


PENDING: Final = object()  # no answer yet
PUSH_ONE: Final = Type.PUSH_ONE  # looking an enumeration up costs more than all else about it
Encode = Callable[[int], Sequence[Buffer]]  # from the sequence to the body
Read = Callable[[memoryview], Any]


class Request:
    """One request until it is answered. `told` is called with the answer, or with a `PenstockError` as a value."""

    __slots__ = (
        "again", "answer", "correlation", "deadline", "encode", "finishes", "future", "is_numbered", "kind",
        "producer", "read", "sent", "sequence", "then", "told", "wait_seconds",
    )  # fmt: skip

    def __init__(
        self,
        kind: Type,
        encode: Encode,
        read: Read,
        again: Again = Again.ALWAYS,
        *,
        is_numbered: bool = False,
        finishes: bool = False,
        wait_seconds: float = 0.0,
    ) -> None:
        self.kind = kind
        self.encode = encode
        self.read = read
        self.again = again
        self.is_numbered = is_numbered
        self.finishes = finishes  # it is about leases that are held: only the broker that gave them can do it
        self.wait_seconds = wait_seconds  # how long the broker may take before it answers
        self.producer: Producer | None = None  # whose sequence it has
        self.sequence = 0
        self.correlation = 0
        self.sent = 0  # how many times
        self.deadline = 0.0
        self.answer: Any = PENDING
        self.future: Any = None
        self.told: Callable[[Request, Any], None] = keep
        self.then: Callable[[Request, Any], None] | None = None  # what a shell does with the answer in the end

    def renew(self) -> None:
        """It was refused and nothing has happened: it may be made again, as a new one."""
        self.sequence = self.sent = 0
        self.answer = PENDING


def keep(request: Request, answer: Any) -> None:
    """Leave the answer with the request."""
    request.answer = answer


def hello(token: str, client: str, producer: Producer | None) -> Request:
    """The first request of a connection."""
    id, epoch = (producer.id, producer.epoch) if producer is not None else (0, 0)
    body = requests.encode(requests.Hello(PROTOCOL_VERSION, client, token, id, epoch))
    return Request(Type.HELLO, lambda _: (body,), _reader(requests.Welcome), Again.NEVER)


def push_one(queue: str, payload: bytes) -> Request:
    """One message without options."""
    name = queue.encode()

    def encode(sequence: int) -> Sequence[Buffer]:
        return (requests.encode_push_one(name, sequence, payload),)

    return Request(PUSH_ONE, encode, _id_in(queue), is_numbered=True)


def _id_in(queue: str) -> Read:
    """How the answer to a single push is read."""

    def read(body: memoryview) -> MessageId:
        partition, offset = answers.decode_placed(body)
        return MessageId(queue, partition, offset)

    return read


def push_encoded(queue: str, data: bytes, durability: Durability | None) -> Request:
    """One message, in the bytes of its batch; the answer is its id. One without options takes the short form."""
    typed = typed_one(data) if durability is None else None
    if typed is None:
        request = push(queue, Batch(data), None, durability)
        read_reply = request.read
        request.read = lambda body: read_reply(body).ids()[0]
        return request
    name, (content_type, payload) = queue.encode(), typed
    return Request(
        Type.PUSH_TYPED,
        lambda sequence: (requests.encode_push_typed(content_type, name, sequence, payload),),
        _id_in(queue),
        is_numbered=True,
    )


def push(queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None) -> Request:
    """A batch."""
    where = _where(partition)

    def encode(sequence: int) -> Sequence[Buffer]:
        return requests.encode_push(requests.PushHead(queue, sequence, durability, where)), batch.data

    return Request(Type.PUSH, encode, lambda body: answers.decode_pushed(queue, body), is_numbered=True)


def lease(queue: str, group: str, wanted: LeaseRequest, wait_seconds: float) -> Request:
    """Messages to be handed out. What is lost on its way comes back when its lease ends, unless nobody acks it."""
    body = requests.encode(
        requests.Lease(
            queue,
            group,
            wanted.count_max,
            wait_seconds,
            wanted.lease_seconds,
            wanted.consumer,
            None if wanted.partitions is None else list(wanted.partitions),
            wanted.auto_ack,
            wanted.member,
            wanted.generation,
            None if wanted.start is None else position(wanted.start),
        )
    )
    again = Again.NEVER if wanted.auto_ack else Again.ALWAYS
    return Request(Type.LEASE, lambda _: (body,), answers.decode_leased, again, wait_seconds=wait_seconds)


def settle(receipts: Sequence[Receipt], nonce: int, how: Settling) -> Request:
    """Deliveries to be ended, by their receipts or by their lease."""
    body = requests.encode(
        requests.Settle(int(how.outcome), how.delay_seconds, how.error, nonce, [] if nonce else list(receipts))
    )
    return Request(Type.SETTLE, lambda _: (body,), _nothing, Again.SETTLE, finishes=True)


def extend(nonce: int, seconds: float) -> Request:
    """A lease to be held longer."""
    body = requests.encode(requests.Extend(nonce, seconds))
    return Request(Type.EXTEND, lambda _: (body,), _reader(int), finishes=True)


def cancel(correlation: int) -> bytes:
    """The body that takes a request back."""
    return requests.encode(requests.Cancel(correlation))


def call(arguments: calls.Arguments) -> Request:
    """Any other operation."""
    arguments.check()
    name = calls.NAMES[type(arguments)]
    result = calls.result_of(name)
    body = _call_body(name, arguments)
    is_repeatable = name in REPEATABLE or (isinstance(arguments, calls.CreateQueue) and arguments.exist_ok)
    again = Again.ALWAYS if is_repeatable else Again.NEVER
    # Consumers ask how long a lease is when they have it.
    finishes = isinstance(arguments, calls.Options | calls.NoteProgress)
    read = _nothing if result is None else _reader(result)
    wait_seconds = arguments.seconds if isinstance(arguments, calls.WaitTask | calls.AwaitNews) else 0.0
    return Request(Type.CALL, lambda _: (body,), read, again, finishes=finishes, wait_seconds=wait_seconds)


def transact(operations: Sequence[Operation]) -> Request:
    """A transaction; its sequence is one of the pushes'."""
    steps: list[calls.PushStep | calls.SettleStep] = [
        calls.PushStep(each.queue, bytes(each.batch.data), _where(each.partition))
        if isinstance(each, PushOperation)
        else calls.SettleStep(str(each.receipt), int(each.how.outcome), each.how.delay_seconds, each.how.error)
        for each in operations
    ]

    def encode(sequence: int) -> Sequence[Buffer]:
        return (_call_body("transact", calls.Transact(steps, sequence)),)

    finishes = any(isinstance(each, calls.SettleStep) for each in steps)
    return Request(Type.CALL, encode, _reader(calls.result_of("transact")), is_numbered=True, finishes=finishes)


def submit_tasks(tasks: Sequence[TaskSubmission]) -> Request:
    """Tasks to be stored. Sent again they are known by their ids, which do not make them old."""
    given = list(tasks)
    body = _call_body("submit_tasks", calls.SubmitTasks(given))

    def read(body: memoryview) -> list[Submitted]:
        return news_of(given, requests.decode(body, calls.result_of("submit_tasks")))

    return Request(Type.CALL, lambda _: (body,), read)


def news_of(tasks: Sequence[TaskSubmission], told: Sequence[Submitted]) -> list[Submitted]:
    """What became of submissions: an id that nobody chose is new, also when the first of two tries has stored it."""
    return [
        Submitted(each.task_id) if each.task_id == task.task_id and not task.is_named else each
        for task, each in zip(tasks, told, strict=True)
    ]


def finish_tasks(finishes: Sequence[Finish]) -> Request:
    """Runs that ended. Sent again it says so: what the first try has done is accepted then."""
    given = list(finishes)

    def encode(_: int) -> Sequence[Buffer]:
        return (_call_body("finish_tasks", calls.FinishTasks(given, request.sent > 0)),)

    def read(body: memoryview) -> list[PenstockError | None]:
        refused = requests.decode(body, calls.result_of("finish_tasks"))
        return [to_error(refused[place]) if place in refused else None for place in range(len(given))]

    request = Request(Type.CALL, encode, read, finishes=True)
    return request


def _call_body(name: str, given: calls.Arguments) -> bytes:
    return requests.encode(requests.Call(name, msgspec.Raw(requests.encode(given))))


def position(to: Position) -> calls.PositionOnWire:
    """A place in a queue as it travels."""
    if isinstance(to, datetime):
        return to.isoformat()
    return dict(to) if isinstance(to, Mapping) else to


def instant(micros: int | None) -> str | None:
    """An instant as it travels."""
    return None if micros is None else to_datetime(micros).isoformat()


def _where(partition: PartitionChoice) -> requests.PartitionOnWire:
    return partition if partition is None or isinstance(partition, int | str) else list(partition)


def _reader(kind: Any) -> Read:
    return lambda body: requests.decode(body, kind)


def _nothing(body: memoryview) -> None:
    return None


# Operations that may be done twice: they only look, or the second time changes nothing.
REPEATABLE: Final = frozenset(
    (
        "queues", "options", "stats", "read", "peek", "delayed", "why", "groups", "members", "dead_letters", "info",
        "pause", "update_queue", "seal", "compact", "join", "heartbeat", "init_producer",
        "history", "list_files", "fetch", "pin", "unpin", "stage", "discard_staged", "commit_sink", "sink_state",
        "note_progress", "task", "tasks", "wait_task", "cancel_task", "heartbeat_worker", "worker_news",
        "forget_worker", "workers", "set_schedule", "schedules",
        "begin_operation", "operation", "operations", "stop_operation",
    )
)  # fmt: skip
