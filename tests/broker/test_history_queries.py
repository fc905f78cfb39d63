"""POST /history/query: what a caller may query, and what a query cannot do to the broker."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.broker import history_queries
from penstock.broker.history_queries import HistoryQueries
from penstock.errors import BadQuery, RateLimited, Unavailable
from tests.support.broker_process import PATIENCE_SECONDS, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queries")
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    flags = ("--auth", "on", "--data", "data", "--http-port", "0", "--grpc-port", "off")
    with Served(folder, *flags, XDG_RUNTIME_DIR=str(runtime)) as broker:
        yield broker


@pytest.fixture(scope="module")
def owner(served):
    name, _, value = Path(served.ready["header_file"]).read_text().strip().partition(": ")
    with httpx.Client(
        base_url=served.url("http") + "/api/v1", headers={name: value}, timeout=PATIENCE_SECONDS
    ) as client:
        for queue in ("open", "closed", "masked"):
            options = {"masked_fields": ["card"]} if queue == "masked" else {}
            client.post("/queues", json={"name": queue, **options}).raise_for_status()
            body = {"messages": [{"payload": {"card": "1234"}}, {"payload": 2}]}
            client.post(f"/queues/{queue}/messages", json=body).raise_for_status()
        yield client


def ask(client: httpx.Client, query: str, **options: Any) -> httpx.Response:
    return client.post("/history/query", json={"query": query, **options})


def keyed(owner: httpx.Client, *grants: str) -> httpx.Client:
    made = owner.post("/keys", json={"name": f"k{len(grants)}-{hash(grants) % 9999}", "grants": list(grants)}).json()
    return httpx.Client(base_url=owner.base_url, headers={"authorization": f"Bearer {made['key']}"}, timeout=60)


def test_live_messages_are_found_and_rows_are_limited(owner):
    mine = "where queue not like 'penstock.%'"
    found = ask(owner, f"select queue, count(*) as n from messages {mine} group by 1 order by 1")
    assert found.json()["rows"] == [["closed", 2], ["masked", 2], ["open", 2]]

    cut = ask(owner, "select offset from open order by offset", limit=1).json()
    assert (cut["rows"], cut["is_cut"]) == ([[0]], True)
    assert cut["columns"] == [{"name": "offset", "type": "int64"}]


def test_a_caller_queries_what_it_may_read_unmasked(owner):
    with keyed(owner, "read:open", "read:masked") as reader:
        assert ask(reader, "select distinct queue from messages").json()["rows"] == [["open"]]
        refused = ask(reader, "select * from closed")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_query")
        assert "closed" not in refused.json()["error"]["hint"]
    with keyed(owner, "monitor:*") as viewer:
        assert ask(viewer, "select 1").status_code == 403


def test_bad_statements_are_refused_and_the_next_is_answered(owner):
    for statement in ("selec 1", "copy open to '/tmp/x'", "select * from read_text('/etc/passwd')"):
        assert ask(owner, statement).status_code == 400
    assert ask(owner, "select 1 as one").json()["rows"] == [[1]]
    assert ask(owner, "").json()["error"]["code"] == "invalid_field"


def test_a_result_that_is_too_large_is_refused(owner):
    refused = ask(owner, "select repeat('x', 1000000) as x from range(10)")
    assert "over the limit" in refused.json()["error"]["message"]


@pytest.fixture
def directory(tmp_path):
    import penstock

    with penstock.open(tmp_path / "data", durability="os") as ps:
        ps.queue("numbers").push_many([b"x"] * 1000)
    return str(tmp_path / "data")


def test_a_query_that_takes_too_long_ends_with_its_process(directory, monkeypatch):
    async def scenario() -> None:
        queries = HistoryQueries(directory)
        try:
            await queries.run("select 1", [], 10)
            monkeypatch.setattr(history_queries, "QUERY_SECONDS", 0.2)
            with pytest.raises(BadQuery, match="took longer"):
                await queries.run("select count(*) from range(10000000) a, range(10000000) b", ["numbers"], 10)
            monkeypatch.undo()
            assert b"[[1000]]" in bytes(await queries.run("select count(*) from numbers", ["numbers"], 10))
        finally:
            await queries.close()

    asyncio.run(scenario())


def test_a_process_that_dies_is_started_again(directory):
    async def scenario() -> None:
        queries = HistoryQueries(directory)
        try:
            await queries.run("select 1", [], 10)
            assert queries._process is not None
            os.kill(queries._process.pid, signal.SIGKILL)
            await queries._process.wait()
            assert b"[[2]]" in bytes(await queries.run("select 2", [], 10))
            waiting = [asyncio.ensure_future(queries.run("select 3", [], 10)) for _ in range(9)]
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert sum(isinstance(result, RateLimited) for result in results) == 1
            os.kill(queries._process.pid, signal.SIGSTOP)
            asking = asyncio.ensure_future(queries.run("select 4", [], 10))
            process = queries._process
            asyncio.get_running_loop().call_later(0.1, os.kill, process.pid, signal.SIGKILL)
            with pytest.raises(Unavailable):
                await asking
        finally:
            await queries.close()

    asyncio.run(scenario())
