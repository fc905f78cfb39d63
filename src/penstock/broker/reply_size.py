"""Leases and listings of a size that can be encoded, sent and held: in parts, or as much of them as fits.

A lease is asked for by number of messages, and ten of the largest are more than a frame may hold. The consumer gets as
many as fit, at least one; the rest is released, which counts no attempt, and stands where it stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from penstock import limits
from penstock.batch import Batch
from penstock.batch.layout import KEY
from penstock.model import Message, Receipt
from penstock.replies import LeaseReply, Piece

ANSWER_BYTES_MAX: Final = 16 * limits.MIB
OVERHEAD_BYTES: Final = 160  # of a delivery, beside what the producer gave it: id, receipt, instants
assert ANSWER_BYTES_MAX + limits.batch_bytes_max <= limits.frame_bytes_max, "one message too many must still fit"


def fit(reply: LeaseReply) -> tuple[LeaseReply, list[Receipt]]:
    """The part of a lease that fits into an answer, and receipts for what does not."""
    if size_max(reply) <= ANSWER_BYTES_MAX:
        return reply, []
    parts = split(reply, ANSWER_BYTES_MAX)
    return next(parts), [receipt for part in parts for receipt in receipts_in(part)]


def fit_leases(
    leases: Sequence[LeaseReply], bytes_max: int = ANSWER_BYTES_MAX
) -> tuple[list[LeaseReply], list[Receipt]]:
    """The leases, or the parts of them, that fit into one answer, and receipts for what does not."""
    fitting: list[LeaseReply] = []
    excess: list[Receipt] = []
    room = bytes_max
    for lease in leases:
        size = size_max(lease)
        if room <= 0:
            excess += receipts_in(lease)
        elif size <= room:
            fitting.append(lease)
        else:
            parts = split(lease, room)
            fitting.append(next(parts))
            excess += [receipt for part in parts for receipt in receipts_in(part)]
        room -= size
    return fitting, excess


def messages_that_fit(messages: Sequence[Message]) -> Sequence[Message]:
    """As many messages of a listing as fit, at least one."""
    left = ANSWER_BYTES_MAX
    for index, message in enumerate(messages):
        left -= OVERHEAD_BYTES + _message_bytes(message)
        if left < 0 and index:
            return messages[:index]
    return messages


def _message_bytes(message: Message) -> int:
    headers = sum(len(name) + len(value) for name, value in (message.headers or {}).items())
    return len(message.payload) + len(message.key or "") + headers


def size_of(reply: LeaseReply) -> int:
    """About how many bytes the deliveries of a lease take: as many as those of their batches do on average."""
    return sum(len(piece.offsets) * (_bytes(piece.batch) // max(1, piece.batch.count)) for piece in reply.pieces)


def size_max(reply: LeaseReply) -> int:
    """As many bytes as they take at most: those of their whole batches."""
    return sum(map(_bytes, {id(piece.batch): piece.batch for piece in reply.pieces}.values()))


def _bytes(batch: Batch) -> int:
    return OVERHEAD_BYTES * batch.count + batch.payload_bytes + _columns_bytes(batch)


def _columns_bytes(batch: Batch) -> int:
    """Of keys and headers; both may be far longer than payloads."""
    key, headers = batch.text(KEY), batch.headers_column()
    return (0 if key is None else int(key.values.lengths().sum())) + (
        0 if headers is None else int(headers.lengths().sum())
    )


def split(reply: LeaseReply, bytes_max: int) -> Iterator[LeaseReply]:
    """Split a reply into replies of about `bytes_max` bytes, each with at least one delivery."""
    gathered: list[Piece] = []
    room = bytes_max
    for piece in reply.pieces:
        first, beside = 0, OVERHEAD_BYTES + _columns_bytes(piece.batch) // max(1, piece.batch.count)
        for index, payload in enumerate(piece.payloads()):
            if len(payload) + beside > room and (gathered or index > first):
                if index > first:
                    gathered.append(piece.part(first, index))
                yield _part(reply, gathered)
                gathered, room, first = [], bytes_max, index
            room -= len(payload) + beside
        gathered.append(piece.part(first, len(piece.offsets)))
    if gathered:
        yield _part(reply, gathered)


def _part(reply: LeaseReply, pieces: list[Piece]) -> LeaseReply:
    return msgspec.structs.replace(reply, pieces=pieces, count=sum(len(piece.offsets) for piece in pieces))


def receipts_in(reply: LeaseReply) -> list[Receipt]:
    """The proofs of all deliveries of a reply."""
    return [
        Receipt(reply.queue, piece.partition(index), offset, piece.attempt(index), reply.nonce)
        for piece in reply.pieces
        for index, offset in enumerate(piece.offsets)
    ]
