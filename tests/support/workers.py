"""A worker in the test's own loop, over an app in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.model_tasks import TaskView
from penstock.tasks.app import App
from penstock.worker import Worker
from tests.support.broker_loop import until

PATIENCE_SECONDS = 100.0


@asynccontextmanager
async def an_app(clock: ManualClock | None = None, **options: Any) -> AsyncIterator[App]:
    app = App(clock=clock, **options)
    try:
        yield app
    finally:
        await app.aclose()


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    """A worker that has started; it is stopped at the end, at once if it must be."""
    worker = Worker(app, **options)
    running = asyncio.create_task(worker.run())
    started = asyncio.create_task(worker.started.wait())
    await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        await running


async def drained(app: App, **options: Any) -> Worker:
    """A worker that has done everything there was to do."""
    worker = Worker(app, drain=True, **options)
    await worker.run()
    return worker


async def view_of(app: App, job: Any) -> TaskView:
    return await (await app.open_async_session()).execute(ops.FindTask(job.id))


async def final(app: App, job: Any) -> TaskView:
    """The job once it is final."""
    view = await app.await_task(job.id, PATIENCE_SECONDS)
    assert view.is_final, view
    return view


async def extended(app: App, clock: ManualClock) -> None:
    """Until every lease lasts for half a minute again."""
    shard = (await app.open_async_session()).session.shard  # type: ignore[attr-defined]
    await until(lambda: all(lease.deadline >= clock.monotonic() + 29e6 for lease in list(shard.core.leases.values())))
