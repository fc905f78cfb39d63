"""Who is let in over HTTP by a JWT or as a browser: signing in, cookies, secrets of tabs, signing out."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from penstock.access.passwords import hash_password
from penstock.access.sign_in import SignIn
from penstock.access.store import AccessStore
from penstock.broker.access import Client
from penstock.broker.audit import Audit
from penstock.clock import SystemClock
from penstock.config import Settings
from penstock.errors import BadSettings
from penstock.server.serve import Server
from tests.support.broker_loop import on_uvloop, until
from tests.support.issuer import AUDIENCE, ISSUER, claims, jwk, key_set, signed

PASSWORD = "correct horse battery"
PUSH = "/api/v1/queues/mail/messages"
ONE = {"messages": [{"payload": 1}]}


class Running(NamedTuple):
    http: httpx.AsyncClient
    store: AccessStore
    sign_in: SignIn
    port: int


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[Running]:
    server = Server(Settings(data=str(path / "data"), tcp_port="off", grpc_port="off", http_port=0, **options))
    started = await server.start()
    try:
        assert server._session is not None
        assert server._identity is not None
        store = server._session.access
        store.set_user("ann", grants=["push:mail", "monitor:*"], password=hash_password(PASSWORD))
        port = started.addresses[0].port
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            yield Running(http, store, server._identity.sign_in, port)
    finally:
        await server.stop(drain=False)


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"] if response.status_code >= 400 else ""


async def assert_signed_out(http: httpx.AsyncClient, tab: dict[str, str]) -> None:
    """The connection is cut too, so another one asks."""
    async with httpx.AsyncClient(base_url=http.base_url, cookies=http.cookies, timeout=60) as other:
        assert code_of(await other.get("/api/v1/me", headers=tab)) == (401, "not_authenticated")


def with_keys(path: Path) -> dict[str, str]:
    keys = path / "keys.json"
    keys.write_bytes(key_set(jwk("RS256"), jwk("ES256")))
    return {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_keys": os.fspath(keys)}


# JWTs.


@on_uvloop
async def test_a_jwt_lets_in_whom_the_issuer_vouches_for(tmp_path):
    async with running(tmp_path, **with_keys(tmp_path)) as (http, _, _, _):
        token = signed("RS256", claims(SystemClock(), penstock=["push:mail"]))
        headers = {"authorization": f"Bearer {token}"}

        me = await http.get("/api/v1/me", headers=headers)
        assert me.json() == {"name": "jwt:ann", "namespace": "", "grants": ["push:mail"]}
        assert (await http.post(PUSH, json=ONE, headers=headers)).status_code == 201
        other = await http.post("/api/v1/queues/other/messages", json=ONE, headers=headers)
        assert code_of(other) == (403, "not_authorised")


@on_uvloop
async def test_a_jwt_that_is_not_valid_is_answered_with_the_reason(tmp_path):
    async with running(tmp_path, **with_keys(tmp_path)) as (http, _, _, _):
        bad: list[tuple[dict[str, Any], str]] = [
            ({"aud": "other"}, "its aud"), ({"exp": 1}, "expired"), ({"exp": None}, "no exp")
        ]  # fmt: skip
        for fields, problem in bad:
            token = signed("RS256", claims(SystemClock(), **fields))
            refused = await http.post(PUSH, json=ONE, headers={"authorization": f"Bearer {token}"})
            assert code_of(refused) == (401, "not_authenticated")
            assert problem in refused.json()["error"]["message"]
            assert token[-20:] not in refused.text


@on_uvloop
async def test_roles_in_jwts_are_those_of_the_store_as_they_are_now(tmp_path):
    async with running(tmp_path, **with_keys(tmp_path)) as (http, store, _, _):
        store.set_role("clerk", ["push:mail"])
        token = signed("RS256", claims(SystemClock(), penstock="clerk"))
        headers = {"authorization": f"Bearer {token}"}
        assert (await http.get("/api/v1/me", headers=headers)).json()["grants"] == ["push:mail"]

        store.set_role("clerk", ["push:other"])

        assert (await http.get("/api/v1/me", headers=headers)).json()["grants"] == ["push:other"]


@on_uvloop
async def test_a_broker_whose_key_file_is_of_no_use_does_not_start(tmp_path):
    options = with_keys(tmp_path)
    (tmp_path / "keys.json").write_text("-----BEGIN PUBLIC KEY-----")

    with pytest.raises(BadSettings, match="not a JSON Web Key Set"):
        async with running(tmp_path, **options):
            pass


# Browsers.


@on_uvloop
async def test_a_user_signs_in_works_and_signs_out(tmp_path):
    async with running(tmp_path) as (http, _, _, port):
        assert code_of(await http.get("/api/v1/me")) == (401, "not_authenticated")

        begun = await http.post("/api/v1/sessions", json={"user": "ann", "password": PASSWORD})

        assert begun.status_code == 201
        assert begun.json()["name"] == "ann"
        cookie = begun.headers["set-cookie"]
        assert cookie.startswith(f"penstock_{port}=")
        assert cookie.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict")
        tab = {begun.json()["tab_header"]: begun.json()["tab_secret"]}

        assert (await http.get("/api/v1/me", headers=tab)).json()["name"] == "ann"
        assert (await http.post(PUSH, json=ONE, headers=tab)).status_code == 201
        refused = await http.post(PUSH, json=ONE)
        assert code_of(refused) == (401, "not_authenticated")
        assert refused.json()["error"]["message"] == "this tab is not signed in"
        form = await http.post(PUSH, content=b'{"messages":[]}', headers={**tab, "content-type": "text/plain"})
        assert code_of(form) == (400, "bad_request")

        ended = await http.delete("/api/v1/sessions/current", headers=tab)
        assert ended.status_code == 204
        assert "Max-Age=0" in ended.headers["set-cookie"]
        assert code_of(await http.get("/api/v1/me", headers=tab)) == (401, "not_authenticated")


@on_uvloop
async def test_a_one_time_link_signs_in_once(tmp_path):
    async with running(tmp_path) as (http, _, sign_in, _):
        principal = sign_in._users.principal_of("ann")
        assert principal is not None
        code = sign_in.sessions.new_code(principal)

        assert (await http.post("/api/v1/sessions", json={"code": code})).json()["name"] == "ann"
        assert code_of(await http.post("/api/v1/sessions", json={"code": code})) == (401, "not_authenticated")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"user": "ann", "password": "wrong password"}, 401, "not_authenticated"),
        ({"user": "bob", "password": PASSWORD}, 401, "not_authenticated"),
        ({"code": "x"}, 401, "not_authenticated"),
        ({}, 400, "invalid_field"),
        ({"user": "ann", "password": PASSWORD, "code": "x"}, 400, "invalid_field"),
        ({"user": "a" * 200, "password": PASSWORD}, 400, "invalid_field"),
        ({"user": 7}, 400, "invalid_field"),
        ({"user": "ann", "password": "x" * 20_000}, 413, "too_large"),
    ],
)
def test_who_cannot_sign_in_gets_an_error_and_no_cookie(tmp_path, body, status, code):
    @on_uvloop
    async def scenario() -> None:
        async with running(tmp_path) as (http, _, _, _):
            refused = await http.post("/api/v1/sessions", json=body)
            assert code_of(refused) == (status, code)
            assert "set-cookie" not in refused.headers
            assert PASSWORD not in refused.text

    scenario()


@on_uvloop
async def test_wrong_passwords_are_slowed_down(tmp_path):
    async with running(tmp_path) as (http, _, _, _):
        for _ in range(5):
            await http.post("/api/v1/sessions", json={"user": "ann", "password": "wrong password"})

        refused = await http.post("/api/v1/sessions", json={"user": "ann", "password": PASSWORD})

        assert code_of(refused) == (429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 10


@on_uvloop
async def test_a_session_that_is_over_keeps_nobody_from_signing_in_again(tmp_path):
    async with running(tmp_path) as (http, _, sign_in, _):
        await http.post("/api/v1/sessions", json={"user": "ann", "password": PASSWORD})
        sign_in.password_changed("ann")

        again = await http.post("/api/v1/sessions", json={"user": "ann", "password": PASSWORD})

        assert again.status_code == 201


@on_uvloop
async def test_a_new_password_signs_out_everywhere(tmp_path):
    async with running(tmp_path) as (http, store, sign_in, _):
        begun = await http.post("/api/v1/sessions", json={"user": "ann", "password": PASSWORD})
        tab = {begun.json()["tab_header"]: begun.json()["tab_secret"]}
        store.set_user("ann", grants=["push:other"])
        assert (await http.get("/api/v1/me", headers=tab)).json()["grants"] == ["push:other"]

        store.set_user("ann", password=hash_password("another password"))

        await until(lambda: len(sign_in.sessions) == 0)
        await assert_signed_out(http, tab)


@on_uvloop
async def test_signing_in_is_audited_and_what_is_no_name_is_not_recorded(tmp_path, monkeypatch):
    failures: list[tuple[Any, ...]] = []
    logins: list[Client] = []
    monkeypatch.setattr(
        Audit,
        "failed_login",
        lambda self, address, protocol, *, credential, claimed: failures.append((address, protocol, claimed)),
    )
    monkeypatch.setattr(Audit, "login", lambda self, client: logins.append(client))
    async with running(tmp_path) as (http, _, _, _):
        for body in ({"user": "ann", "password": "wrong password"}, {"user": PASSWORD, "password": "x"}, {"code": "x"}):
            await http.post("/api/v1/sessions", json=body)
        await http.post("/api/v1/sessions", json={"user": "ann", "password": PASSWORD})

    assert failures == [("127.0.0.1", "http", "ann"), ("127.0.0.1", "http", ""), ("127.0.0.1", "http", "")]
    assert [(client.principal.name, client.credential) for client in logins] == [("ann", "user")]


@on_uvloop
async def test_a_user_who_is_deleted_is_signed_out(tmp_path):
    async with running(tmp_path) as (http, store, sign_in, _):
        begun = await http.post("/api/v1/sessions", json={"user": "ann", "password": PASSWORD})
        tab = {begun.json()["tab_header"]: begun.json()["tab_secret"]}
        store.delete_user("ann")

        await until(lambda: len(sign_in.sessions) == 0)

        await assert_signed_out(http, tab)


@on_uvloop
async def test_without_access_control_everybody_is_the_owner_and_nobody_signs_in(tmp_path):
    server = Server(Settings(data=str(tmp_path / "data"), tcp_port="off", grpc_port="off", http_port=0, auth="off"))
    started = await server.start()
    try:
        async with httpx.AsyncClient(base_url=started.addresses[0].url, timeout=60) as http:
            assert (await http.get("/api/v1/me")).json()["name"] == "local"
            assert code_of(await http.post("/api/v1/sessions", json={"code": "x"})) == (400, "bad_request")
    finally:
        await server.stop(drain=False)
