"""Bodies of answers.

    PLACED      offset u64 | name of the partition                                   to PUSH_ONE, PUSH_TYPED; big-endian
    PUSHED      MessagePack array                                                    to PUSH
    LEASED      head length u32 | head: MessagePack array | batches, end to end      to LEASE
    LEASED_QUEUES   for each lease: length u32 | as LEASED                           to LEASE_QUEUES

Messages travel in the batches they are stored in, whole or cut down to the rows that were leased.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from penstock.batch import Batch
from penstock.errors import BadRequest, PenstockError
from penstock.model import MessageId, as_run
from penstock.replies import LeaseReplies, LeaseReply, Piece, PushFailure, PushReply
from penstock.wire.errors import to_reply
from penstock.wire.frames import Buffer, Type
from penstock.wire.requests import decode, encode

PLACE: Final = struct.Struct(">Q")
PLACED_HEAD: Final = struct.Struct(">IBIQ")  # of the frame, and the offset
PLACED: Final = int(Type.PLACED)  # looking an enumeration up costs more than all else about it
LEASED_HEAD: Final = struct.Struct(">I")
MERGED_ROWS_MAX: Final = 16  # smaller pieces are merged into one batch
SHARE_MIN: Final = 0.5  # a batch goes as it is when at least this share of its rows is wanted


class Pushed(msgspec.Struct, array_like=True):
    """Where the rows of a batch went: (partition, rows accepted, first offset, rows as int64 or None for all)."""

    count: int
    parts: list[tuple[str, int, int, bytes | None]]
    duplicates: dict[int, MessageId]
    failures: dict[int, PushFailure] = {}


class PieceHead(msgspec.Struct, array_like=True):
    """Deliveries whose rows lie in one batch. Numbers that differ by row are packed little-endian."""

    batch: int  # which of the batches that follow
    rows: int | bytes  # the first of consecutive ones, or int64 each
    partitions: str | list[str]  # one for all, or one each
    offsets: int | bytes  # the first of consecutive ones, or int64 each
    count: int
    attempts: int | bytes  # one for all, or uint16 each
    pushed_at: int | bytes  # µs; one for all, or int64 each


class LeasedHead(msgspec.Struct, array_like=True):
    """A lease, and the sizes of the batches behind it."""

    queue: str
    group: str
    nonce: int
    expires_at: int
    count: int
    sizes: list[int]
    pieces: list[PieceHead]
    lease_seconds: float = 0.0
    batch_max: int = 0


# pushes


def placed_frame(correlation: int, partition: bytes, offset: int) -> bytes:
    """The whole frame of PLACED, which is made more often than any other."""
    return PLACED_HEAD.pack(13 + len(partition), PLACED, correlation, offset) + partition


def decode_placed(body: Buffer) -> tuple[str, int]:
    """(partition, offset)."""
    if len(body) < PLACE.size:
        raise BadRequest("PLACED: the body is cut short")
    return str(body[PLACE.size :], "utf-8"), PLACE.unpack_from(body)[0]


def encode_pushed(reply: PushReply) -> bytes:
    """The body of PUSHED."""
    parts = [
        (partition, accepted, first, None if rows is None else rows.tobytes())
        for partition, accepted, first, rows in reply.parts
    ]
    return encode(Pushed(reply.count, parts, dict(reply.duplicates), dict(reply.failures)))


def encode_pushed_one(place: tuple[str, int]) -> bytes:
    """The body of PUSHED for one message that was no duplicate, in this partition and at this offset."""
    partition, offset = place
    return encode(Pushed(1, [(partition, 1, offset, None)], {}))


def decode_pushed(queue: str, body: Buffer) -> PushReply:
    """The inverse of `encode_pushed`."""
    pushed = decode(body, Pushed)
    parts = [
        (partition, accepted, first, None if rows is None else np.frombuffer(rows, np.int64))
        for partition, accepted, first, rows in pushed.parts
    ]
    return PushReply(queue, pushed.count, parts, pushed.duplicates, pushed.failures)


# leases


def encode_leased(reply: LeaseReply) -> list[Buffer]:
    """The body of LEASED, in pieces so that batches are not copied once more."""
    batches: list[Batch] = []
    numbers: dict[int, int] = {}
    heads = []
    for piece in merged(reply.pieces):
        batch, rows = _sent(piece)
        number = numbers.get(id(batch))
        if number is None:
            number = numbers[id(batch)] = len(batches)
            batches.append(batch)
        heads.append(_piece_head(piece, number, rows))
    data: list[Buffer] = [batch.data for batch in batches]
    sizes = [len(part) for part in data]
    about = (reply.queue, reply.group, reply.nonce, reply.expires_at, reply.count)
    head = encode(LeasedHead(*about, sizes, heads, reply.lease_seconds, reply.batch_max))
    return [LEASED_HEAD.pack(len(head)) + head, *data]


def decode_leased(body: memoryview) -> LeaseReply:
    """The inverse of `encode_leased`; batches are views into the body."""
    if len(body) < LEASED_HEAD.size:
        raise BadRequest("LEASED: the body is cut short")
    (length,) = LEASED_HEAD.unpack_from(body)
    position = LEASED_HEAD.size + length
    head = decode(body[LEASED_HEAD.size : position], LeasedHead)
    batches = []
    for size in head.sizes:
        batches.append(Batch.parse(body[position : position + size], validate=False))
        position += size
    if position != len(body):
        raise BadRequest("LEASED: the sizes of its batches do not add up")
    pieces = [_piece(piece, batches[piece.batch]) for piece in head.pieces]
    about = (head.queue, head.group, head.nonce, head.expires_at)
    return LeaseReply(*about, pieces, head.count, head.lease_seconds, head.batch_max)


def encode_leased_queues(reply: LeaseReplies) -> list[Buffer]:
    """The body of LEASED_QUEUES, in pieces."""
    data: list[Buffer] = []
    for lease in reply.leases:
        body = encode_leased(lease)
        data += [LEASED_HEAD.pack(sum(map(len, body))), *body]
    return data


def decode_leased_queues(body: memoryview) -> LeaseReplies:
    """The inverse of `encode_leased_queues`."""
    leases = []
    position = 0
    while position < len(body):
        if len(body) - position < LEASED_HEAD.size:
            raise BadRequest("LEASED_QUEUES: the body is cut short")
        (length,) = LEASED_HEAD.unpack_from(body, position)
        position += LEASED_HEAD.size + length
        if position > len(body):
            raise BadRequest("LEASED_QUEUES: the body is cut short")
        leases.append(decode_leased(body[position - length : position]))
    return LeaseReplies(leases, sum(lease.count for lease in leases))


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Runs of small pieces without options, such as messages pushed one by one, made into one batch each."""
    if len(pieces) < 2:
        return list(pieces)
    result: list[Piece] = []
    run: list[Piece] = []
    for piece in pieces:
        if len(piece.offsets) <= MERGED_ROWS_MAX and not piece.batch.flags:
            run.append(piece)
            continue
        result += _merge(run)
        run = []
        result.append(piece)
    return result + _merge(run)


def _merge(run: list[Piece]) -> list[Piece]:
    if len(run) < 2:
        return run
    payloads = [payload for piece in run for payload in piece.payloads()]
    offsets = [offset for piece in run for offset in piece.offsets]
    names = [piece.partition(index) for piece in run for index in range(len(piece.offsets))]
    attempts = [piece.attempt(index) for piece in run for index in range(len(piece.offsets))]
    pushed_at = [piece.pushed(index) for piece in run for index in range(len(piece.offsets))]
    partitions: str | list[str] = names[0] if len(set(names)) == 1 else names
    tries: int | list[int] = attempts[0] if len(set(attempts)) == 1 else attempts
    return [Piece(Batch.build(payloads), slice(0, len(offsets)), partitions, offsets, tries, pushed_at)]


def _sent(piece: Piece) -> tuple[Batch, slice | Any]:
    """The batch to send, and the rows of it that are meant."""
    batch: Batch = piece.batch
    if len(piece.offsets) >= SHARE_MIN * batch.count:
        return batch, piece.rows
    rows = np.arange(piece.rows.start, piece.rows.stop) if isinstance(piece.rows, slice) else piece.rows
    return batch.take(np.asarray(rows, np.int64)), slice(0, len(piece.offsets))


def _piece_head(piece: Piece, batch: int, rows: slice | Any) -> PieceHead:
    partitions = piece.partitions if isinstance(piece.partitions, str) else list(piece.partitions)
    return PieceHead(
        batch,
        rows.start if isinstance(rows, slice) else np.asarray(rows, np.int64).tobytes(),
        partitions,
        _offsets(piece.offsets),
        len(piece.offsets),
        piece.attempts if isinstance(piece.attempts, int) else np.array(piece.attempts, np.uint16).tobytes(),
        piece.pushed_at if isinstance(piece.pushed_at, int) else np.array(piece.pushed_all(), np.int64).tobytes(),
    )


def _offsets(offsets: Sequence[int]) -> int | bytes:
    """The first one of a run. Those of several partitions come mixed, and may be none whatever their ends are."""
    run = offsets if isinstance(offsets, range) else as_run(list(offsets))
    return run[0] if isinstance(run, range) else np.array(run, np.int64).tobytes()


def _piece(head: PieceHead, batch: Batch) -> Piece:
    count = head.count
    return Piece(
        batch,
        slice(head.rows, head.rows + count) if isinstance(head.rows, int) else np.frombuffer(head.rows, np.int64),
        head.partitions,
        range(head.offsets, head.offsets + count)
        if isinstance(head.offsets, int)
        else np.frombuffer(head.offsets, np.int64).tolist(),
        head.attempts if isinstance(head.attempts, int) else np.frombuffer(head.attempts, np.uint16).tolist(),
        head.pushed_at if isinstance(head.pushed_at, int) else np.frombuffer(head.pushed_at, np.int64).tolist(),
    )


def encode_reply(reply: Any) -> bytes:
    """The reply to a call. Errors of single items travel in their place."""
    if isinstance(reply, list) and any(isinstance(item, PenstockError) for item in reply):
        reply = [to_reply(item) if isinstance(item, PenstockError) else item for item in reply]
    return encode(reply)
