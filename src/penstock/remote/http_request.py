"""Requests over HTTP: method, path and JSON, how to read the answer, and whether it may be sent again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from penstock.batch import Batch, encode_one
from penstock.errors import InvalidName, LeaseLost, PenstockError
from penstock.model import Durability, MessageId, Outcome, Receipt, check_name, to_micros
from penstock.remote.request import Again, Request, position
from penstock.requests import LeaseRequest, Operation, PartitionChoice, PushOperation, Settling
from penstock.wire.errors import ErrorReply, to_error
from penstock.wire.frames import Type
from penstock.wire.json_client import messages_of, read_leased, read_pushed
from penstock.wire.json_views import SettleResults, TransactionView

encode: Final = msgspec.json.Encoder().encode
Body = Callable[[dict[str, Any] | None], Any]  # from who pushes, when that is known, to what becomes JSON
Read = Callable[[bytes], Any]

# outcome: (the last part of its route, the field of its error)
SETTLING: Final = {
    Outcome.ACKED: ("ack", ""),
    Outcome.RETRIED: ("nack", "error"),
    Outcome.REJECTED: ("reject", "reason"),
    Outcome.RELEASED: ("release", ""),
    Outcome.SNOOZED: ("snooze", ""),
}


class HttpRequest(Request):
    """A request with its method and path; `encode` makes the body, if there is one."""

    __slots__ = ("is_each", "method", "path")

    def __init__(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        read: Read | None = None,
        again: Again = Again.ALWAYS,
        *,
        is_numbered: bool = False,
        wait_seconds: float = 0.0,
    ) -> None:
        def encoded(sequence: int) -> Sequence[bytes]:
            return () if body is None else (encode(body(self._number())),)

        reader: Any = read or _nothing
        super().__init__(Type.CALL, encoded, reader, again, is_numbered=is_numbered, wait_seconds=wait_seconds)
        self.method = method
        self.path = path
        self.is_each = False  # the answer tells of each part, also when all of them were refused

    def _number(self) -> dict[str, Any] | None:
        if self.producer is None:
            return None
        return {"id": f"{self.producer.id:016x}", "epoch": self.producer.epoch, "sequence": self.sequence}


class Shape(NamedTuple):
    """How an operation looks over HTTP. `kind` is what the body of the answer holds, `result` what is made of it."""

    method: str
    path: Callable[[Any], str]
    body: Callable[[Any], Any] | None = None
    query: Callable[[Any], Mapping[str, Any]] | None = None
    kind: Any = None
    result: Callable[[Any], Any] = lambda view: view


def path_of(queue: str, *parts: str | int) -> str:
    """A path within a queue."""
    return "/".join(("/api/v1/queues", segment(check_name(queue)), *map(segment, parts)))


def segment(part: str | int) -> str:
    """A part of a path that stays one part: nothing in it leads to another route."""
    if str(part) in ("", ".", ".."):
        raise InvalidName(f"{part!r} is not a valid name")
    return quote(str(part), safe="")


def push_one(queue: str, payload: bytes) -> HttpRequest:
    """One message without options; its id."""
    request = push(queue, Batch(encode_one(payload)), None, None)
    read = request.read

    def read_id(body: Any) -> MessageId:
        ids: list[MessageId] = read(body).ids()
        return ids[0]

    request.read = read_id
    return request


def push(queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None) -> HttpRequest:
    """A batch."""

    def body(producer: dict[str, Any] | None) -> Any:
        optional = {"durability": durability, "producer": producer}
        return {"messages": messages_of(batch, partition), **_given(optional)}

    return HttpRequest(
        "POST", path_of(queue, "messages"), body, lambda answer: read_pushed(queue, answer), is_numbered=True
    )


def lease(queue: str, group: str, wanted: LeaseRequest, wait_seconds: float) -> HttpRequest:
    """Messages to be handed out. What is lost on its way comes back when its lease ends, unless nobody acks it."""
    asked = {
        "max": wanted.count_max,
        "wait_ms": wait_seconds * 1000,
        "group": group,
        "consumer": wanted.consumer,
        "auto_ack": wanted.auto_ack,
        "member": wanted.member,
        "generation": wanted.generation,
        **_given({"lease_ms": _ms(wanted.lease_seconds), "partitions": wanted.partitions}),
        **({} if wanted.start is None else {"start": position(wanted.start)}),
    }
    return HttpRequest(
        *("POST", path_of(queue, "lease"), lambda _: asked),
        lambda answer: read_leased(queue, group, answer),
        Again.NEVER if wanted.auto_ack else Again.ALWAYS,
        wait_seconds=wait_seconds,
    )


def settle(receipts: Sequence[Receipt], nonce: int, how: Settling) -> HttpRequest:
    """Deliveries to be ended, by their receipts or by their lease: all of them or none."""
    if not nonce and len(receipts) > 1:
        body = {"operations": [_settle_part(how, receipts)]}
        return HttpRequest("POST", "/api/v1/transactions", lambda _: body, again=Again.SETTLE)
    which: dict[str, Any] = {"lease_id": f"{nonce:016x}"} if nonce else {"receipts": list(map(str, receipts))}
    asked = which | _how(how)
    return HttpRequest("POST", f"/api/v1/{SETTLING[how.outcome][0]}", lambda _: asked, again=Again.SETTLE)


def settle_each(receipts: Sequence[Receipt], how: Settling) -> HttpRequest:
    """Deliveries to be ended, each for itself. A lost lease is no error; the first that is one is the answer."""
    asked = {"receipts": list(map(str, receipts)), **_how(how)}
    return HttpRequest("POST", f"/api/v1/{SETTLING[how.outcome][0]}", lambda _: asked, _read_settled, Again.SETTLE)


def extend(nonce: int, seconds: float) -> HttpRequest:
    """A lease to be held longer; when it ends now, µs."""
    asked = {"lease_id": f"{nonce:016x}", "lease_ms": seconds * 1000}
    return HttpRequest("POST", "/api/v1/extend", lambda _: asked, _read_extended)


def transact(operations: Sequence[Operation]) -> HttpRequest:
    """A transaction; its sequence is one of the pushes'."""

    def body(producer: dict[str, Any] | None) -> Any:
        return {"operations": [_part(each) for each in operations], **_given({"producer": producer})}

    return HttpRequest("POST", "/api/v1/transactions", body, _read_ids, is_numbered=True)


def _part(operation: Operation) -> dict[str, Any]:
    if isinstance(operation, PushOperation):
        messages = messages_of(operation.batch, operation.partition)
        return {"type": "push", "queue": operation.queue, "messages": messages}
    return _settle_part(operation.how, (operation.receipt,))


def _settle_part(how: Settling, receipts: Sequence[Receipt]) -> dict[str, Any]:
    return {"type": SETTLING[how.outcome][0], "receipts": list(map(str, receipts)), **_how(how)}


def _how(how: Settling) -> dict[str, Any]:
    name = SETTLING[how.outcome][1]
    told = {name: how.error} if name and how.error else {}
    return told | _given({"delay_ms": _ms(how.delay_seconds)})


_settled: Final = msgspec.json.Decoder(SettleResults).decode
_transacted: Final = msgspec.json.Decoder(TransactionView).decode


def _read_settled(body: bytes) -> PenstockError | None:
    for result in _settled(body).results:
        if result.error and result.error.code != LeaseLost.code:
            return to_error(ErrorReply(result.error.code, result.error.message, result.error.hint))
    return None


def _read_extended(body: bytes) -> int:
    return to_micros(_settled(body).results[0].expires_at, "expires_at")


def _read_ids(body: bytes) -> list[list[MessageId]]:
    results = _transacted(body).results
    return [[MessageId.parse(id) for id in result.ids or ()] for result in results if result.type == "push"]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _nothing(body: bytes) -> None:
    return None
