"""The service: accepts requests at once, and tells later how they went.

    penstock serve                                     # a broker
    penstock worker examples.fastapi.tasks:app         # a worker
    uvicorn examples.fastapi.service:service           # this

The app of tasks opens its connection with the first request that needs it; the lifespan closes it. The dependency gives
each route the app, so that a test can give it another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel

import penstock
from examples.fastapi.tasks import app as tasks
from examples.fastapi.tasks import send
from penstock.errors import InvalidField, TaskCancelled, TaskDied, TaskNotFound, TaskUnfinished


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    """While the service runs, its tasks can be reached."""
    async with tasks:
        yield


service = FastAPI(title="Mail", lifespan=lifespan)


class Mail(BaseModel):
    """What a client sends."""

    to: str
    subject: str


def task_app() -> penstock.App:
    """The dependency."""
    return tasks


Tasks = Annotated[penstock.App, Depends(task_app)]


@service.post("/mails", status_code=202)
async def accept(mail: Mail) -> dict[str, str]:
    """Stored durably before the client is told."""
    job = await send.aenqueue(mail.to, mail.subject)
    return {"id": job.id}


@service.get("/mails/{id}")
async def look(id: str, app: Tasks) -> dict[str, Any]:
    """How far it is."""
    try:
        view = await app.job(id).ainfo()
    except (TaskNotFound, InvalidField):
        raise HTTPException(404, "there is no such mail") from None
    return {"id": id, "status": view.state, "attempt": view.attempt}


@service.get("/mails/{id}/result")
async def result(id: str, app: Tasks, wait: float = 0) -> Any:
    """What became of it, waited for if that is wanted."""
    try:
        return await app.job(id).aresult(timeout=wait)
    except (TaskNotFound, InvalidField):
        raise HTTPException(404, "there is no such mail") from None
    except TaskUnfinished:
        raise HTTPException(425, "it is not sent yet") from None
    except (TaskDied, TaskCancelled) as error:
        raise HTTPException(410, str(error)) from None
