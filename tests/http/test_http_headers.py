"""Request ids, origins, rates, and what a broker that stops or fails says."""

from __future__ import annotations

import asyncio
import re

import pytest

from penstock.errors import NotAuthenticated, NotAuthorised
from tests.support.http import request

PUSH = "/api/v1/queues/mail/messages"
PAGE = "https://app.example"
BODY = {"messages": [{"payload": 1}]}


@pytest.mark.parametrize(("method", "path"), [("POST", PUSH), ("GET", "/livez"), ("GET", "/nope"), ("POST", "/livez")])
def test_a_request_id_is_repeated_or_made(server, method, path):
    given = server.http.request(method, path, headers={"X-Request-Id": "abc-123"})
    made = [server.http.request(method, path).headers["x-request-id"] for _ in range(2)]
    replaced = server.http.request(method, path, headers={"X-Request-Id": "x" * 500})

    assert given.headers["x-request-id"] == "abc-123"
    assert made[0] != made[1]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", replaced.headers["x-request-id"])


def test_every_response_says_when_it_was_made(server):
    assert "GMT" in server.http.post(PUSH, json=BODY).headers["date"]


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/livez", "/nope", "/api/v1/queues"])
def test_no_page_may_load_anything_or_be_shown_inside_another(server, path):
    headers = server.http.get(path).headers

    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "nosniff" in server.http.post(PUSH, json=BODY).headers["x-content-type-options"]


# origins


def test_without_settings_no_page_may_read_or_change_anything(server):
    for method, path in (("POST", PUSH), ("POST", "/api/v1/queues"), ("DELETE", "/api/v1/queues/mail")):
        response = server.http.request(method, path, json=BODY, headers={"Origin": PAGE})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "not_authorised")
        assert "access-control-allow-origin" not in response.headers

    read = server.http.get("/api/v1/queues", headers={"Origin": PAGE})
    assert "access-control-allow-origin" not in read.headers
    assert read.status_code == 403
    assert server.http.get("/api/v1/queues").json() == {"queues": []}


def test_a_page_of_the_broker_itself_may(server):
    own = f"http://127.0.0.1:{server.port}"

    assert server.http.post(PUSH, json=BODY, headers={"Origin": own}).status_code == 201


@pytest.mark.parametrize("path", [PUSH, "/api/v1/producers"])
def test_a_page_of_a_configured_origin_may_ask_first_and_then_post(serve, path):
    server = serve(cors_origins=(PAGE,))
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}

    preflight = server.http.options(path, headers=asked)
    done = server.http.post(path, json=BODY, headers={"Origin": PAGE})
    other = server.http.post(path, json=BODY, headers={"Origin": "https://other.example"})

    assert preflight.status_code == 200
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert preflight.headers["access-control-allow-origin"] == done.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in done.headers["access-control-expose-headers"].lower()
    assert "origin" in done.headers["vary"].lower()
    assert other.status_code == 403
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("path", [PUSH, "/api/v1/producers"])
def test_any_page_may_when_the_origin_is_a_star(serve, path):
    server = serve(cors_origins=("*",))

    assert server.http.post(path, json=BODY, headers={"Origin": PAGE}).headers["access-control-allow-origin"] == "*"


# limits and rights


def test_over_the_rate_a_push_is_refused_with_the_time_to_wait(server):
    server.http.post("/api/v1/queues", json={"name": "mail", "push_per_second": 0.5, "push_burst": 1})
    server.push("mail", 1)

    response = server.http.post(PUSH, json=BODY)

    assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limited")
    assert int(response.headers["retry-after"]) >= 1
    assert 0 < response.json()["error"]["retry_after_ms"] <= 2_000


def test_a_full_queue_refuses(server):
    server.http.post("/api/v1/queues", json={"name": "mail", "max_length": 1})
    server.push("mail", 1)

    response = server.http.post(PUSH, json=BODY)

    assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize(("error", "status"), [(NotAuthorised("no"), 403), (NotAuthenticated("who?"), 401)])
def test_every_kind_of_route_asks_whether_one_may(server, error, status):
    server.push("mail", 1)
    receipt = server.lease("mail")[0]["receipt"]

    def refuse(*_: object) -> None:
        raise error

    server.broker.authorise = refuse

    statuses = [
        server.http.post(PUSH, json=BODY).status_code,
        server.http.post("/api/v1/queues/mail/lease").status_code,
        server.http.post("/api/v1/ack", json={"receipts": [receipt]}).status_code,
        server.http.post("/api/v1/extend", json={"receipts": [receipt], "lease_ms": 1000}).status_code,
        server.http.get("/api/v1/queues/mail/stats").status_code,
        server.http.get("/api/v1/health").status_code,
        server.http.get("/metrics").status_code,
    ]

    assert statuses == [status] * 7
    assert server.http.get("/livez").status_code == 200


# the end


def test_a_broker_that_stops_answers_those_who_wait_and_lets_them_go(server):
    server.http.post("/api/v1/queues", json={"name": "mail"})
    with server.connect() as waiting:
        waiting.send(request("POST", "/api/v1/queues/mail/lease", b'{"wait_ms":20000}'))
        server.until(lambda: server.broker.waiting)

        async def stop() -> None:
            draining = asyncio.ensure_future(server.server.drain(10))
            await asyncio.sleep(0)
            await server.broker.drain()
            await draining

        server.run(stop())

        assert (answer := waiting.answer()).json()["messages"] == []
        assert answer.headers["connection"] == "close"
        assert waiting.rest() == b""
    assert server.server.connections == 0


def test_a_broker_that_is_stopping_says_so_and_is_not_ready(server):
    server.push("mail", 1)
    receipt = server.lease("mail")[0]["receipt"]
    server.run(server.broker.drain())

    for path, body in ((PUSH, BODY), ("/api/v1/queues/mail/pause", {})):
        response = server.http.post(path, json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
    assert server.http.get("/api/v1/queues").status_code == 200
    assert server.http.get("/readyz").status_code == 503
    assert server.http.get("/livez").status_code == 200
    assert server.http.post("/api/v1/ack", json={"receipts": [receipt]}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "broken"), [("POST", PUSH, "push_one"), ("GET", "/api/v1/queues", "execute")]
)
def test_a_fault_of_the_broker_is_an_error_without_a_traceback(server, monkeypatch, caplog, method, path, broken):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(server.broker, broken, fail)

    response = server.http.request(method, path, json=BODY, headers={"x-request-id": "me"})

    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in response.text
    assert [record.request_id for record in caplog.records if hasattr(record, "request_id")] == ["me"]
