# Generated from penstock/client/_async/bulk.py by `make generate`. Do not edit.
"""Bulk operations, and the dead letters of a queue."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from penstock import operations as ops
from penstock import validation
from penstock.batch import Batch
from penstock.client.arguments import check_function, merge_patch
from penstock.client.session import Session
from penstock.client.thread_runtime import sleep
from penstock.client.values import Edit, edited, next_page, split
from penstock.errors import InvalidField, shown
from penstock.model import Message, MessageId
from penstock.model_letters import LetterFilter, SignatureReport
from penstock.model_tasks import OperationState, OperationView

ALL: Final = 2**62


class Operations:
    """Bulk operations on tasks, dead letters or messages: running and recent ones."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self) -> builtins.list[OperationView]:
        """Return running and recent operations, newest first."""
        return self._session.execute(ops.ListOperations())

    def get(self, operation_id: str) -> OperationView:
        """Return the progress of an operation. Raises `OperationNotFound`."""
        return self._session.execute(ops.FindOperation(operation_id))

    def wait(self, operation_id: str) -> OperationView:
        """Wait until an operation has finished or waits after its canary. Returns it; raises why it failed."""
        view = self.get(operation_id)
        pauses = validation.pauses()
        while view.state is OperationState.RUNNING:
            sleep(next(pauses))
            view = self.get(operation_id)
        return validation.succeeded(view)

    def continue_(self, operation_id: str) -> OperationView:
        """Continue an operation after its canary. Raises `TaskConflict` if it is not waiting."""
        return self._session.execute(ops.ContinueOperation(operation_id))

    def stop(self, operation_id: str) -> OperationView:
        """Stop an operation. Items already processed are not undone. Raises `TaskConflict` if it has ended."""
        return self._session.execute(ops.StopOperation(operation_id))


class DeadLetters:
    """The dead letters of a queue. All given filters must match."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue

    def list(
        self,
        *,
        group: str | None = None,
        reason: str | None = None,
        error_contains: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        signature: str | None = None,
        limit: int = 100,
    ) -> list[Message]:
        """Return dead letters, oldest first. Their headers say where they come from and why they died."""
        texts = {"group": group, "reason": reason, "error_contains": error_contains, "key": key, "signature": signature}
        filter = validation.letter_filter(validation.read_limit(limit), since=since, until=until, **texts)
        return self._session.execute(ops.DeadLetters(self._queue, filter))

    def redrive(
        self,
        *,
        ids: Iterable[MessageId | str] | None = None,
        group: str | None = None,
        reason: str | None = None,
        error_contains: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        signature: str | None = None,
        limit: int = 1_000_000,
        rate: float | None = None,
        edit: Edit | None = None,
    ) -> int:
        """Send dead letters back to the group in which they died, at most `rate` per second. Returns the number.

        With `edit`, the edited messages are pushed as new messages instead, to all groups.
        """
        texts = {"group": group, "reason": reason, "error_contains": error_contains, "key": key, "signature": signature}
        limit = validation.redrive_limit(limit)
        filter = validation.letter_filter(limit, ids=ids, since=since, until=until, **texts)
        rate = validation.per_second(rate)
        check_function(edit, "edit")
        if edit is not None:
            return self._replace(filter, rate, edit)
        return self._session.execute(ops.Redrive(self._queue, filter, rate))

    def _replace(self, filter: LetterFilter, rate: float | None, edit: Edit) -> int:
        letters: builtins.list[Message] = []
        while (page := next_page(filter, letters)) is not None:
            more = self._session.execute(ops.DeadLetters(self._queue, page))
            letters += more
            if not more:
                break
        for ids, batch in edited(letters, edit, rate):
            self._session.execute(ops.ReplaceLetters(self._queue, ids, bytes(batch.data)))
        return len(letters)

    def replace(self, messages: Mapping[MessageId | str, Any]) -> None:
        """Replace dead letters, given by id, with new messages. Either all are replaced, or none.

        The new messages go to all groups of the queue. Raises `MessageNotFound` if a letter was already redriven or
        deleted.
        """
        if not isinstance(messages, Mapping):
            raise InvalidField(f"messages: {shown(messages)} is not a mapping of ids to messages")
        ids = [validation.message_id(id) for id in messages]
        batch = Batch.build(builtins.list(messages.values()))
        self._session.execute(ops.ReplaceLetters(self._queue, ids, bytes(batch.data)))

    def signatures(self, limit: int = 50) -> SignatureReport:
        """Return dead letters grouped by error signature: counts, trend, and what sets them apart.

        Only the newest letters are examined; the report says how many.
        """
        return self._session.execute(ops.LetterSignatures(self._queue, limit))

    def begin_redrive(
        self, *, edit: Mapping[str, Any] | None = None, limit: int = ALL, **filters_and_options: Any
    ) -> OperationView:
        """Start to redrive matching dead letters in the background. Returns the operation.

        Filters are those of `redrive`. `edit` is a JSON merge patch for payloads: the changed messages are pushed in
        place of the letters. Options: `dry_run` only counts; `rate` limits items per second; `canary` processes that
        many first, then waits for `ps.operations.continue_(id)`; `as_of` selects what matched at that moment;
        `operation_id` makes the call idempotent.
        """
        filter, id, options = split(filters_and_options, limit)
        patch = b"" if edit is None else merge_patch(edit)
        return self._session.execute(ops.RedriveLetters(self._queue, filter, patch, id, options))

    def begin_discard(self, *, limit: int = ALL, **filters_and_options: Any) -> OperationView:
        """Start to delete matching dead letters in the background; see `begin_redrive`."""
        filter, id, options = split(filters_and_options, limit)
        return self._session.execute(ops.DiscardLetters(self._queue, filter, id, options))

    def purge(self) -> None:
        """Delete all dead letters of the queue."""
        self._session.execute(ops.PurgeDeadLetters(self._queue))
