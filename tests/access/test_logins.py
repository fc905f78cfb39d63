"""Logging in over every protocol: wrong credentials are limited by address, all are counted, JWTs and sessions end.

One broker per test, on threads of its own; callers are real ones.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

import penstock
from penstock.access.passwords import hash_password
from penstock.access.tries import ADDRESS_BUDGET
from penstock.broker.broker import Broker
from penstock.clock import SystemClock
from penstock.errors import NotAuthenticated, RateLimited
from penstock.model import AUDIT_QUEUE
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.wire.frames import JsonType, json_frame
from tests.support.http import RawClient
from tests.support.issuer import AUDIENCE, ISSUER, claims, jwk, key_set, signed
from tests.support.tls import TlsBroker

SECONDS = 30
WRONG = "penstock_0123456789ab_" + "x" * 43
PASSWORD = "correct horse battery"
Login = Callable[[TlsBroker, str], str]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[TlsBroker]:
    keys = tmp_path / "keys.json"
    keys.write_bytes(key_set(jwk("RS256")))
    issuer = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_keys": os.fspath(keys)}
    with TlsBroker(tmp_path, auth="on", grpc_port=0, **issuer) as broker:
        yield broker


def broker_of(running: TlsBroker) -> Broker:
    assert running.server.broker is not None
    return running.server.broker


def url(running: TlsBroker, protocol: str) -> str:
    scheme = {"tcp": "penstock", "http": "http"}[protocol]
    return f"{scheme}://127.0.0.1:{running.port(protocol)}"


def by_tcp(running: TlsBroker, token: str) -> str:
    try:
        with penstock.connect(url(running, "tcp"), token=token, timeout=5, rate_limit_seconds=0) as ps:
            ps.queue("mail").push(b"one")
    except (NotAuthenticated, RateLimited) as error:
        return error.code
    return "ok"


def by_json(running: TlsBroker, token: str) -> str:
    with RawClient(running.port("tcp")) as client:
        client.send(json_frame(JsonType.AUTH, json.dumps({"token": token}).encode()))
        answer = client.socket.recv(65_536)
    body = json.loads(answer[answer.index(b"{") :])
    return "ok" if "principal" in body else str(body["error"]["code"])


def by_http(running: TlsBroker, token: str) -> str:
    answer = httpx.get(
        f"{url(running, 'http')}/api/v1/me", headers={"Authorization": f"Bearer {token}"}, timeout=SECONDS
    )
    if answer.status_code == 429:
        assert int(answer.headers["retry-after"]) >= 1
    return "ok" if answer.status_code == 200 else str(answer.json()["error"]["code"])


def stream(running: TlsBroker, **options: Any) -> ClientConnection:
    made: ClientConnection = connect(
        f"ws://127.0.0.1:{running.port('http')}/api/v1/stream", open_timeout=SECONDS, **options
    )
    return made


def by_websocket(running: TlsBroker, token: str) -> str:
    with stream(running) as socket:
        socket.send(json.dumps({"type": "auth", "token": token}))
        said = json.loads(socket.recv(SECONDS))
    return "ok" if said["type"] == "ok" else str(said["error"]["code"])


def by_grpc(running: TlsBroker, token: str) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{running.port('grpc')}") as channel:
        push = channel.unary_unary(
            "/penstock.v1.Queues/Push", lambda message: message.SerializeToString(), pb.PushResponse.FromString
        )
        asked = pb.PushRequest(queue="mail", messages=[pb.NewMessage(payload=b"one")])
        try:
            push(asked, timeout=SECONDS, metadata=(("authorization", f"Bearer {token}"),))
        except grpc.RpcError as error:
            return str(dict(error.trailing_metadata())["penstock-code"])
    return "ok"


EVERY_WAY = pytest.mark.parametrize("login", [by_tcp, by_json, by_http, by_websocket, by_grpc])


def jwt(**fields: Any) -> str:
    return signed("RS256", claims(SystemClock(), penstock=["push:mail", "monitor:*"], **fields))


@EVERY_WAY
def test_after_too_many_wrong_keys_others_are_limited_and_valid_ones_let_in(running, login: Login):
    broker = broker_of(running)
    key = broker.session.access.create_key("robot", ["push:mail"])[1]
    for _ in range(ADDRESS_BUDGET):
        by_http(running, WRONG)

    assert login(running, WRONG) == "rate_limited"
    assert login(running, "a.b.c") == "rate_limited"
    assert login(running, key) == "ok"
    assert login(running, jwt()) == "ok"


@EVERY_WAY
def test_logins_are_counted_by_outcome_and_credential_and_audited(running, login: Login):
    broker = broker_of(running)
    id = (key := broker.session.access.create_key("robot", ["push:mail"])[1]).split("_")[1]

    assert login(running, WRONG) == "not_authenticated"
    assert login(running, jwt(aud="other")) == "not_authenticated"
    assert login(running, key) == "ok"
    assert login(running, jwt()) == "ok"

    counted = broker.meter.logins
    assert counted["failed", "key"] == counted["failed", "jwt"] == 1
    assert counted["ok", "key"] >= 1
    assert counted["ok", "jwt"] >= 1
    broker.audit.flush(everything=True)
    with penstock.connect(url(running, "tcp")) as ps:
        records = [message.json() for message in ps.queue(AUDIT_QUEUE).read()]
    found = {(record["what"], record["who"], record["credential"]) for record in records}
    assert {("login", "robot", f"key:{id}"), ("login", "jwt:ann", "jwt")} <= found
    assert {("failed_login", "", "key"), ("failed_login", "", "jwt")} <= found
    assert [record["arguments"] for record in records if record["credential"] == "key"] == [{"claimed": "0123456789ab"}]


@EVERY_WAY
def test_a_jwt_of_a_namespace_that_is_not_declared_is_refused(running, login: Login):
    token = signed("RS256", claims(SystemClock(), penstock=["push:*"], penstock_namespace="team-a"))

    assert login(running, token) == "not_authenticated"


def test_a_proof_that_is_wrong_counts_too(running):
    broker = broker_of(running)
    for _ in range(ADDRESS_BUDGET):
        with pytest.raises(NotAuthenticated):
            broker.logins.by_proof("nonce", "proof", "127.0.0.1:1", "192.0.2.9", "tcp")

    with pytest.raises(RateLimited):
        broker.logins.by_proof("nonce", "proof", "127.0.0.1:1", "192.0.2.9", "tcp")
    assert broker.meter.logins == {("failed", "owner"): ADDRESS_BUDGET, ("limited", "owner"): 1}


def test_a_connection_ends_with_the_jwt_that_opened_it(running):
    token = jwt(exp=time.time() + 3)
    with stream(running) as socket, penstock.connect(url(running, "tcp"), token=token, timeout=10) as ps:
        socket.send(json.dumps({"type": "auth", "token": token}))
        assert json.loads(socket.recv(SECONDS))["type"] == "ok"
        ps.queue("mail").push(b"one")

        with pytest.raises(ConnectionClosed):
            socket.recv(SECONDS)
        with pytest.raises(NotAuthenticated):
            ps.queue("mail").push(b"two")
    assert by_grpc(running, token) == "not_authenticated"


def test_trouble_with_the_keys_of_jwts_is_a_metric(running):
    source = broker_of(running).meter.key_source
    assert source is not None
    assert source.failures == 0
    Path(source.place).write_text("no keys")  # type: ignore[attr-defined]

    source.tick()  # type: ignore[attr-defined]

    key = broker_of(running).session.access.create_key("prometheus", ["monitor:*"])[1]
    text = httpx.get(
        f"{url(running, 'http')}/metrics", headers={"Authorization": f"Bearer {key}"}, timeout=SECONDS
    ).text
    assert "penstock_jwt_key_failures_total 1" in text
    assert "penstock_jwt_keys_age_seconds " in text
    assert 'penstock_logins_total{outcome="ok",credential="key"} 1' in text


# Sessions and WebSockets.


def signed_in(running: TlsBroker, http: httpx.Client) -> tuple[str, str]:
    """The secret of the tab, and the cookie."""
    broker_of(running).session.access.set_user(
        "ann", grants=["consume:mail", "monitor:*"], password=hash_password(PASSWORD)
    )
    begun = http.post("/api/v1/sessions", json={"user": "ann", "password": PASSWORD})
    return str(begun.json()["tab_secret"]), begun.headers["set-cookie"].partition(";")[0]


def test_a_websocket_signs_in_with_the_cookie_of_the_upgrade_and_the_secret_of_the_tab(running):
    with httpx.Client(base_url=url(running, "http"), timeout=SECONDS) as http:
        tab, cookie = signed_in(running, http)
    headers = {"Cookie": cookie}
    origin = f"http://127.0.0.1:{running.port('http')}"
    ask = json.dumps({"type": "auth", "tab": tab})

    with stream(running, additional_headers=headers, origin=origin) as socket:
        socket.send(json.dumps({"type": "ping"}))
        assert json.loads(socket.recv(SECONDS))["error"]["code"] == "not_authenticated"
        socket.send(json.dumps({"type": "auth", "tab": "x" * 43}))
        assert json.loads(socket.recv(SECONDS))["error"]["code"] == "not_authenticated"
        socket.send(ask)
        assert json.loads(socket.recv(SECONDS))["principal"] == "ann"
    with stream(running, additional_headers=headers) as socket:  # no page is behind it: its cookie does not count
        socket.send(ask)
        assert json.loads(socket.recv(SECONDS))["error"]["code"] == "not_authenticated"
    with stream(running, origin=origin) as socket:
        socket.send(ask)
        assert json.loads(socket.recv(SECONDS))["error"]["code"] == "not_authenticated"


ENDS: dict[str, Callable[[TlsBroker, httpx.Client, str], object]] = {
    "signing out": lambda running, http, tab: http.delete("/api/v1/sessions/current", headers={"X-Penstock-Tab": tab}),
    "a new password": lambda running, http, tab: broker_of(running).session.access.set_user(
        "ann", password=hash_password("another password")
    ),
    "deleting the user": lambda running, http, tab: broker_of(running).session.access.delete_user("ann"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_session_that_ends_cuts_its_websockets_and_waiting_requests(running, end):
    origin = f"http://127.0.0.1:{running.port('http')}"
    with penstock.connect(url(running, "tcp")) as ps:
        ps.create_queue("mail")
    with httpx.Client(base_url=url(running, "http"), timeout=SECONDS) as http:
        tab, cookie = signed_in(running, http)
        with stream(running, additional_headers={"Cookie": cookie}, origin=origin) as socket:
            socket.send(json.dumps({"type": "auth", "tab": tab}))
            assert json.loads(socket.recv(SECONDS))["type"] == "ok"
            with RawClient(running.port("http")) as waiting:
                body = b'{"max":1,"wait_ms":20000}'
                waiting.send(
                    f"POST /api/v1/queues/mail/lease HTTP/1.1\r\nhost: 127.0.0.1:{running.port('http')}\r\n"
                    f"cookie: {cookie}\r\nx-penstock-tab: {tab}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                while not broker_of(running).waiting:
                    http.get("/livez")
                answer = ENDS[end](running, http, tab)
                assert getattr(answer, "status_code", 204) == 204
                with pytest.raises(ConnectionClosed):
                    socket.recv(SECONDS)
                assert waiting.rest() == b""
