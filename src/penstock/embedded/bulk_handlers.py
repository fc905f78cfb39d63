"""Handlers of operations on many things; `handler_table.py` says what a handler is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import operations as ops
from penstock.embedded.audited import counts_of
from penstock.embedded.handler_table import Reply, Who, handles
from penstock.model_tasks import OperationAction
from penstock.shard import signatures

if TYPE_CHECKING:
    from penstock.embedded.session import Session


@handles(ops.BeginOperation)
def _begin_operation(session: Session, call: ops.BeginOperation, who: Who) -> Reply:
    action = OperationAction(call.action)
    return session.tasks.bulk.begin_tasks(action, call.filter, call.operation_id, call.options, who.name)


@handles(ops.RedriveLetters)
def _redrive_letters(session: Session, call: ops.RedriveLetters, who: Who) -> Reply:
    about = (call.queue, call.filter, call.edit, call.operation_id, call.options, who.name)
    return session.tasks.bulk.begin_letters(OperationAction.REDRIVE, *about)


@handles(ops.DiscardLetters)
def _discard_letters(session: Session, call: ops.DiscardLetters, who: Who) -> Reply:
    about = (call.queue, call.filter, b"", call.operation_id, call.options, who.name)
    return session.tasks.bulk.begin_letters(OperationAction.DISCARD, *about)


@handles(ops.ReplayMessages)
def _replay_messages(session: Session, call: ops.ReplayMessages, who: Who) -> Reply:
    about = (call.queue, call.filter, call.target or call.queue, call.operation_id, call.options, who.name)
    return session.tasks.bulk.begin_replay(*about)


handles(ops.FindOperation)(lambda session, call, who: session.tasks.bulk.find(call.operation_id))
handles(ops.ListOperations)(lambda session, call, who: session.tasks.bulk.all())
handles(ops.ContinueOperation)(lambda session, call, who: session.tasks.bulk.go_on(call.operation_id))
handles(ops.StopOperation)(
    lambda session, call, who: session.tasks.bulk.stop(
        call.operation_id, lambda operation: session.audit.note(**counts_of(operation))
    )
)
handles(ops.LetterSignatures)(lambda session, call, who: signatures.report(session.shard, [call.queue], call.limit))
handles(ops.AllSignatures)(lambda session, call, who: signatures.report(session.shard, None, call.limit))
