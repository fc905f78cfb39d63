"""Leases and how deliveries end, between protocol buffers and the broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from penstock import limits, validation
from penstock.batch import CONTENT_TYPE, HEADERS, KEY, PRIORITY, TRACE
from penstock.broker import StreamRequest
from penstock.broker.reply_size import split
from penstock.errors import InvalidField
from penstock.model import Outcome
from penstock.replies import LeaseReply, Piece
from penstock.requests import LeaseRequest, Settling
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.values import group_of, seconds, start_of, timestamp

RESPONSE_BYTES: Final = 3 * limits.MIB  # about: clients take 4 MiB unless told otherwise
STREAM_BATCH: Final = 100


def lease_request(request: pb.LeaseRequest, client: str) -> LeaseRequest:
    """What a consumer asks for."""
    asked = validation.lease_request(
        request.max or 1,
        seconds(request, "lease_ms"),
        request.consumer,
        list(request.partitions) or None,
        request.auto_ack,
        start=start_of(request),
    )
    return msgspec.structs.replace(asked, member=request.member, generation=request.generation, client=client)


def stream_request(opening: pb.StreamOpen) -> StreamRequest:
    """What a stream is to deliver."""
    return StreamRequest(
        opening.queue,
        group_of(opening),
        opening.batch or STREAM_BATCH,
        seconds(opening, "lease_ms"),
        opening.consumer,
        tuple(opening.partitions) or None,
        opening.auto_ack,
        start_of(opening),
    )


def split_reply(reply: LeaseReply, bytes_max: int = RESPONSE_BYTES) -> Iterable[LeaseReply]:
    """A lease in parts for answers of about the given number of bytes."""
    return split(reply, bytes_max)


def lease_response(reply: LeaseReply) -> pb.LeaseResponse:
    """A lease as one answer; an empty one when nothing was leased."""
    if not reply.nonce:
        return pb.LeaseResponse()
    response = pb.LeaseResponse(lease_id=f"{reply.nonce:016x}", expires_at=timestamp(reply.expires_at))
    for piece in reply.pieces:
        columns = _Columns(reply, piece)
        for index, payload in enumerate(piece.payloads()):
            columns.add(response, index, payload)
    return response


class _Columns:
    """The deliveries of one piece; columns that are not there cost nothing."""

    def __init__(self, reply: LeaseReply, piece: Piece) -> None:
        self._queue = reply.queue
        self._nonce = f"{reply.nonce:016x}"
        self._piece = piece
        self._flags: int = piece.batch.flags
        self._pushed_at = timestamp(piece.pushed_at) if isinstance(piece.pushed_at, int) else None

    def add(self, response: pb.LeaseResponse, index: int, payload: bytes) -> None:
        piece, queue = self._piece, self._queue
        partition, offset, attempt = piece.partition(index), piece.offsets[index], piece.attempt(index)
        response.deliveries.add(
            id=f"{queue}/{partition}/{offset}",
            receipt=f"{queue}:{partition}:{offset}:{attempt}:{self._nonce}",
            payload=payload,
            attempt=attempt,
            pushed_at=self._pushed_at or timestamp(piece.pushed(index)),
            **self._rest(piece.row(index)) if self._flags else {"priority": limits.priority_default},
        )

    def _rest(self, row: int) -> dict[str, Any]:
        batch, flags = self._piece.batch, self._flags
        found: dict[str, Any] = {"priority": int(batch.priority[row]) if flags & PRIORITY else limits.priority_default}
        if flags & CONTENT_TYPE:
            found["content_type"] = int(batch.content_type[row])
        if flags & KEY:
            found["key"] = batch.key(row)
        if flags & TRACE:
            found["trace"] = batch.trace(row)
        if flags & HEADERS:
            found["headers"] = batch.headers(row)
        return found


def settling(settlement: pb.Settlement) -> Settling:
    """How deliveries are to end."""
    match settlement.WhichOneof("how"):
        case "ack":
            return validation.settling(Outcome.ACKED)
        case "nack":
            return validation.settling(Outcome.RETRIED, seconds(settlement.nack, "delay_ms"), settlement.nack.error)
        case "reject":
            return validation.settling(Outcome.REJECTED, error=settlement.reject.reason)
        case "release":
            return validation.settling(Outcome.RELEASED)
        case "snooze":
            return validation.settling(Outcome.SNOOZED, settlement.snooze.delay_ms / 1000)
        case _:
            raise InvalidField("how: it is not set", hint="one of ack, nack, reject, release, snooze")


def lease_seconds(request: pb.ExtendRequest) -> float:
    """How long to hold on from now."""
    return validation.extension(request.lease_ms / 1000)
