"""The part of an app that is about schedules. The broker keeps them; each call tells it, or asks."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import operations as ops
from penstock.client.session import AsyncSession, Session
from penstock.errors import ScheduleNotFound
from penstock.model_tasks import MissedPolicy, ScheduleSpec, ScheduleView
from penstock.tasks.declaring import Declarations
from penstock.tasks.schedules import spec_of
from penstock.tasks.task import Configured

if TYPE_CHECKING:
    from penstock.tasks.workflows import Step


class Scheduling:
    """Schedules of the broker behind an app."""

    declarations: Declarations

    def schedule(
        self,
        name: str,
        cron: str,
        task: Configured[..., Any] | Step[Any],
        *,
        timezone: str = "UTC",
        missed: MissedPolicy = "skip",
        is_paused: bool = False,
    ) -> ScheduleView:
        """Make or change a schedule, now: `app.schedule("eu", "0 3 * * *", report.s("eu"), timezone="Europe/Rome")`."""
        spec = spec_of(task, name, cron, timezone, missed, is_paused)
        session = self.open_session()
        self.declarations.ensure(session, spec.queue)
        return self._set_schedule(session, spec)

    def schedules(self) -> list[ScheduleView]:
        """All schedules that the broker keeps, whoever made them."""
        session = self.open_session()
        return session.execute(ops.Schedules())

    def pause_schedule(self, name: str) -> ScheduleView:
        """No ticks until it is resumed, whoever declares it meanwhile."""
        return self._set_schedule(self.open_session(), _paused(name, self.schedules(), is_paused=True))

    def resume_schedule(self, name: str) -> ScheduleView:
        """Go on with the next tick; those that came while it was paused are gone."""
        return self._set_schedule(self.open_session(), _paused(name, self.schedules(), is_paused=False))

    def delete_schedule(self, name: str) -> None:
        """End a schedule. One that a task declares comes back when its worker starts again."""
        session = self.open_session()
        session.execute(ops.DeleteSchedule(name))

    def prune_schedules(self) -> list[str]:
        """End those that `cron=` declared once, for queues of this app, and declares no more; returns their names.

        For when no worker with older code is left: one that starts would declare them again.
        """
        names = self.declarations.gone(self.schedules())
        for name in names:
            with suppress(ScheduleNotFound):  # somebody was quicker
                self.delete_schedule(name)
        return names

    # the same, awaited

    async def aschedule(
        self,
        name: str,
        cron: str,
        task: Configured[..., Any] | Step[Any],
        *,
        timezone: str = "UTC",
        missed: MissedPolicy = "skip",
        is_paused: bool = False,
    ) -> ScheduleView:
        spec = spec_of(task, name, cron, timezone, missed, is_paused)
        session = await self.open_async_session()
        await self.declarations.aensure(session, spec.queue)
        return await session.execute(ops.SetSchedule(spec))

    async def aschedules(self) -> list[ScheduleView]:
        return await (await self.open_async_session()).execute(ops.Schedules())

    async def apause_schedule(self, name: str) -> ScheduleView:
        session = await self.open_async_session()
        return await session.execute(
            ops.SetSchedule(_paused(name, await session.execute(ops.Schedules()), is_paused=True))
        )

    async def aresume_schedule(self, name: str) -> ScheduleView:
        session = await self.open_async_session()
        return await session.execute(
            ops.SetSchedule(_paused(name, await session.execute(ops.Schedules()), is_paused=False))
        )

    async def adelete_schedule(self, name: str) -> None:
        await (await self.open_async_session()).execute(ops.DeleteSchedule(name))

    async def aprune_schedules(self) -> list[str]:
        names = self.declarations.gone(await self.aschedules())
        for name in names:
            with suppress(ScheduleNotFound):
                await self.adelete_schedule(name)
        return names

    # what is behind it

    def open_session(self) -> Session:
        """The session for threads."""
        raise TypeError("an app opens sessions")

    async def open_async_session(self) -> AsyncSession:
        """The session for the running loop."""
        raise TypeError("an app opens sessions")

    def _set_schedule(self, session: Session, spec: ScheduleSpec) -> ScheduleView:
        return session.execute(ops.SetSchedule(spec))


def _paused(name: str, known: list[ScheduleView], *, is_paused: bool) -> ScheduleSpec:
    for view in known:
        if view.spec.name == name:
            return msgspec.structs.replace(view.spec, is_paused=is_paused)
    raise ScheduleNotFound(f"no schedule is named {name!r}")
