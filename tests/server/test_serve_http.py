"""`penstock serve` over HTTP: probes, metrics, logs, the profile, and draining with requests under way."""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

import penstock
from penstock.wire.frames import Type
from penstock.wire.requests import encode_push_one
from tests.support.broker_process import PATIENCE_SECONDS, Caller, Served

HTTP = ("--http-port", "0", "--grpc-port", "off")


def ask(served: Served, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(served.url("http") + path, data, {"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


def push(served: Served, payload: str, queue: str = "mail", **headers: str) -> int:
    return ask(served, f"/api/v1/queues/{queue}/messages", {"messages": [{"payload": payload}]}, **headers)[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One that nobody stops."""
    with Served(tmp_path_factory.mktemp("served"), *HTTP, "--profile") as served:
        yield served


@pytest.fixture
def own(tmp_path):
    with Served(tmp_path, *HTTP, "--log-level", "debug", "--drain-seconds", "30") as served:
        yield served


def test_probes_and_health_say_that_it_is_well(served):
    assert ask(served, "/livez")[0] == 200
    assert json.loads(ask(served, "/readyz")[2])["status"] == "ok"
    health = json.loads(ask(served, "/api/v1/health")[2])
    assert health["status"] == "ok"
    assert health["disk_free_bytes"] > 0


def test_metrics_are_served(served):
    push(served, "a")
    status, headers, text = ask(served, "/metrics")

    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    assert 'penstock_pushed_messages_total{queue="mail",protocol="http"} 1\n' in text


def test_a_profile_is_taken_only_where_it_is_allowed(served, tmp_path):
    status, _, text = ask(served, "/debug/profile?seconds=0.1")
    assert status == 200
    assert "MainThread;" in text
    assert ask(served, "/debug/profile?seconds=1000")[0] == 400

    (tmp_path / "other").mkdir()
    with Served(tmp_path / "other", *HTTP) as other:
        assert ask(other, "/debug/profile?seconds=0.1")[0] == 404
        assert other.stop() == 0


def test_every_request_is_a_debug_line_with_its_id_and_logs_are_json(own):
    assert push(own, "a secret payload", **{"x-request-id": "mine", "authorization": "Bearer t0psecret"}) == 201
    assert ask(own, "/livez", **{"x-request-id": "yours"})[0] == 200
    assert own.stop() == 0

    requests = {line["request_id"]: line for line in own.logs() if line["event"] == "request"}
    assert (requests["mine"]["level"], requests["mine"]["status"]) == ("debug", 201)
    assert requests["yours"]["path"] == "/livez"
    text = own.log_path.read_text()
    assert "secret payload" not in text
    assert "t0psecret" not in text


def test_a_trace_goes_from_the_producer_to_the_consumer(served):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    push(served, "a", "traced", traceparent=trace)
    push(served, "b", "traced", traceparent="nonsense")

    found = json.loads(ask(served, "/api/v1/queues/traced/lease", {"max": 2})[2])["messages"]

    assert [message.get("trace") for message in found] == [trace, None]


def test_a_long_poll_is_answered_and_pushes_under_way_are_confirmed_when_it_drains(own):
    assert push(own, "a") == 201
    lease = json.loads(ask(own, "/api/v1/queues/mail/lease", {"max": 1})[2])
    receipt = lease["messages"][0]["receipt"]
    assert ask(own, "/api/v1/ack", {"receipts": [receipt]})[0] == 200
    answers: dict[str, tuple[int, dict[str, str], str]] = {}
    confirmed: list[int] = []

    def poll() -> None:
        answers["poll"] = ask(own, "/api/v1/queues/mail/lease", {"max": 1, "wait_ms": 60_000})

    def keep_pushing() -> None:
        with Caller(own.port()) as caller:
            while True:
                try:
                    kind, _ = caller.answer(caller.send(Type.PUSH_ONE, encode_push_one(b"other", 0, b"x")))
                except ConnectionError:
                    return
                if kind == Type.PLACED:
                    confirmed.append(1)
                if len(confirmed) == 20:
                    started.set()

    started = threading.Event()
    threads = [threading.Thread(target=poll), threading.Thread(target=keep_pushing)]
    for thread in threads:
        thread.start()
    started.wait()
    while "penstock_waiting_leases 1\n" not in ask(own, "/metrics")[2]:
        pass
    own.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)

    assert own.ended() == 0
    assert answers["poll"][0] == 200
    assert json.loads(answers["poll"][2])["messages"] == []
    with penstock.open(own.log_path.parent / "data") as ps:
        assert ps.queue("other").stats().groups["default"].messages >= len(confirmed)


def test_who_holds_messages_over_http_may_settle_them_on_a_new_connection_while_it_drains(own):
    assert push(own, "a") == 201
    receipt = json.loads(ask(own, "/api/v1/queues/mail/lease", {"max": 1})[2])["messages"][0]["receipt"]
    with Caller(own.port()):  # somebody is there, so it is worth waiting
        own.process.send_signal(signal.SIGTERM)
        while ask(own, "/readyz")[0] == 200:
            pass
        assert push(own, "b") == 503
        assert ask(own, "/api/v1/ack", {"receipts": [receipt]})[0] == 200

    assert own.ended() == 0
    with penstock.open(own.log_path.parent / "data") as ps:
        assert ps.queue("mail").stats().groups["default"].acked == 1


def test_no_more_connections_than_allowed(tmp_path):
    with Served(tmp_path, "--http-port", "off", "--grpc-port", "off", "--connections-max", "2") as served:
        with Caller(served.port()) as one, Caller(served.port()) as two:
            with pytest.raises(ConnectionError):
                Caller(served.port())
            assert [one.push("mail", b"a"), two.push("mail", b"b")] == [0, 1]
        assert served.stop() == 0
