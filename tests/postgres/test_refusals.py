"""What a start is refused for, each with the reason and the remedy; nothing is changed by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import penstock
from penstock.cli import main
from penstock.config import load
from penstock.errors import (
    BadSettings,
    DirectoryInUse,
    InvalidField,
    NotADataDirectory,
    PenstockError,
    StorageError,
    StoreRefused,
)
from penstock.postgres import schema
from penstock.postgres.checks import check_server
from penstock.postgres.link import SETTINGS
from penstock.postgres.store import PostgresStore
from penstock.postgres.target import parse_store_url, read_password
from tests.support.postgres import PostgresServer


def run_sql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def prepare(url: str, **options: Any) -> None:
    store = PostgresStore(url, **options)
    with closing(store.links):
        store.prepare()


def test_a_handle_on_a_store_has_the_methods_of_any_other(url):
    with penstock.open(url) as ps:
        ps.queue("orders").push(b"1")
        assert ps.queue("orders").lease()[0].payload == b"1"
    with penstock.open(url) as ps:
        assert ps.queue("orders").stats().messages == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mysql://h/db", "is a URL, not a directory"),
        ("redis://h", "is a URL, not a directory"),
        ("postgresql://h/db?nonsense=1", "not a PostgreSQL URL"),
        ("postgresql://h:port/db", "not a PostgreSQL URL|invalid integer|failed to resolve"),
    ],
)
def test_a_url_of_something_else_is_refused(text, says):
    with pytest.raises((InvalidField, StoreRefused), match=says):
        penstock.open(text)


def test_a_wrong_password_is_refused_and_never_shown(postgres, url):
    run_sql(url, "CREATE ROLE guarded LOGIN PASSWORD 'right'")
    hba = postgres.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
    run_sql(url, "SELECT pg_reload_conf()")
    try:
        wrong = url.replace("penstock@", "guarded:wr0ng@")
        with pytest.raises(StoreRefused, match="password authentication failed") as refused:
            penstock.open(wrong)
        assert "wr0ng" not in str(refused.value)
        assert "PGPASSFILE" in refused.value.hint
    finally:
        hba.write_text(before)
        run_sql(url, "SELECT pg_reload_conf()", "DROP ROLE guarded")


def test_a_database_that_is_not_there_and_a_server_that_is_not_there_are_refused(postgres, url):
    with pytest.raises(NotADataDirectory, match="does not exist"):
        penstock.open(postgres.url("nowhere"))
    with pytest.raises(StoreRefused, match="refused"):
        penstock.open("postgresql://penstock@127.0.0.1:1/db")


def test_a_role_without_rights_is_told_what_it_needs(postgres, url):
    run_sql(url, "CREATE ROLE poor LOGIN")
    try:
        with pytest.raises(StorageError, match="permission denied") as refused:
            penstock.open(url.replace("penstock@", "poor@"))
        assert "penstock store init" in refused.value.hint
    finally:
        run_sql(url, "DROP ROLE poor")


def test_a_store_that_somebody_has_open_is_refused(url):
    with penstock.open(url) as ps:
        ps.queue("q").push(b"1")
        with pytest.raises(DirectoryInUse, match="in use by the node 'embedded-"):
            penstock.open(url)
        assert ps.queue("q").stats().messages == 1


def test_a_schema_of_a_newer_version_and_of_another_product_are_refused(url, postgres):
    penstock.open(url).close()
    run_sql(url, f"UPDATE penstock.store SET version = {schema.VERSION + 1}")
    with pytest.raises(
        StorageError, match=f"version {schema.VERSION + 1}.* supports up to {schema.VERSION}"
    ) as refused:
        penstock.open(url)
    assert "upgrade" in refused.value.hint
    other = postgres.new_database()
    run_sql(other, "CREATE SCHEMA penstock", "CREATE TABLE penstock.orders (id int)")
    with pytest.raises(NotADataDirectory, match="holds 'orders'"):
        penstock.open(other)


def test_a_store_of_another_deployment_is_refused(url):
    prepare(url, deployment="production")
    with pytest.raises(BadSettings, match="belongs to the deployment 'production', but this node to 'staging'"):
        prepare(url, deployment="staging")


@pytest.fixture
def careless() -> Iterator[PostgresServer]:
    server = PostgresServer(fsync="off", full_page_writes="off", synchronous_commit="off")
    yield server
    server.close()


def test_a_server_that_may_lose_what_it_confirms_is_refused(careless):
    with pytest.raises(StoreRefused, match="fsync, full_page_writes, synchronous_commit are off") as refused:
        penstock.open(careless.new_database())
    assert "fsync = on" in refused.value.hint


def test_replicated_is_refused_without_a_synchronous_standby_and_without_the_right_to_see_it(url):
    with pytest.raises(StoreRefused, match="no standby is synchronous"):
        prepare(url, replicated=True)
    run_sql(url, "CREATE ROLE blind LOGIN")
    try:
        with pytest.raises(StoreRefused, match="lacks the right to see") as refused:
            prepare(url.replace("penstock@", "blind@"), replicated=True)
        assert "pg_monitor" in refused.value.hint
    finally:
        run_sql(url, "DROP ROLE blind")


def test_every_session_sets_and_checks_what_the_promises_rest_on(url):
    database = url.rpartition("/")[2]
    run_sql(
        url,
        f"ALTER DATABASE {database} SET synchronous_commit = off",
        f"ALTER DATABASE {database} SET statement_timeout = '1ms'",
        f"ALTER DATABASE {database} SET lock_timeout = '1ms'",
        f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'",
    )
    store = PostgresStore(url)
    check_server(store.links, replicated=False)
    with store.links.borrowed() as link:
        known: dict[str, str] = dict(link.rows("SELECT name, current_setting(name) FROM pg_settings"))
        assert {name: known[name] for name in SETTINGS if name in known} == {
            name: value for name, value in SETTINGS.items() if name in known
        }
    store.links.close()


def test_a_password_in_the_arguments_is_refused_and_one_in_the_environment_is_not():
    url = "postgresql://penstock:secret@h/db"
    with pytest.raises(BadSettings, match="--store: a password in the arguments") as refused:
        load(None, {}, {"store": url})
    assert "secret" not in str(refused.value)
    assert load(None, {"PENSTOCK_STORE": url}, {}).store == url


def test_the_command_line_refuses_it_too(capsys, monkeypatch, url):
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    assert main(["store", "status", "postgresql://penstock:secret@h/db"]) == 1
    assert "secret" not in capsys.readouterr().err
    assert main(["store", "status"]) == 1
    assert "no URL is given" in capsys.readouterr().err
    assert main(["store", "init", url, "--deployment", "shop"]) == 0
    assert "deployment shop" in capsys.readouterr().out
    assert main(["store", "migrate", url]) == 0
    assert main(["node", "drain", "nobody", "--store", url]) == 1
    assert "there is no node 'nobody'" in capsys.readouterr().err


def test_a_password_comes_from_a_file_that_others_cannot_read(tmp_path):
    file = tmp_path / "password"
    file.write_text("right\n")
    file.chmod(0o644)
    with pytest.raises(InvalidField, match="other users can read"):
        read_password(str(file))
    file.chmod(0o600)
    assert read_password(str(file)) == "right"
    target = parse_store_url("postgresql://u@h1:1,h2:2/db", "right")
    assert "password=right" in target.hosts.conninfos[0]
    assert target.shown == "postgresql://h1:1,h2:2/db"
    assert "target_session_attrs=read-write" in target.hosts.conninfos[0]


def ask_until_refused(queue: penstock.Queue) -> None:
    while True:
        queue.stats()


def test_a_server_that_goes_away_for_a_while_is_waited_for(postgres_alone):
    with penstock.open(postgres_alone.new_database()) as ps:
        queue = ps.queue("q")
        queue.push(b"1")
        postgres_alone.kill()
        with pytest.raises(PenstockError):  # nothing is answered from memory for long
            ask_until_refused(queue)
        postgres_alone.start()
        pushed = None
        while pushed is None:
            try:
                pushed = queue.push(b"2")
            except PenstockError:
                continue
        assert queue.stats().messages == 2


@pytest.fixture
def postgres_alone() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()
