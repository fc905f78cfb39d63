"""Operations on a session of any kind, with the ticket that an embedded one gives."""

from __future__ import annotations

from typing import Any

from penstock.batch import encode_one
from penstock.client._sync import task_calls
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model import MessageId
from penstock.model_tasks import TaskFilter, TaskView
from penstock.operations import Compact, Fetch, History, ListFiles, Operation, Seal

PLAIN = (Seal, Compact, History, ListFiles, Fetch)


def run_operation(session: Any, operation: Operation[Any]) -> Any:
    """(reply, ticket); the ticket alone when there is no reply; the reply alone of what concerns storage as a whole."""
    if isinstance(session, Session):
        reply, ticket = session.run(operation)
    else:
        reply, ticket = session.execute(operation), 0
    if isinstance(operation, PLAIN):
        return reply
    return ticket if operation.spec.result in (None, type(None)) else (reply, ticket)


def confirm(session: Any, ticket: int) -> None:
    """Wait until a ticket of an embedded session is durable; what others reply is."""
    if isinstance(session, Session):
        session.confirm(ticket)


def purge_tasks(session: Any, filter: TaskFilter) -> tuple[int, int]:
    """(how many tasks were purged, ticket)."""
    return task_calls.run_operation(blocking(session), "purge", filter).purged, 0


def cancel_tasks(session: Any, filter: TaskFilter) -> tuple[int, int]:
    """(how many tasks were cancelled, ticket)."""
    return task_calls.run_operation(blocking(session), "cancel", filter).cancelled, 0


def wait_task(session: Any, task_id: str, seconds: float) -> tuple[TaskView, int]:
    """(a task once it is final, or as it is after so long; ticket)."""
    return task_calls.wait_task(blocking(session), task_id, seconds), 0


def blocking(session: Any) -> Any:
    """A session that confirms what it does."""
    return BlockingSession(session) if isinstance(session, Session) else session


def keep_house(session: Session, what: str) -> None:
    """Seal, compact, write a checkpoint, or close."""
    operations: dict[str, Operation[Any]] = {"seal": Seal(), "compact": Compact()}
    if what in operations:
        session.run(operations[what])
    else:
        getattr(session, what)()


def push_bytes(session: Session, queue: str, payload: bytes) -> tuple[MessageId, int]:
    """Push one message; (its id, ticket)."""
    return session.push_one(queue, encode_one(payload))
