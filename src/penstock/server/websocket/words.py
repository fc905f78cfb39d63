"""What is said on a WebSocket, read and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from penstock import validation
from penstock.broker.events import Event
from penstock.errors import BadReceipt, BadRequest, InvalidField, PenstockError
from penstock.model import Outcome, Receipt
from penstock.requests import Settling
from penstock.wire import json_models as models
from penstock.wire import json_stream as stream
from penstock.wire.json_replies import encode, error_fields, instant
from penstock.wire.json_tasks import WORKER, task_update


def read(received: bytes | None) -> stream.Said:
    """What the client said; None stands for a message that is not text."""
    if received is None:
        raise BadRequest("message: bytes are not understood", hint="send JSON as text")
    return stream.said.read(received)


def id_of(received: bytes | None) -> Any:
    """The id of a message that was refused, if it can be made out."""
    try:
        return None if received is None else _ANY_ID.decode(received).id
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class _AnyId(msgspec.Struct):
    id: stream.Id = None


_ANY_ID: Final = msgspec.json.Decoder(_AnyId)


def unknown(name: str) -> InvalidField:
    """The refusal of a subscription that is not there."""
    return InvalidField(f"subscription: there is no {name!r}", hint="subscribe first")


def by_lease(said: models.Settle) -> bool:
    """Whether a whole lease is meant, rather than receipts."""
    if (said.receipts is None) == (said.lease_id is None):
        raise InvalidField("receipts: give either receipts or lease_id")
    return said.lease_id is not None


def proofs_of(texts: Sequence[str]) -> list[Receipt]:
    """Receipts from their texts; the first that is none is named."""
    proofs = []
    for index, text in enumerate(texts):
        try:
            proofs.append(Receipt.parse(text))
        except BadReceipt as error:
            raise BadReceipt(f"receipts[{index}]: {error.message}") from None
    return proofs


def extension(answer: Any) -> dict[str, Any]:
    """What became of a lease that was to be held."""
    if isinstance(answer, PenstockError):
        return {"status": "error", "error": error_fields(answer)}
    return {"status": "ok", "expires_at": msgspec.Raw(instant(answer))}


def event_json(subscription: str, event: Event) -> bytes:
    """An event as the client gets it; encoded once, whoever gets it."""
    body: bytes | None = event.forms.get("json")
    if body is None:
        fields = {"event": event.type, "at": event.at}
        for name in ("queue", "group", "counters", "missed"):
            if value := getattr(event, name):
                fields[name] = value
        body = event.forms["json"] = encode(fields | _more(event))
    return b'{"type":"event","subscription":%b,%b' % (encode(subscription), body[1:])


def _more(event: Event) -> dict[str, Any]:
    if event.type == "counters":
        return {"counters": event.counters}
    if event.task is not None:
        return {"task": task_update(event.task)}
    if event.worker is not None:
        return {"worker": WORKER.write(event.worker)} | ({"is_gone": True} if event.is_gone else {})
    return {}


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


HOW: Final[dict[type, Callable[[Any], Settling]]] = {
    stream.Ack: lambda said: validation.settling(Outcome.ACKED),
    stream.Nack: lambda said: validation.settling(Outcome.RETRIED, _seconds(said.delay_ms), said.error),
    stream.Reject: lambda said: validation.settling(Outcome.REJECTED, error=said.reason),
    stream.Release: lambda said: validation.settling(Outcome.RELEASED),
    stream.Snooze: lambda said: validation.settling(Outcome.SNOOZED, _seconds(said.delay_ms)),
}
