"""Answers must fit into a frame and into memory: what is too much of a lease is given back, of a listing left out.

A lease is asked for by number of messages, and ten of the largest are more than a frame may hold. The consumer gets as
many as fit, at least one; the rest is released, which counts no attempt, and stands where it stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from penstock import limits
from penstock.model import Message, Receipt
from penstock.replies import LeaseReply, Piece

ANSWER_BYTES_MAX: Final = 16 * limits.MIB
assert ANSWER_BYTES_MAX + limits.batch_bytes_max <= limits.frame_bytes_max, "one batch more than fits must still fit"
MESSAGE_BYTES: Final = 200  # beside the payload, roughly


def fit(reply: LeaseReply) -> tuple[LeaseReply, list[Receipt]]:
    """The part of a lease that fits, and receipts for what does not."""
    if sum({id(piece.batch): piece.batch.payload_bytes for piece in reply.pieces}.values()) <= ANSWER_BYTES_MAX:
        return reply, []
    kept: list[Piece] = []
    excess: list[Receipt] = []
    left = ANSWER_BYTES_MAX
    for piece in reply.pieces:
        ends = np.cumsum(_lengths(piece))
        count = int(np.searchsorted(ends, left, "right"))
        if not kept and not count:
            count = 1
        left -= int(ends[count - 1]) if count else 0
        if count:
            kept.append(_cut(piece, count))
        if count < len(piece.offsets):
            left = 0
            excess += [_receipt(reply, piece, index) for index in range(count, len(piece.offsets))]
    return msgspec.structs.replace(reply, pieces=kept, count=reply.count - len(excess)), excess


def fitting(messages: Sequence[Message]) -> Sequence[Message]:
    """As many messages of a listing as fit, at least one."""
    left = ANSWER_BYTES_MAX
    for index, message in enumerate(messages):
        left -= len(message.payload) + MESSAGE_BYTES
        if left < 0 and index:
            return messages[:index]
    return messages


def _lengths(piece: Piece) -> Any:
    lengths = piece.batch.payload_column().lengths()
    return lengths[piece.rows if isinstance(piece.rows, slice) else np.asarray(piece.rows, np.int64)]


def _cut(piece: Piece, count: int) -> Piece:
    """The first deliveries of a piece."""
    if count == len(piece.offsets):
        return piece
    rows = piece.rows
    return Piece(
        piece.batch,
        slice(rows.start, rows.start + count) if isinstance(rows, slice) else rows[:count],
        piece.partitions if isinstance(piece.partitions, str) else piece.partitions[:count],
        piece.offsets[:count],
        piece.attempts if isinstance(piece.attempts, int) else piece.attempts[:count],
        piece.pushed_at[:count] if isinstance(piece.pushed_at, Sequence) else piece.pushed_at,
    )


def _receipt(reply: LeaseReply, piece: Piece, index: int) -> Receipt:
    return Receipt(reply.queue, piece.partition(index), piece.offsets[index], piece.attempt(index), reply.nonce)
