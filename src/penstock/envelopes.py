"""Tasks as messages, and back: batches of submissions, the envelope in a payload, new ids, what fits into a push."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec
import numpy as np

from penstock import limits
from penstock.batch import Batch, encode_one_task, encode_one_with, fields, layout
from penstock.batch.fields import seal_fields
from penstock.errors import InvalidField
from penstock.model import ContentType
from penstock.model_tasks import BYTES_MARK, NO_ARGS, NO_KWARGS, Envelope, TaskSubmission

PUSH_BYTES: Final = limits.batch_bytes_max // 2  # that one push aims at
_ENVELOPE_BYTES: Final = 512  # of a task beside its arguments, at most in the ordinary
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Envelope)
# A task with bytes: this tag, the length of the envelope's JSON, the JSON, the bytes. JSON begins with no such byte.
BINARY: Final = b"\x01"
_LENGTH: Final = struct.Struct("<BI")
_MARK_START: Final = b'{"%b":' % BYTES_MARK.encode()
_PLAIN: Final = (None, limits.priority_default, 0.0, None, None, None, False, None, None)
_VARIANT: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))  # the digit of a UUID that has two fixed bits


def new_task_id(now_us: int) -> str:
    """A UUID of version 7: ids made later sort later. `now_us` is wall time."""
    number = int.from_bytes(os.urandom(10), "big") | (now_us // 1000 & (1 << 48) - 1) << 80
    number = number & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_task_ids(count: int, now_us: int) -> list[str]:
    """Many of them at once."""
    noise, stamp = os.urandom(10 * count).hex(), f"{now_us // 1000 & (1 << 48) - 1:012x}"
    head = f"{stamp[:8]}-{stamp[8:]}-7"
    return [
        f"{head}{noise[at : at + 3]}-{_VARIANT[noise[at + 3]]}{noise[at + 4 : at + 7]}-{noise[at + 7 : at + 19]}"
        for at in range(0, 20 * count, 20)
    ]


def encode_envelope(task: TaskSubmission, schedule: str = "", scheduled_at: str = "") -> bytes:
    """The payload of a submission, which a schedule may have made for a tick."""
    envelope = _encoder.encode(
        Envelope(
            task_id=task.task_id,
            task_type=task.task_type,
            args=NO_ARGS if task.args == b"[]" else msgspec.Raw(task.args),
            kwargs=NO_KWARGS if task.kwargs == b"{}" else msgspec.Raw(task.kwargs),
            timeout_seconds=task.timeout_seconds,
            depends_on=task.depends_on,
            on_parent_failure=task.on_parent_failure,
            takes=task.takes,
            workflow=task.workflow,
            schedule=schedule,
            scheduled_at=scheduled_at,
        )
    )
    return _with_bytes(envelope, task.payload)


def parse_envelope(payload: bytes) -> Envelope:
    """The envelope in a payload; `InvalidField` when it is none."""
    is_binary = payload[:1] == BINARY
    try:
        envelope = _decoder.decode(envelope_json(payload) if is_binary else payload)
    except msgspec.MsgspecError as error:
        raise InvalidField(f"payload: not a task: {error}") from None
    if not is_binary:
        return envelope
    _, length = _LENGTH.unpack_from(payload)
    return msgspec.structs.replace(envelope, payload=bytes(payload[_LENGTH.size + length :]))


def envelope_json(payload: bytes) -> bytes:
    """The JSON of a task's envelope, without the bytes that may follow it."""
    if payload[:1] != BINARY:
        return payload
    if len(payload) < _LENGTH.size:
        return b""
    _, length = _LENGTH.unpack_from(payload)
    return bytes(payload[_LENGTH.size : _LENGTH.size + length])


def marked_bytes(value: msgspec.Raw) -> int | None:
    """How many of a task's bytes an argument stands for; None for an ordinary one."""
    text = bytes(value)
    if not text.startswith(_MARK_START):
        return None
    number = text[len(_MARK_START) : -1].strip()
    return int(number) if number.isdigit() and len(number) <= 9 else None


def bytes_in(args: bytes, kwargs: bytes) -> list[int]:
    """The lengths of the bytes that the arguments of a task stand for, in their order."""
    values = [] if args == b"[]" else msgspec.json.decode(args, type=list[msgspec.Raw])
    if kwargs != b"{}":
        values += msgspec.json.decode(kwargs, type=dict[str, msgspec.Raw]).values()
    return [length for value in values if (length := marked_bytes(value)) is not None]


def with_bytes_first(args: bytes, payload: bytes) -> bytes:
    """Arguments in front of which a task's bytes stand, as one more."""
    mark, more = b"%b%d}" % (_MARK_START, len(payload)), args.strip()[1:-1].strip()
    return b"[%b,%b]" % (mark, more) if more else b"[%b]" % mark


def task_message(task: TaskSubmission) -> bytes:
    """The message of one task, for an ordinary push: a batch of one."""
    if (task.key, task.priority, task.delay_seconds, task.deliver_at, task.ttl_seconds, task.headers, task.is_named,
        task.max_attempts, task.trace) == _PLAIN:  # fmt: skip
        return encode_one_task(encode_envelope(task))
    return encode_one_with(
        encode_envelope(task),
        key=task.key,
        priority=task.priority,
        delay_us=fields.delay_us(task.delay_seconds),
        deliver_at_us=fields.deliver_at_us(task.deliver_at),
        ttl_us=fields.ttl_us(task.ttl_seconds),
        headers=task.headers,
        dedup_key=task.task_id if task.is_named else None,
        max_attempts=task.max_attempts,
        trace=task.trace,
        content_type=ContentType.TASK,
    )


Call = tuple[bytes, bytes, bytes | None]  # args and kwargs, as JSON, and the bytes among them


def alike_payloads(task: TaskSubmission, calls: Sequence[Call], ids: Sequence[str]) -> list[bytes]:
    """The payloads of tasks that differ from `task` only by their ids and their `calls`."""
    rest = encode_envelope(msgspec.structs.replace(task, task_id="", args=b"[]", kwargs=b"{}", payload=None))
    rest = b"," + rest.removeprefix(b'{"task_id":"",')
    return [
        _with_bytes(b'{"task_id":"%b","args":%b%b' % (id.encode(), args, rest), payload)
        if kwargs == b"{}"
        else _with_bytes(b'{"task_id":"%b","args":%b,"kwargs":%b%b' % (id.encode(), args, kwargs, rest), payload)
        for id, (args, kwargs, payload) in zip(ids, calls, strict=True)
    ]


def _with_bytes(envelope: bytes, payload: bytes | None) -> bytes:
    return envelope if payload is None else b"".join((_LENGTH.pack(BINARY[0], len(envelope)), envelope, payload))


def alike_batch(task: TaskSubmission, payloads: Sequence[bytes]) -> Batch:
    """The messages of tasks that differ only by their payloads, for an ordinary push."""
    return _batch([task] * len(payloads), payloads)


def tasks_batch(tasks: Sequence[TaskSubmission]) -> Batch:
    """The messages of some tasks of one queue, for an ordinary push."""
    return _batch(tasks, [encode_envelope(task) for task in tasks])


def _batch(tasks: Sequence[TaskSubmission], contents: Sequence[bytes]) -> Batch:
    columns = [
        fields.priorities([task.priority for task in tasks]),
        fields.delays([task.delay_seconds for task in tasks]),
        fields.deliver_ats([task.deliver_at for task in tasks]),
        fields.ttls([task.ttl_seconds for task in tasks]),
        fields.max_attempts([task.max_attempts for task in tasks]),
        fields.fixed(layout.CONTENT_TYPE, np.full(len(tasks), ContentType.TASK, np.uint8)),
        fields.texts(layout.KEY, [task.key for task in tasks]),
        fields.texts(layout.DEDUP_KEY, [task.task_id if task.is_named else None for task in tasks]),
        fields.texts(layout.TRACE, [task.trace for task in tasks]),
        fields.headers([task.headers for task in tasks]),
    ]
    return Batch(seal_fields(columns, contents))


def push_tasks(tasks: Sequence[TaskSubmission]) -> Iterator[tuple[str, list[TaskSubmission]]]:
    """Neighbours of one queue, as many as one push can hold."""
    for queue, neighbours in groupby(tasks, key=lambda task: task.queue):
        run = list(neighbours)
        for first, end in push_ranges([_size(task) for task in run]):
            yield queue, run[first:end]


def _size(task: TaskSubmission) -> int:
    return len(task.args) + len(task.kwargs) + len(task.payload or b"") + _ENVELOPE_BYTES


def push_payloads(payloads: list[bytes]) -> Iterator[list[bytes]]:
    """As many payloads as one push can hold."""
    for first, end in push_ranges([len(payload) for payload in payloads]):
        yield payloads[first:end]


def push_ranges(sizes: Sequence[int], count_max: int = limits.batch_messages_max) -> Iterator[tuple[int, int]]:
    """Ranges of messages of these sizes, each within `PUSH_BYTES` and `count_max`, or a single message."""
    if sizes and len(sizes) <= count_max and sum(sizes) <= PUSH_BYTES:  # as most are
        yield 0, len(sizes)
        return
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and (total + size > PUSH_BYTES or index - first >= count_max):
            yield first, index
            first, total = index, 0
        total += size
    if sizes:
        yield first, len(sizes)
