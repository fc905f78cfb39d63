"""The part of an app that is about operations: purging or cancelling many jobs, in the background of the broker."""

from __future__ import annotations

from typing import Literal, Unpack

from penstock import operations as ops
from penstock.client._async.task_calls import run_operation as arun_operation
from penstock.client._sync.task_calls import new_operation, run_operation
from penstock.client.session import AsyncSession, Session
from penstock.model_tasks import OperationView
from penstock.tasks import listing
from penstock.tasks.listing import JobFilter

Action = Literal["purge", "cancel"]


class Operating:
    """Operations of the broker behind an app."""

    def purge(self, **wanted: Unpack[JobFilter]) -> int:
        """Forget final jobs that match; those that only wait are cancelled and forgotten too. Returns how many.

        It waits until the operation is over; `begin` does not.
        """
        return run_operation(self.open_session(), "purge", listing.filter_of(wanted)).purged

    async def apurge(self, **wanted: Unpack[JobFilter]) -> int:
        """Asyncio version of `purge()`."""
        session = await self.open_async_session()
        return (await arun_operation(session, "purge", listing.filter_of(wanted))).purged

    def cancel_all(self, **wanted: Unpack[JobFilter]) -> int:
        """Cancel all jobs that match and are not final, running ones too. Returns how many; waits as `purge` does."""
        return run_operation(self.open_session(), "cancel", listing.filter_of(wanted)).cancelled

    async def acancel_all(self, **wanted: Unpack[JobFilter]) -> int:
        """Asyncio version of `cancel_all()`."""
        session = await self.open_async_session()
        return (await arun_operation(session, "cancel", listing.filter_of(wanted))).cancelled

    def begin(self, action: Action, **wanted: Unpack[JobFilter]) -> OperationView:
        """Begin to purge or cancel all jobs that match; returns the operation, which goes on by itself."""
        session = self.open_session()
        return session.execute(new_operation(action, listing.filter_of(wanted)))

    async def abegin(self, action: Action, **wanted: Unpack[JobFilter]) -> OperationView:
        """Asyncio version of `begin()`."""
        return await (await self.open_async_session()).execute(new_operation(action, listing.filter_of(wanted)))

    def operation(self, operation_id: str) -> OperationView:
        """How far an operation is. Raises `OperationNotFound`."""
        session = self.open_session()
        return session.execute(ops.FindOperation(operation_id))

    async def aoperation(self, operation_id: str) -> OperationView:
        """Asyncio version of `operation()`."""
        return await (await self.open_async_session()).execute(ops.FindOperation(operation_id))

    def operations(self) -> list[OperationView]:
        """Operations that run and those that did lately, the newest first."""
        session = self.open_session()
        return session.execute(ops.ListOperations())

    async def aoperations(self) -> list[OperationView]:
        """Asyncio version of `operations()`."""
        return await (await self.open_async_session()).execute(ops.ListOperations())

    def stop_operation(self, operation_id: str) -> OperationView:
        """Stop an operation; what was done stays done. Raises `TaskConflict` when it is over already."""
        session = self.open_session()
        return session.execute(ops.StopOperation(operation_id))

    async def astop_operation(self, operation_id: str) -> OperationView:
        """Asyncio version of `stop_operation()`."""
        return await (await self.open_async_session()).execute(ops.StopOperation(operation_id))

    def open_session(self) -> Session:
        """The session for threads."""
        raise TypeError("an app opens sessions")

    async def open_async_session(self) -> AsyncSession:
        """The session for the running loop."""
        raise TypeError("an app opens sessions")
