"""Operations on a session of any kind, with the ticket that an embedded one gives."""

from __future__ import annotations

from typing import Any

from penstock.embedded import Session
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
