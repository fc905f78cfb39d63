"""A store in PostgreSQL read from outside: history, verify, doctor; segments in rows and in S3."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock import operations as ops
from penstock.cli.storage import examine, verified
from penstock.errors import DirectoryInUse, InvalidField, NotADataDirectory, StoreUnavailable
from penstock.history import open_history
from penstock.history.store_files import StoreFiles
from penstock.postgres.disk import PostgresDisk
from penstock.storage import manifest as manifests
from tests.segments.test_s3 import read_all, seal


@pytest.fixture
def store(postgres) -> str:
    url: str = postgres.new_database()
    return url


def fill(handle: penstock.Penstock, first: int = 0, count: int = 200) -> list[bytes]:
    payloads = [b"%d" % n for n in range(first, first + count)]
    handle.queue("mail").push_many(payloads)
    return payloads


@pytest.fixture(params=["rows", "s3"])
def segments(request) -> str | None:
    return request.getfixturevalue("s3").url if request.param == "s3" else None


def test_history_is_read_while_a_node_owns_the_store(store, segments):
    with penstock.open(store, segments=segments) as handle:
        payloads = fill(handle)
        assert seal(handle) == 1
        payloads += fill(handle, 200)

        assert read_all(store) == payloads


def test_verify_and_doctor_read_a_store_that_nobody_owns(store, segments):
    with penstock.open(store, segments=segments) as handle:
        fill(handle)
        seal(handle)
        fill(handle, 200)
        with pytest.raises(DirectoryInUse, match="in use by the node"):
            verified(store, is_shown=False)

    found = verified(store, is_shown=False)
    assert found.problems == []
    assert (found.sealed_messages, found.journal_messages) == (200, 200)
    assert examine(store, repair=False, is_shown=False).is_sound


def test_names_of_segments_carry_the_term(store, segments):
    for _ in range(2):
        with penstock.open(store, segments=segments) as handle:
            fill(handle)
            seal(handle)

    reader = StoreFiles(store)
    files = manifests.read(reader)
    reader.close()
    assert files is not None
    terms = {int(re.fullmatch(r".*-(\d+)\.parquet", name)[1]) for name in files.files}  # type: ignore[index] # they match
    assert terms == {1, 2}


def test_a_reader_believes_what_it_read_only_after_a_commit_of_its_own(store, monkeypatch):
    """Where that commit fails, nothing of what was read is kept."""
    with penstock.open(store) as handle:
        payloads = fill(handle)
        history = open_history(store)
        calls: list[str] = []
        confirm = PostgresDisk.confirm

        def failing(disk: PostgresDisk) -> None:
            calls.append("confirm")
            raise StoreUnavailable("the standby does not answer")

        monkeypatch.setattr(PostgresDisk, "confirm", failing)
        with pytest.raises(StoreUnavailable):
            history.look()

        def confirming(disk: PostgresDisk) -> None:
            calls.append("again")
            confirm(disk)

        monkeypatch.setattr(PostgresDisk, "confirm", confirming)
        moment = history.look()
        history.close()

    assert calls == ["confirm", "again"]
    assert sum(part.end for part in moment.queue("mail").partitions.values()) == len(payloads)


def test_what_was_read_over_a_connection_that_is_gone_is_read_again(store):
    with penstock.open(store) as handle:
        fill(handle)
        files = StoreFiles(store)
        files.durable_sequence()
        (name,) = files.list("journal")
        files.read(f"journal/{name}", 64, 100)
        for link in list(files._links._made):
            link.close()

        with pytest.raises(FileNotFoundError, match="connection was lost"):
            files.make_durable(name)
        files.read(f"journal/{name}", 64, 100)
        files.make_durable(name)
        files.close()


def test_a_role_that_may_only_read_stops_at_what_frames_say_is_durable(postgres, store):
    database = store.rpartition("/")[2]
    with penstock.open(store) as handle:
        payloads = fill(handle)
        handle._session.execute(ops.Seal())
        last = [b"777"]
        handle.queue("mail").push_many(last)
        for sql in (
            f"CREATE ROLE {database}_reader LOGIN",
            f"ALTER ROLE {database}_reader SET default_transaction_read_only = on",
            f"GRANT USAGE ON SCHEMA penstock TO {database}_reader",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA penstock TO {database}_reader",
        ):
            postgres.sql(sql, database)
        reader = postgres.url(database, f"{database}_reader") + "?target_session_attrs=any"

        assert read_all(reader) == payloads  # the last frame does not know yet that it is durable itself
        handle.queue("mail").push_many([b"888"])
        assert read_all(reader) == payloads + last
        with psycopg.connect(store) as connection:
            (pins,) = (
                connection.execute("SELECT count(*) FROM penstock.files WHERE name LIKE '%pins%'").fetchone() or ()
            )
        assert pins == 0


def test_a_database_without_a_store_is_refused(store):
    with pytest.raises(NotADataDirectory, match="contains no Penstock data"):
        open_history(store)
    with pytest.raises(NotADataDirectory, match="contains no Penstock data"):
        verified(store, is_shown=False)


def test_a_password_in_a_url_is_refused_on_the_command_line_and_in_options_of_spark(store):
    from penstock.spark.options import source_options

    secret = store.replace("penstock@", "penstock:verysecret@")
    with pytest.raises(InvalidField) as caught:
        verified(secret, is_shown=False)
    assert "verysecret" not in str(caught.value)
    for url in (secret, f"{store}?password=verysecret"):
        with pytest.raises(InvalidField) as caught:
            source_options({"url": url, "path": "mail"})
        assert "verysecret" not in str(caught.value)


def test_what_spark_sends_to_tasks_has_no_password(store, monkeypatch):
    from penstock.spark.options import source_options

    monkeypatch.setenv("PGPASSWORD", "verysecret")
    options = source_options({"url": store, "path": "mail"})

    assert b"verysecret" not in pickle.dumps(options)
    assert options.url == store


def test_a_zombie_neither_uploads_nor_removes_objects(store, s3, tmp_path):
    """Its list of leftovers is fenced by the term, and nothing is written or given up that is not on it."""
    from penstock.embedded.session import Session, segments_at
    from penstock.errors import Deposed, PenstockError
    from penstock.postgres.store import PostgresStore

    zombie = Session(None, store=PostgresStore(store, node="one"), background=False, segments=segments_at(s3.url))
    from penstock.client.handles import Penstock
    from penstock.embedded.blocking import BlockingSession

    handle = Penstock(BlockingSession(zombie))
    fill(handle)
    seal(handle)
    assert zombie.shard.store is not None
    successor = PostgresStore(store, node="one")
    again = Penstock(BlockingSession(Session(None, store=successor, background=False)))
    fill(again, 200)
    seal(again)
    before = s3.objects()

    with pytest.raises(PenstockError):
        zombie.shard.store.remove({}, zombie.shard.store.queues())
    with pytest.raises(Deposed):
        zombie.shard.store.disk.write_whole("segments/at-1/messages/00000000000000000009-9-1.parquet", b"x")

    assert s3.objects() == before
    assert read_all(store) == [b"%d" % n for n in range(400)]
    again.close()
    zombie.shard.is_closed = True
    zombie._store.links.close()  # type: ignore[union-attr] # it is a store in PostgreSQL


def test_the_cache_of_a_node_is_in_its_own_directory(store, s3, tmp_path):
    from penstock.embedded.session import Session, segments_at
    from penstock.postgres.store import PostgresStore

    postgres_store = PostgresStore(store, node="one", directory=tmp_path / "node")
    session = Session(None, store=postgres_store, background=False, segments=segments_at(s3.url))
    from penstock.client.handles import Penstock
    from penstock.embedded.blocking import BlockingSession

    with Penstock(BlockingSession(session)) as handle:
        fill(handle)
        seal(handle)

    assert list(Path(tmp_path / "node").rglob("cache/at-1.messages.*"))


@pytest.mark.parametrize("where", ["directory", "postgres"])
def test_penstock_sql_reads_segments_in_object_storage(request, s3, tmp_path, where):
    import json

    from typer.testing import CliRunner

    from penstock.cli.app import app

    location = request.getfixturevalue("store") if where == "postgres" else str(tmp_path / "data")
    with penstock.open(location, segments=s3.url) as handle:
        fill(handle)
        seal(handle)
        fill(handle, 200)

    query = "select count(*) as n, max(offset) as last from mail"
    result = CliRunner().invoke(app, ["sql", "--url", location, "--json", query])

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) in ({"n": 400, "last": 399}, [{"n": 400, "last": 399}])
