"""A lease in parts that are not too large to be encoded and sent at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.replies import LeaseReply, Piece

OVERHEAD_BYTES = 256  # of a delivery, beside its payload


def size_of(reply: LeaseReply) -> int:
    """About how many bytes the deliveries of a lease take."""
    return sum(
        len(piece.offsets) * (OVERHEAD_BYTES + piece.batch.payload_bytes // max(1, piece.batch.count))
        for piece in reply.pieces
    )


def split(reply: LeaseReply, bytes_max: int) -> Iterator[LeaseReply]:
    """The same deliveries in replies of about so many bytes, each with one delivery at least."""
    if sum(piece.batch.payload_bytes for piece in reply.pieces) + reply.count * OVERHEAD_BYTES <= bytes_max:
        yield reply
        return
    for piece in reply.pieces:
        for part in _parts(piece, bytes_max):
            yield msgspec.structs.replace(reply, pieces=(part,), count=len(part.offsets))


def _parts(piece: Piece, bytes_max: int) -> Iterator[Piece]:
    first, size = 0, 0
    for index, payload in enumerate(piece.payloads()):
        if index > first and size + len(payload) > bytes_max:
            yield _cut(piece, first, index)
            first, size = index, 0
        size += len(payload) + OVERHEAD_BYTES
    yield _cut(piece, first, len(piece.offsets))


def _cut(piece: Piece, first: int, end: int) -> Piece:
    rows = piece.rows
    return msgspec.structs.replace(
        piece,
        rows=slice(rows.start + first, rows.start + end) if isinstance(rows, slice) else rows[first:end],
        partitions=piece.partitions if isinstance(piece.partitions, str) else piece.partitions[first:end],
        offsets=piece.offsets[first:end],
        attempts=piece.attempts if isinstance(piece.attempts, int) else _some(piece.attempts, first, end),
    )


def _some(values: Sequence[int], first: int, end: int) -> Sequence[int]:
    return values[first:end]
