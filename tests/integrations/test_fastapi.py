"""The service in examples/fastapi, with a real FastAPI in front and a real worker behind."""

from __future__ import annotations

import asyncio

import httpx

from examples.fastapi.service import lifespan, service
from examples.fastapi.tasks import app
from penstock.worker import Worker
from tests.support.broker_loop import on_uvloop

UNKNOWN = "0199c0de-5a00-7c1e-8000-7a7e5f3b2a10"


@on_uvloop
async def test_a_request_becomes_a_task_and_its_result_an_answer(tmp_path):
    app.move(tmp_path / "data")
    client = httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://mail")
    async with lifespan(service), client:
        accepted = await client.post("/mails", json={"to": "a@b.c", "subject": "hello"})
        assert accepted.status_code == 202
        id = accepted.json()["id"]
        assert (await client.get(f"/mails/{id}")).json() == {"id": id, "status": "pending", "attempt": 0}
        assert (await client.get(f"/mails/{id}/result")).status_code == 425

        worker = Worker(app, concurrency=1)
        working = asyncio.create_task(worker.run())
        sent = await client.get(f"/mails/{id}/result", params={"wait": 30})
        assert sent.json() == {"to": "a@b.c", "subject": "hello", "status": "sent"}
        worker.stop()
        await working

        assert (await client.get(f"/mails/{UNKNOWN}")).status_code == 404
        assert (await client.get("/mails/nonsense/result")).status_code == 404
        assert (await client.post("/mails", json={"to": 7})).status_code == 422
