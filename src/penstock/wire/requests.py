"""Bodies of requests. Small ones are MessagePack arrays in the order of their fields; messages travel in batches.

    PUSH_ONE    sequence u64 | name length u8 | name of the queue | payload                  big-endian
    PUSH_TYPED  content type u8 | as PUSH_ONE
    PUSH        head length u32 | head: MessagePack array | batch (docs/formats/batch.md)

A sequence numbers the pushes of the connection's producer, so that one that is sent again is not stored again; 0: none.
"""

from __future__ import annotations

import re
import struct
from typing import Annotated, Any, Final, TypeVar

import msgspec

from penstock import limits
from penstock.batch import Batch
from penstock.errors import BadRequest, InvalidField
from penstock.model import ContentType, Durability, Receipt, check_name
from penstock.requests import Operation, OwnOperation, PushOperation, SettleOperation
from penstock.validation import wire_settling
from penstock.wire.frames import Buffer

S = TypeVar("S")
PUSH_ONE_HEAD: Final = struct.Struct(">QB")
PUSH_HEAD_LENGTH: Final = struct.Struct(">I")

PositionOnWire = str | int | dict[str, int]
PartitionOnWire = int | str | list[int | str | None] | None


class Hello(msgspec.Struct, array_like=True):
    """The first frame of a connection: who calls."""

    protocol: int
    client: str = ""
    token: str = ""
    producer: int = 0  # id and epoch of the producer that this connection's sequences belong to; 0: none
    epoch: int = 0
    challenge: str = ""  # a nonce: the broker shall prove that it has the run's key, see access/discovery.py
    answered: str = ""  # the broker's nonce, whose challenge is answered with the proof
    proof: str = ""

    def __repr__(self) -> str:
        return f"Hello({self.client!r})"


class Welcome(msgspec.Struct, array_like=True):
    """The answer to it."""

    protocol: int
    server: str
    frame_bytes_max: int
    challenge: str = ""  # the broker's nonce
    proof: str = ""  # that it has the run's key
    token: str = ""  # for requests over HTTP, which stand alone: as long as the broker runs

    def __repr__(self) -> str:
        return f"Welcome({self.server!r})"


class PushHead(msgspec.Struct, array_like=True, gc=False):
    """What goes before the batch of a push. A list of partitions has one entry per message."""

    queue: str
    sequence: int = 0
    durability: Durability | None = None
    partition: PartitionOnWire = None
    skips: bool = False  # store what can be stored, and say of each message what became of it


Partitions = Annotated[list[int | str], msgspec.Meta(max_length=limits.partitions_max)]


class Lease(msgspec.Struct, array_like=True, gc=False):
    """Hand messages out; with `wait_seconds`, wait for the first one."""

    queue: str
    group: str = "default"
    count_max: int = 1
    wait_seconds: float = 0.0
    lease_seconds: float | None = None
    consumer: str = ""
    partitions: Partitions | None = None
    auto_ack: bool = False
    member: str = ""
    generation: int = 0
    start: PositionOnWire | None = None  # where the group begins if it is not there
    task_types: list[str] | None = None  # tasks of these types only


class LeaseQueues(msgspec.Struct, array_like=True, gc=False):
    """Hand messages of several queues out: names, and prefixes that end with `*`."""

    queues: Annotated[list[str], msgspec.Meta(max_length=limits.lease_names_max)]
    order: str = "fair"
    group: str = "default"
    count_max: int = 1
    wait_seconds: float = 0.0
    lease_seconds: float | None = None
    consumer: str = ""
    auto_ack: bool = False
    start: PositionOnWire | None = None
    task_types: list[str] | None = None


class Settle(msgspec.Struct, array_like=True, gc=False):
    """End deliveries: those with these receipts, or all that a lease or several leases still hold."""

    outcome: int
    delay_seconds: float | None = None
    error: str = ""
    lease: int = 0
    receipts: Annotated[list[Receipt], msgspec.Meta(max_length=limits.batch_messages_max)] = []
    leases: Annotated[list[int], msgspec.Meta(max_length=limits.lease_messages_max)] = []


class Extend(msgspec.Struct, array_like=True, gc=False):
    """Hold a lease for `seconds` from now; the reply is the instant at which it ends, µs."""

    lease: int
    seconds: float


class Call(msgspec.Struct, array_like=True):
    """Any other operation: its name in the table of operations, and its arguments as a map."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"\x80")


class PushStep(msgspec.Struct, frozen=True, tag="push"):
    """Part of a transaction: messages for one queue, as a batch."""

    queue: str
    batch: bytes
    partition: PartitionOnWire = None


class SettleStep(msgspec.Struct, frozen=True, tag="settle"):
    """Part of a transaction: the end of one delivery."""

    receipt: str
    outcome: int
    delay_seconds: float | None = None
    error: str = ""


class OwnStep(msgspec.Struct, frozen=True, tag="own"):
    """Part of a transaction: the partitions of a group that a member must own."""

    queue: str
    group: str
    member: str
    generation: int
    partitions: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=limits.partitions_max)]


class Transact(msgspec.Struct, forbid_unknown_fields=True):
    """Pushes and settles, all or nothing. `sequence` numbers it among the pushes of the connection's producer."""

    operations: list[PushStep | SettleStep | OwnStep]
    sequence: int = 0


class Cancel(msgspec.Struct, array_like=True, gc=False):
    """Nobody waits for the reply to this request any more."""

    request: int


def pushed_to(transaction: Transact) -> str:
    """The first queue of those that a transaction pushes to, in the order of their names; empty when there is none."""
    return min((step.queue for step in transaction.operations if isinstance(step, PushStep)), default="")


def steps_of(transaction: Transact) -> list[Operation]:
    """The steps of a transaction, validated."""
    steps: list[Operation] = []
    for step in transaction.operations:
        if isinstance(step, PushStep):
            steps.append(PushOperation(check_name(step.queue), Batch.parse(step.batch, validate=True), step.partition))
        elif isinstance(step, OwnStep):
            names = check_name(step.queue), check_name(step.group, "group"), check_name(step.member, "member")
            steps.append(OwnOperation(*names, step.generation, step.partitions))
        else:
            how = wire_settling(step.outcome, step.delay_seconds, step.error)
            steps.append(SettleOperation(Receipt.parse(step.receipt), how))
    return steps


_FIELD: Final = re.compile(r" - at `\$\.([^`]+)`$")  # where the decoder met a wrong type
_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[type, Any]] = {}


def encode(value: Any) -> bytes:
    """A value as MessagePack."""
    return _encoder.encode(value)


def decode(data: Buffer, kind: type[S]) -> S:
    """The inverse of `encode`; `BadRequest` when it is not what it should be."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        value: S = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{kind.__name__}: {error}") from None
    return value


def decode_operation(data: Buffer, kind: type[S]) -> S:
    """An operation from its arguments; `InvalidField` names the argument that has the wrong type."""
    try:
        return decode(data, kind)
    except BadRequest as error:
        wrong = _FIELD.search(error.message)
        if wrong is None:
            raise
        what = error.message[: wrong.start()].partition(": ")[2]
        raise InvalidField(f"{wrong[1]}: {what[:1].lower()}{what[1:]}") from None


def encode_push_one(queue: bytes, sequence: int, payload: bytes) -> bytes:
    """The body of PUSH_ONE."""
    return PUSH_ONE_HEAD.pack(sequence, len(queue)) + queue + payload


def decode_push_one(data: bytes, start: int, stop: int) -> tuple[int, bytes, bytes]:
    """(sequence, queue, payload) of a PUSH_ONE body."""
    if stop - start < PUSH_ONE_HEAD.size:
        raise BadRequest("PUSH_ONE: the body is cut short")
    sequence, length = PUSH_ONE_HEAD.unpack_from(data, start)
    name = start + PUSH_ONE_HEAD.size
    payload = name + length
    if payload > stop:
        raise BadRequest("PUSH_ONE: the name of the queue is cut short")
    return sequence, data[name:payload], data[payload:stop]


def encode_push_typed(content_type: int, queue: bytes, sequence: int, payload: bytes) -> bytes:
    """The body of PUSH_TYPED."""
    return bytes((content_type,)) + encode_push_one(queue, sequence, payload)


def content_type_of(data: bytes, start: int, stop: int) -> ContentType:
    """The first byte of a PUSH_TYPED body; what follows is as in PUSH_ONE."""
    if start == stop:
        raise BadRequest("PUSH_TYPED: the body is cut short")
    try:
        return ContentType(data[start])
    except ValueError:
        raise BadRequest(f"PUSH_TYPED: {data[start]} is not a content type") from None


def encode_push(head: PushHead) -> bytes:
    """What goes before the batch in a PUSH."""
    data = _encoder.encode(head)
    return PUSH_HEAD_LENGTH.pack(len(data)) + data


def decode_push(body: memoryview) -> tuple[PushHead, memoryview]:
    """The head of a PUSH, and its batch, which is not checked yet."""
    if len(body) < PUSH_HEAD_LENGTH.size:
        raise BadRequest("PUSH: the body is cut short")
    (length,) = PUSH_HEAD_LENGTH.unpack_from(body)
    end = PUSH_HEAD_LENGTH.size + length
    return decode(body[PUSH_HEAD_LENGTH.size : end], PushHead), body[end:]
