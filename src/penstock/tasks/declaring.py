"""What an app declares: queues with their options, and schedules. The broker keeps both.

A queue is made, or brought to the declared options, before this process first uses it; a schedule when a worker starts
or `app.declare()` is called. Options that are not declared stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock import operations as ops
from penstock.client.session import AsyncSession, Session
from penstock.errors import InvalidField, QueueExists
from penstock.model import check_name, queue_options
from penstock.model_tasks import ScheduleSpec, ScheduleView
from penstock.tasks.options import QueueDeclaration


class Declarations:
    """Queues and schedules of one app."""

    def __init__(self) -> None:
        self.queues: dict[str, Mapping[str, Any]] = {}
        self.schedules: dict[str, ScheduleSpec] = {}
        self._waiting: set[str] = set()  # queues whose options the broker has not been told yet

    def queue(self, name: str, options: Mapping[str, Any]) -> QueueDeclaration:
        """Declare a queue; twice only with the same options."""
        check_name(name)
        known = self.queues.get(name)
        if options:
            queue_options(options)
            if known and known != options:
                raise InvalidField(f"queue {name!r}: it is declared already, with other options")
            self._waiting.add(name)
        self.queues[name] = options or known or {}
        return QueueDeclaration(name, self.queues[name])

    def schedule(self, spec: ScheduleSpec) -> None:
        """Declare a schedule."""
        self.schedules[spec.name] = msgspec.structs.replace(spec, is_declared=True)

    def gone(self, known: list[ScheduleView]) -> list[str]:
        """Schedules that code declared once, for queues of this app, and that it declares no more.

        Whoever works on a queue has to know all its tasks, so those of its queues are the app's own.
        """
        return [
            view.spec.name
            for view in known
            if view.spec.is_declared and view.spec.queue in self.queues and view.spec.name not in self.schedules
        ]

    def ensure(self, session: Session, queue: str) -> None:
        """The queue has the options that were declared for it."""
        if queue not in self._waiting:
            self.queues.setdefault(queue, {})
            return
        options = self.queues[queue]
        try:
            session.execute(ops.CreateQueue(queue, options, exist_ok=True))
        except QueueExists:
            session.execute(ops.UpdateQueue(queue, options))
        self._waiting.discard(queue)

    async def aensure(self, session: AsyncSession, queue: str) -> None:
        """The same, awaited."""
        if queue not in self._waiting:
            self.queues.setdefault(queue, {})
            return
        options = self.queues[queue]
        try:
            await session.execute(ops.CreateQueue(queue, options, exist_ok=True))
        except QueueExists:
            await session.execute(ops.UpdateQueue(queue, options))
        self._waiting.discard(queue)

    def declare(self, session: Session) -> None:
        """Tell the broker of everything."""
        for queue in list(self._waiting):
            self.ensure(session, queue)
        if self.schedules:
            for spec in self._as_paused(session.execute(ops.Schedules())):
                session.execute(ops.SetSchedule(spec))

    async def adeclare(self, session: AsyncSession) -> None:
        """The same, awaited."""
        for queue in list(self._waiting):
            await self.aensure(session, queue)
        if self.schedules:
            for spec in self._as_paused(await session.execute(ops.Schedules())):
                await session.execute(ops.SetSchedule(spec))

    def _as_paused(self, known: list[ScheduleView]) -> list[ScheduleSpec]:
        """What is declared, but what somebody has paused stays paused: a worker that starts must not end that."""
        paused = {view.spec.name for view in known if view.spec.is_paused}
        return [msgspec.structs.replace(spec, is_paused=spec.name in paused) for spec in self.schedules.values()]
