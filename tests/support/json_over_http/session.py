"""A session whose pushes, leases, settles and transactions go over the JSON routes; frames carry the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from penstock.batch import Batch, encode_one
from penstock.errors import LeaseLost, PenstockError
from penstock.model import Durability, MessageId, Outcome, Receipt, check_name, to_micros
from penstock.remote import blocking
from penstock.remote.producer import nameless
from penstock.remote.settings import Settings
from penstock.replies import LeaseReply, PushReply
from penstock.requests import LeaseRequest, Operation, PartitionChoice, PushOperation, SettleOperation, Settling
from penstock.wire.errors import ErrorReply, to_error
from penstock.wire.json_models import ErrorView, SettleResults, TransactionView
from tests.support.json_over_http.client import messages_of, read_leased, read_pushed

# outcome: (the last part of its route, the field of its error)
SETTLING = {
    Outcome.ACKED: ("ack", ""),
    Outcome.RETRIED: ("nack", "error"),
    Outcome.REJECTED: ("reject", "reason"),
    Outcome.RELEASED: ("release", ""),
    Outcome.SNOOZED: ("snooze", ""),
}


class JsonSession(blocking.Session):
    """What a program in another language does, in Python. Every request is sent once."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._http = httpx.Client(base_url=str(settings.addresses[0]), timeout=60, trust_env=False, verify=False)
        self._producer = nameless(settings.rng)

    def close(self) -> None:
        super().close()
        self._http.close()

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        """The body of the response; an error is raised."""
        content = msgspec.json.encode({name: value for name, value in body.items() if value is not None})
        headers = {"content-type": "application/json"}
        response = self._http.post(f"/api/v1/{path}", content=content, headers=headers)
        if response.status_code < 300:
            return response.content
        error = msgspec.json.decode(response.content, type=ErrorView).error
        wait = 0.0 if error.retry_after_ms is msgspec.UNSET else error.retry_after_ms / 1000
        raise to_error(ErrorReply(error.code, error.message, error.hint, wait))

    def _number(self) -> dict[str, Any]:
        sequence = self._producer.take()
        self._producer.done(sequence)
        return {"id": f"{self._producer.id:016x}", "epoch": self._producer.epoch, "sequence": sequence}

    def push_bytes(self, queue: str, payload: bytes) -> MessageId:
        return self.push_one(queue, encode_one(payload), None)

    def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId:
        return self.push(queue, Batch(data), None, durability).ids()[0]

    def push(
        self,
        queue: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        skips: bool = False,
    ) -> PushReply:
        body = {
            "messages": messages_of(batch, partition),
            "durability": durability,
            "producer": self._number(),
            "on_error": "skip" if skips else None,
        }
        return read_pushed(queue, self.post(f"queues/{check_name(queue)}/messages", body))

    def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float = 0.0) -> LeaseReply:
        body = {
            "max": request.count_max,
            "wait_ms": wait_seconds * 1000,
            "group": group,
            "consumer": request.consumer,
            "auto_ack": request.auto_ack,
            "member": request.member,
            "generation": request.generation,
            "lease_ms": _milliseconds(request.lease_seconds),
            "partitions": request.partitions,
            "start": request.start,
        }
        return read_leased(queue, group, self.post(f"queues/{check_name(queue)}/lease", body))

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        if len(receipts) == 1:
            self.post(SETTLING[how.outcome][0], {"receipts": [str(receipts[0])], **_how(how)})
        elif receipts:  # all of them or none
            self.post("transactions", {"operations": [_settle_step(how, receipts)]})

    def settle_lease(self, nonce: int, how: Settling) -> None:
        self.post(SETTLING[how.outcome][0], {"lease_id": f"{nonce:016x}", **_how(how)})

    def extend(self, nonce: int, seconds: float) -> int:
        body = self.post("extend", {"lease_id": f"{nonce:016x}", "lease_ms": seconds * 1000})
        return to_micros(msgspec.json.decode(body, type=SettleResults).results[0].expires_at, "expires_at")

    def transact(self, operations: Sequence[Operation]) -> list[list[MessageId]]:
        steps = [_step(step) for step in operations]
        body = self.post("transactions", {"operations": steps, "producer": self._number()})
        results = msgspec.json.decode(body, type=TransactionView).results
        return [[MessageId.parse(id) for id in result.ids or ()] for result in results if result.type == "push"]

    def pipeline(self) -> Any:
        return JsonPipeline(self)


class JsonPipeline:
    """Settles, each sent and answered before the next."""

    def __init__(self, session: JsonSession) -> None:
        self._session = session
        self._failure: PenstockError | None = None

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        try:
            self._session.settle(receipts, how)
        except LeaseLost:
            pass
        except PenstockError as error:
            self._failure = self._failure or error

    def confirm(self) -> None:
        if self._failure is not None:
            raise self._failure


def _step(operation: Operation) -> dict[str, Any]:
    if isinstance(operation, PushOperation):
        messages = messages_of(operation.batch, operation.partition)
        return {"type": "push", "queue": operation.queue, "messages": messages}
    assert isinstance(operation, SettleOperation)  # the JSON of HTTP has no other
    return _settle_step(operation.how, (operation.receipt,))


def _settle_step(how: Settling, receipts: Sequence[Receipt]) -> dict[str, Any]:
    return {"type": SETTLING[how.outcome][0], "receipts": list(map(str, receipts)), **_how(how)}


def _how(how: Settling) -> dict[str, Any]:
    name = SETTLING[how.outcome][1]
    fields: dict[str, Any] = {name: how.error} if name and how.error else {}
    if how.delay_seconds is not None:
        fields["delay_ms"] = how.delay_seconds * 1000
    return fields


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
