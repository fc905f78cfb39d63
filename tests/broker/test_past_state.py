"""GET /history/state: depth, leases and lag at an instant, against what was seen at that instant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from penstock import connect
from tests.support.broker_process import PATIENCE_SECONDS, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("past"), "--http-port", "0", "--grpc-port", "off") as broker:
        yield broker


@pytest.fixture
def web(served):
    with httpx.Client(base_url=served.url("http") + "/api/v1", timeout=PATIENCE_SECONDS) as client:
        yield client


def state(web: httpx.Client, at: datetime, queue: str) -> dict[str, Any]:
    reply = web.get("/history/state", params={"at": at.isoformat(), "queue": queue})
    reply.raise_for_status()
    queues: list[dict[str, Any]] = reply.json()["queues"]
    return queues[0] if queues else {}


def numbers(group: dict[str, Any]) -> tuple[int, int, int]:
    return group["depth"], group["leased"], group["lag"]


def test_the_past_is_as_it_was(served, web):
    seen: list[tuple[datetime, dict[str, tuple[int, int, int]]]] = []

    with connect(served.url("tcp")) as ps:
        queue = ps.create_queue("orders", partitions=2)
        queue.create_group("audit")

        def look() -> None:
            groups = queue.stats().groups
            seen.append((datetime.now(UTC), {name: (g.lag - g.leased, g.leased, g.lag) for name, g in groups.items()}))

        look()
        queue.push_many([b"x"] * 10)
        look()
        held = queue.lease(4)
        look()
        first, *rest = held
        first.ack()
        rest[0].reject("bad")
        look()
        ps.seal()
        queue.push_many([b"y"] * 5)
        look()
        for delivery in rest[1:]:
            delivery.release()
        look()
        queue.dlq.redrive()
        look()
        queue.lease(3, group="audit").ack()
        look()
        queue.purge()
        look()
        queue.push_many([b"z"] * 4)
        queue.lease(2)  # still held
        look()

    for at, groups in seen:
        found = state(web, at, "orders")
        assert {group["group"]: numbers(group) for group in found["groups"]} == groups, at
        assert (found["is_cut"], found["begins_at"]) == (False, None)
        assert found["lag"] == max(lag for _, _, lag in groups.values())


def test_before_a_queue_was_created_there_is_none(served, web):
    with connect(served.url("tcp")) as ps:
        before = datetime.now(UTC)
        ps.create_queue("later").push(b"x")

    assert state(web, before - timedelta(seconds=1), "later") == {}
    everything = web.get("/history/state", params={"at": datetime.now(UTC).isoformat()}).json()
    assert "later" in {queue["queue"] for queue in everything["queues"]}


def test_what_retention_has_removed_is_said_to_be_cut(served, web):
    with connect(served.url("tcp")) as ps:
        queue = ps.create_queue("short", retention_seconds=1e-3)
        queue.push_many([b"x"] * 3)
        between = datetime.now(UTC)
        queue.lease(3).ack()
        ps.seal()
        ps.compact()
        queue.push(b"y")
        assert queue.groups()["default"][0].start_offset == 3

    found = state(web, between, "short")

    assert (found["is_cut"], found["depth"], found["lag"], found["groups"]) == (True, None, None, [])
    assert datetime.fromisoformat(found["begins_at"]) > between


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"at": "2999-01-01T00:00:00Z"}, 400, "invalid_field"),
        ({"at": "yesterday"}, 400, "invalid_field"),
        ({}, 400, "invalid_field"),
        ({"at": "2020-01-01T00:00:00Z", "queue": "nothing"}, 404, "queue_not_found"),
        ({"at": "2020-01-01T00:00:00Z", "queue": "not a name"}, 400, "invalid_name"),
    ],
)
def test_bad_questions_are_refused(web, query, status, code):
    reply = web.get("/history/state", params=query)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


def test_reports_are_served_in_a_sandbox(web):
    body = {"status": "done", "report": "<script>alert(1)</script>"}
    web.put("/pipelines/rollup/runs/r1", json=body).raise_for_status()

    reply = web.get("/pipelines/rollup/runs/r1/report")

    assert reply.text == "<script>alert(1)</script>"
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'")
    assert "script" not in policy
    assert web.get("/pipelines/rollup/runs/other/report").json()["error"]["code"] == "run_not_found"
