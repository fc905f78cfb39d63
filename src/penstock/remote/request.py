"""Requests: what to send, how to read the answer, and whether it may be sent again when the connection is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from penstock import operations as ops
from penstock.batch import Batch, typed_one
from penstock.errors import PenstockError, RateLimited, Unavailable
from penstock.model import Durability, MessageId, Receipt
from penstock.model_tasks import Submitted
from penstock.remote.producer import Producer
from penstock.requests import (
    LeaseRequest,
    Operation,
    OwnOperation,
    PartitionChoice,
    PushOperation,
    QueueChoice,
    Settling,
)
from penstock.validation import wire_position
from penstock.wire import answers, requests
from penstock.wire.errors import ErrorReply, to_error
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
    """One request until it is answered. `on_reply` is called with the answer, or with a `PenstockError` as a value."""

    __slots__ = (
        "again", "answer", "correlation", "deadline", "encode", "finishes", "future", "is_gathered", "is_numbered",
        "kind", "on_reply", "producer", "read", "sent", "sequence", "then", "wait_seconds",
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
        self.is_gathered = False  # it has the pushes of several callers: refused, each is made again by itself
        self.wait_seconds = wait_seconds  # how long the broker may take before it answers
        self.producer: Producer | None = None  # whose sequence it has
        self.sequence = 0
        self.correlation = 0
        self.sent = 0  # how many times
        self.deadline = 0.0
        self.answer: Any = PENDING
        self.future: Any = None
        self.on_reply: Callable[[Request, Any], None] = keep
        self.then: Callable[[Request, Any], None] | None = None  # what a shell does with the answer in the end

    def is_unsure(self, answer: Any) -> bool:
        """Whether this try was refused for now, and nobody knows what an earlier one has done."""
        return self.sent > 1 and isinstance(answer, RateLimited | Unavailable) and bool(answer.retry_after_seconds)

    def renew(self) -> None:
        """It was refused, and may be made again: as a new one, unless an earlier try may have happened.

        That one is known by its sequence alone, so it stays.
        """
        if self.sent <= 1:
            self.sequence = self.sent = 0
        self.answer = PENDING

    def release(self) -> None:
        """The outcome is known, or nobody asks for it any more: its sequence is no longer under way."""
        if self.producer is not None:
            self.producer.done(self.sequence)
            self.producer = None


def keep(request: Request, answer: Any) -> None:
    """Leave the answer with the request."""
    request.answer = answer


def hello(
    client: str,
    producer: Producer | None,
    *,
    token: str = "",
    challenge: str = "",
    answered: str = "",
    proof: str = "",
) -> Request:
    """The first request of a connection, and those that follow it until it is known who asks."""
    id, epoch = (producer.id, producer.epoch) if producer is not None else (0, 0)
    body = requests.encode(requests.Hello(PROTOCOL_VERSION, client, token, id, epoch, challenge, answered, proof))
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
    content_type, payload = typed
    return push_typed(queue, payload, content_type)


def push_typed(queue: str, payload: bytes, content_type: int) -> Request:
    """One message whose only option is its content type."""
    name = queue.encode()

    def encode(sequence: int) -> Sequence[Buffer]:
        return (requests.encode_push_typed(content_type, name, sequence, payload),)

    return Request(Type.PUSH_TYPED, encode, _id_in(queue), is_numbered=True)


def push(
    queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None, *, skips: bool = False
) -> Request:
    """A batch."""
    where = _where(partition)

    def encode(sequence: int) -> Sequence[Buffer]:
        return requests.encode_push(requests.PushHead(queue, sequence, durability, where, skips)), batch.data

    return Request(Type.PUSH, encode, lambda body: answers.decode_pushed(queue, body), is_numbered=True)


def lease(queue: str, group: str, options: LeaseRequest, wait_seconds: float) -> Request:
    """Messages to be handed out. What is lost on its way comes back when its lease ends, unless nobody acks it."""
    body = requests.encode(
        requests.Lease(
            queue,
            group,
            options.count_max,
            wait_seconds,
            options.lease_seconds,
            options.consumer,
            None if options.partitions is None else list(options.partitions),
            options.auto_ack,
            options.member,
            options.generation,
            None if options.start is None else wire_position(options.start, "start"),
            None if options.task_types is None else sorted(options.task_types),
        )
    )
    again = Again.NEVER if options.auto_ack else Again.ALWAYS
    return Request(Type.LEASE, lambda _: (body,), answers.decode_leased, again, wait_seconds=wait_seconds)


def lease_queues(choice: QueueChoice, group: str, options: LeaseRequest, wait_seconds: float) -> Request:
    """Messages of several queues to be handed out."""
    body = requests.encode(
        requests.LeaseQueues(
            list(choice.names),
            choice.order,
            group,
            options.count_max,
            wait_seconds,
            options.lease_seconds,
            options.consumer,
            options.auto_ack,
            None if options.start is None else wire_position(options.start, "start"),
            None if options.task_types is None else sorted(options.task_types),
        )
    )
    again = Again.NEVER if options.auto_ack else Again.ALWAYS
    read = answers.decode_leased_queues
    return Request(Type.LEASE_QUEUES, lambda _: (body,), read, again, wait_seconds=wait_seconds)


def settle(receipts: Sequence[Receipt], nonce: int, how: Settling, nonces: Sequence[int] = ()) -> Request:
    """Deliveries to be ended, by their receipts, by their lease or by several leases."""
    proofs = [] if nonce else list(receipts)
    body = requests.encode(requests.Settle(int(how.outcome), how.delay_seconds, how.error, nonce, proofs, list(nonces)))
    return Request(Type.SETTLE, lambda _: (body,), _nothing, Again.SETTLE, finishes=True)


def extend(nonce: int, seconds: float) -> Request:
    """A lease to be held longer."""
    body = requests.encode(requests.Extend(nonce, seconds))
    return Request(Type.EXTEND, lambda _: (body,), _reader(int), finishes=True)


def cancel(correlation: int) -> bytes:
    """The body that takes a request back."""
    return requests.encode(requests.Cancel(correlation))


def execute(operation: ops.Operation[Any]) -> Request:
    """Any operation of the table."""
    special = _SPECIAL.get(type(operation))
    if special is not None:
        return special(operation)
    spec = operation.spec
    body = _call_body(spec.name, operation)
    again = Again.ALWAYS if operation.is_repeatable else Again.NEVER
    read = _nothing if spec.result is None or spec.result is type(None) else _reader(spec.result)
    return Request(
        Type.CALL,
        lambda _: (body,),
        read,
        again,
        finishes=spec.is_for_leases,
        wait_seconds=operation.wait_seconds,
    )


def transact(operations: Sequence[Operation]) -> Request:
    """A transaction; its sequence is one of the pushes'."""
    steps = [_step(step) for step in operations]

    def encode(sequence: int) -> Sequence[Buffer]:
        return (_call_body("transact", requests.Transact(steps, sequence)),)

    finishes = any(isinstance(step, requests.SettleStep) for step in steps)
    return Request(Type.CALL, encode, _reader(list[list[MessageId]]), is_numbered=True, finishes=finishes)


def _step(step: Operation) -> requests.PushStep | requests.SettleStep | requests.OwnStep:
    if isinstance(step, PushOperation):
        return requests.PushStep(step.queue, bytes(step.batch.data), _where(step.partition))
    if isinstance(step, OwnOperation):
        return requests.OwnStep(step.queue, step.group, step.member, step.generation, step.partitions)
    return requests.SettleStep(str(step.receipt), int(step.how.outcome), step.how.delay_seconds, step.how.error)


def _submit_tasks(operation: ops.SubmitTasks) -> Request:
    """Tasks to be stored. An id that the client made up is new, also when the first of two tries has stored it."""
    body = _call_body("submit_tasks", operation)

    def read(body: memoryview) -> list[Submitted]:
        return [
            Submitted(reply.task_id) if reply.task_id == task.task_id and not task.is_named else reply
            for task, reply in zip(operation.tasks, requests.decode(body, list[Submitted]), strict=True)
        ]

    return Request(Type.CALL, lambda _: (body,), read)


def _finish_tasks(operation: ops.FinishTasks) -> Request:
    """Runs that ended. Sent again, it says so: what the first try has done is accepted then."""

    def encode(_: int) -> Sequence[Buffer]:
        return (_call_body("finish_tasks", ops.FinishTasks(operation.finishes, request.sent > 0)),)

    def read(body: memoryview) -> list[PenstockError | None]:
        errors: list[ErrorReply | None] = requests.decode(body, list[ErrorReply | None])
        return [None if error is None else to_error(error) for error in errors]

    request = Request(Type.CALL, encode, read, finishes=True)
    return request


_SPECIAL: Final[dict[type, Callable[[Any], Request]]] = {
    ops.SubmitTasks: _submit_tasks,
    ops.FinishTasks: _finish_tasks,
}


def _call_body(name: str, arguments: Any) -> bytes:
    return requests.encode(requests.Call(name, msgspec.Raw(requests.encode(arguments))))


def _where(partition: PartitionChoice) -> requests.PartitionOnWire:
    return partition if partition is None or isinstance(partition, int | str) else list(partition)


def _reader(kind: Any) -> Read:
    return lambda body: requests.decode(body, kind)


def _nothing(body: memoryview) -> None:
    return None
