"""What `penstock serve` says to bad input about its store: the code, the reason and the remedy, each as it is printed.

What can be refused only by a server of its own is in `test_pooler`, `test_standby` and `test_stopping`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from penstock.cli import main
from penstock.cli.exits import SERVER_ERROR, USER_ERROR
from penstock.postgres import schema
from penstock.postgres.store import PostgresStore
from tests.postgres.test_nodes import until
from tests.support.nodes import NodeThread
from tests.support.postgres import PostgresServer

SETTINGS_HINT = "docs/configuration.md lists every setting"
NO_PASSWORD = "the password is wrong: set the right one in PENSTOCK_STORE, PGPASSFILE or the password file"
NO_LOGIN = "the role may not connect: see pg_hba.conf, and the role's LOGIN"


class Refusal(NamedTuple):
    """An error as it is printed."""

    exit_code: int
    code: str
    message: str
    hint: str


Serve = Callable[..., Refusal]


@pytest.fixture
def serve(tmp_path, monkeypatch, capsys) -> Serve:
    """Start a node that is refused."""

    def refused(url: str | None, *flags: str) -> Refusal:
        monkeypatch.delenv("PENSTOCK_STORE", raising=False)
        if url is not None:
            monkeypatch.setenv("PENSTOCK_STORE", url)
        ports = ["--tcp-port", "0", "--http-port", "0", "--grpc-port", "off", "--auth", "off"]
        exit_code = main(["serve", "--json", "--node", "a", "--data", str(tmp_path / "a"), *ports, *flags])
        error = json.loads(capsys.readouterr().out)["error"]
        return Refusal(exit_code, error["code"], error["message"], error["hint"])

    return refused


@pytest.fixture
def guarded(postgres: PostgresServer) -> Iterator[None]:
    """Roles that must prove who they are, may not connect, or have no rights."""
    hba = postgres.data / "pg_hba.conf"
    before = hba.read_text()
    rules = "host all guarded 127.0.0.1/32 scram-sha-256\nhost all barred 127.0.0.1/32 reject\n"
    hba.write_text(rules + before)
    for statement in (
        "SELECT pg_reload_conf()",
        "CREATE ROLE guarded LOGIN PASSWORD 'right'",
        "CREATE ROLE barred LOGIN",
        "CREATE ROLE nobody",
        "CREATE ROLE poor LOGIN",
    ):
        postgres.sql(statement)
    yield
    hba.write_text(before)
    postgres.sql("SELECT pg_reload_conf()")
    for role in ("guarded", "barred", "nobody", "poor"):
        postgres.sql(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("role", "says", "hint"),
    [
        ("guarded:wr0ng", 'password authentication failed for user "guarded"', NO_PASSWORD),
        ("guarded", "no password supplied", NO_PASSWORD),
        ("barred", "pg_hba.conf rejects connection", NO_LOGIN),
        ("nobody", 'role "nobody" is not permitted to log in', NO_LOGIN),
    ],
)
def test_a_role_that_may_not_connect(serve, guarded, url, role, says, hint):
    refusal = serve(url.replace("penstock@", f"{role}@"))
    assert (refusal.exit_code, refusal.code, refusal.hint) == (SERVER_ERROR, "store_refused", hint)
    assert says in refusal.message
    assert "wr0ng" not in str(refusal)


def test_a_role_without_rights(serve, guarded, url):
    refusal = serve(url.replace("penstock@", "poor@"))
    assert (refusal.exit_code, refusal.code) == (SERVER_ERROR, "storage")
    assert "permission denied for database" in refusal.message
    assert refusal.hint == "run CREATE SCHEMA penstock AUTHORIZATION role, or `penstock store init` as its owner"


def test_a_database_that_is_not_there(serve, postgres):
    refusal = serve(postgres.url("nowhere"))
    assert (refusal.exit_code, refusal.code) == (USER_ERROR, "not_a_data_directory")
    assert 'database "nowhere" does not exist' in refusal.message
    assert refusal.hint == "create the database first: CREATE DATABASE …"


def test_a_server_that_is_not_there(serve):
    refusal = serve("postgresql://penstock@127.0.0.1:1/db")
    assert (refusal.exit_code, refusal.code) == (SERVER_ERROR, "store_refused")
    assert "Connection refused" in refusal.message
    assert refusal.hint == "check that PostgreSQL is running and the address is right"


@pytest.mark.parametrize(
    "text", ["mysql://u:s3cret@h/db", "redis://:s3cret@h", "penstock://h:7710", "http://h/", "nothing"]
)
def test_a_url_of_another_product(serve, text):
    refusal = serve(text)
    assert (refusal.exit_code, refusal.code, refusal.hint) == (USER_ERROR, "bad_settings", SETTINGS_HINT)
    assert refusal.message.startswith(
        "PENSTOCK_STORE: store must be a URL such as 'postgresql://penstock@db1,db2/penstock', not "
    )
    assert "\n" not in refusal.message  # nothing else is wrong
    assert "s3cret" not in refusal.message


def test_a_password_in_the_arguments(serve):
    refusal = serve(None, "--store", "postgresql://penstock:s3cret@h/db")
    assert (refusal.exit_code, refusal.code, refusal.hint) == (USER_ERROR, "bad_settings", SETTINGS_HINT)
    assert refusal.message == (
        "--store: a password in the arguments of a process is visible to every user of this machine: use "
        "PENSTOCK_STORE, store_password_file or PGPASSFILE"
    )


def prepare(url: str, deployment: str = "") -> None:
    store = PostgresStore(url, deployment=deployment)
    store.prepare()
    store.links.close()


def test_a_store_of_another_deployment(serve, url):
    prepare(url, "production")
    refusal = serve(url, "--deployment", "staging")
    assert refusal == (
        *(USER_ERROR, "bad_settings"),
        "store: it belongs to the deployment 'production', but this node to 'staging'",
        "use another database, or set deployment to the same name",
    )


def test_a_schema_of_a_newer_version(serve, url, postgres):
    prepare(url)
    newer = schema.VERSION + 1
    postgres.sql(f"UPDATE penstock.store SET version = {newer}", url.rpartition("/")[2])
    refusal = serve(url)
    assert refusal == (
        *(SERVER_ERROR, "storage"),
        f"the store has version {newer}, but this Penstock supports up to {schema.VERSION}",
        "upgrade Penstock on this node",
    )


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_server_that_may_lose_what_it_confirms(serve, setting):
    off: dict[str, Any] = {setting: "off"}
    server = PostgresServer(**off)
    try:
        refusal = serve(server.new_database())
    finally:
        server.close()
    assert refusal == (
        *(SERVER_ERROR, "store_refused"),
        f"{setting} is off: commits that PostgreSQL confirms may be lost",
        f"set {setting} = on in postgresql.conf",
    )


def test_replicated_without_a_synchronous_standby(serve, url):
    refusal = serve(url, "--replicated")
    assert refusal == (
        *(SERVER_ERROR, "store_refused"),
        "replicated: no standby is synchronous, so a commit would be on one machine only",
        "set synchronous_standby_names, as docs/postgresql.md shows, or start without replicated",
    )


def test_too_many_connections(serve):
    server = PostgresServer(max_connections="5", superuser_reserved_connections="3")
    try:
        url = server.new_database()
        server.sql("CREATE ROLE plain LOGIN")
        server.sql("ALTER ROLE plain CONNECTION LIMIT 0")
        refusal = serve(url.replace("penstock@", "plain@"))
    finally:
        server.close()
    assert (refusal.exit_code, refusal.code) == (SERVER_ERROR, "store_refused")
    assert refusal.hint == "raise max_connections: a node needs five connections"


def test_while_the_server_is_away_http_says_when_to_try_again_and_the_node_goes_on_by_itself(tmp_path):
    server = PostgresServer()
    node = NodeThread(server.new_database(), "a", tmp_path)
    address = f"{node.url('http')}/api/v1/queues/q/messages"

    def push() -> httpx.Response | None:
        try:
            return httpx.post(address, json={"messages": [{"payload": "x"}]}, timeout=3)
        except httpx.TimeoutException:
            return None  # one that was handed to the store waits for its answer

    try:
        until(lambda: (answer := push()) is not None and answer.is_success)
        server.kill()
        answers: list[httpx.Response] = []

        def is_refused() -> bool:
            answer = push()
            if answer is not None and answer.status_code == 503:
                answers.append(answer)
            return bool(answers)

        until(is_refused)
        error = answers[0].json()["error"]
        assert error["code"] == "unavailable"
        assert "does not answer" in error["message"]
        assert error["hint"] == "PostgreSQL is unavailable; try again in a moment"
        assert int(answers[0].headers["retry-after"]) >= 1
        assert error["retry_after_ms"] > 0

        server.start()
        until(lambda: (answer := push()) is not None and answer.is_success)
    finally:
        node.close()
        server.close()
