"""A lease in parts that are not too large to be encoded and sent at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.batch import KEY, Batch
from penstock.model import Receipt
from penstock.replies import LeaseReply, Piece

OVERHEAD_BYTES = 160  # of a delivery, beside what the producer gave it: id, receipt, instants


def size_of(reply: LeaseReply) -> int:
    """About how many bytes the deliveries of a lease take."""
    return sum(len(piece.offsets) * _message_bytes(piece) for piece in reply.pieces)


def _message_bytes(piece: Piece) -> int:
    """About: what the messages of its batch take on average."""
    batch: Batch = piece.batch
    return OVERHEAD_BYTES + batch.payload_bytes // max(1, batch.count) + _columns_bytes(batch)


def _columns_bytes(batch: Batch) -> int:
    """Of keys and headers, per message; both may be far longer than payloads."""
    total = 0
    key, headers = batch.text(KEY), batch.headers_column()
    if key is not None:
        total += int(key.values.lengths().sum())
    if headers is not None:
        total += int(headers.lengths().sum())
    return total // max(1, batch.count)


def split(reply: LeaseReply, bytes_max: int) -> Iterator[LeaseReply]:
    """The same deliveries in replies of about so many bytes, each with one delivery at least."""
    gathered: list[Piece] = []
    room = bytes_max
    for piece in reply.pieces:
        first, beside = 0, OVERHEAD_BYTES + _columns_bytes(piece.batch)
        for index, payload in enumerate(piece.payloads()):
            if len(payload) + beside > room and (gathered or index > first):
                if index > first:
                    gathered.append(_cut(piece, first, index))
                yield _part(reply, gathered)
                gathered, room, first = [], bytes_max, index
            room -= len(payload) + beside
        gathered.append(_cut(piece, first, len(piece.offsets)))
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


def _cut(piece: Piece, first: int, end: int) -> Piece:
    if first == 0 and end == len(piece.offsets):
        return piece
    rows = piece.rows
    return msgspec.structs.replace(
        piece,
        rows=slice(rows.start + first, rows.start + end) if isinstance(rows, slice) else rows[first:end],
        partitions=piece.partitions if isinstance(piece.partitions, str) else piece.partitions[first:end],
        offsets=piece.offsets[first:end],
        attempts=piece.attempts if isinstance(piece.attempts, int) else _some(piece.attempts, first, end),
        pushed_at=_some(piece.pushed_at, first, end) if isinstance(piece.pushed_at, Sequence) else piece.pushed_at,
    )


def _some(values: Sequence[int], first: int, end: int) -> Sequence[int]:
    return values[first:end]
