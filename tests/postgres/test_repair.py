"""A damaged store: `doctor` says what is wrong, and `--repair --into` saves what can be read to a new directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import penstock
from penstock import Penstock
from penstock import operations as ops
from penstock.cli import main
from penstock.cli.exits import SERVER_ERROR
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.postgres.store import PostgresStore
from penstock.storage import manifest
from tests.support.operations import run_operation

MESSAGES = 30


@pytest.fixture
def store(url: str) -> str:
    """Sealed messages, a checkpoint, and frames after it."""
    session = Session(None, store=PostgresStore(url, node="test", file_bytes=1 << 14), background=False)
    ps = Penstock(BlockingSession(session))
    for number in range(MESSAGES):
        ps.queue("q").push(b"%d" % number)
        if number == MESSAGES // 2:
            run_operation(session, ops.Seal())
    session.close()
    return url


def sql(url: str, text: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text)


def ask(url: str, text: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(text).fetchall()


def flip(url: str, pattern: str) -> None:
    """One wrong byte in a file."""
    sql(
        url,
        "UPDATE penstock.file_data d SET data ="
        " set_byte(data, octet_length(data) / 2, 255 - get_byte(data, octet_length(data) / 2))"
        f" FROM penstock.files f WHERE f.file = d.file AND f.name LIKE '{pattern}'",
    )


def damaged_row(url: str) -> None:
    table = last_table(url)
    sql(
        url,
        f"UPDATE {table} SET data = set_byte(data, 60, 255 - get_byte(data, 60))"
        f" WHERE position = (SELECT position FROM {table} ORDER BY position OFFSET 5 LIMIT 1)",
    )


def missing_row(url: str) -> None:
    table = last_table(url)
    sql(url, f"DELETE FROM {table} WHERE position = (SELECT position FROM {table} ORDER BY position OFFSET 5 LIMIT 1)")


def missing_table(url: str) -> None:
    sql(url, f"DROP TABLE {last_table(url)}")


def last_table(url: str) -> str:
    names = ask(url, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'journal\\_0%' ORDER BY 1")
    return f"penstock.{names[-1][0]}"


def torn_manifest(url: str) -> None:
    """Half of it is there."""
    sql(
        url,
        "UPDATE penstock.file_data d SET data = substring(data FOR octet_length(data) / 2)"
        f" FROM penstock.files f WHERE f.file = d.file AND f.name = '{manifest.NAME}'",
    )


def missing_chunks(url: str) -> None:
    sql(
        url,
        "DELETE FROM penstock.file_data d USING penstock.files f WHERE f.file = d.file AND f.name LIKE '%.parquet'",
    )


def damaged_segment(url: str) -> None:
    flip(url, "%.parquet")


def damaged_checkpoint(url: str) -> None:
    flip(url, "checkpoints/queue-%")


Damage = Callable[[str], None]
ALL: list[Damage] = [
    damaged_row, missing_row, missing_table, torn_manifest, missing_chunks, damaged_segment, damaged_checkpoint,
]  # fmt: skip


@pytest.mark.parametrize("damage", ALL, ids=lambda damage: damage.__name__)
def test_what_can_be_read_of_a_damaged_store_is_repaired_in_a_new_directory(store, tmp_path, capsys, damage):
    damage(store)
    before = ask(store, "SELECT name, bytes, term FROM penstock.files ORDER BY name")
    assert main(["doctor", store, "--json"]) == SERVER_ERROR
    diagnosis = json.loads(capsys.readouterr().out)
    assert not diagnosis["is_sound"]

    target = tmp_path / "repaired"
    assert main(["doctor", store, "--repair", "--into", str(target), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)

    assert report["is_repaired"]
    assert report["findings"]
    assert ask(store, "SELECT name, bytes, term FROM penstock.files ORDER BY name") == before  # left as it is
    assert main(["verify", str(target)]) == 0
    lost = sum(loss["end_offset"] - loss["first_offset"] for loss in report["losses"] if loss["is_certain"])
    with penstock.open(target) as ps:
        left = [int(message.payload) for message in ps.queue("q").read(limit=1_000)] if "q" in ps.queues() else []
        assert len(left) >= MESSAGES - max(lost, MESSAGES if damage is missing_table else lost)
        assert left == sorted(set(left))
        ps.queue("q").push(b"100")  # it goes on


def test_a_sound_store_is_left_alone_and_a_directory_that_is_not_empty_is_refused(store, tmp_path, capsys):
    assert main(["doctor", store]) == 0
    assert "is intact" in capsys.readouterr().out
    assert main(["doctor", store, "--repair"]) == 1
    refused = capsys.readouterr().err
    assert "a store in PostgreSQL is not repaired in place" in refused
    assert "--into DIR" in refused
    (tmp_path / "file").write_text("")
    assert main(["doctor", store, "--repair", "--into", str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert main(["doctor", store, "--into", str(tmp_path / "new")]) == 1
    assert "--into is for --repair of a store" in capsys.readouterr().err


def test_a_repaired_directory_goes_back_into_a_store(store, postgres, tmp_path, capsys):
    damaged_row(store)
    target, place, fresh = tmp_path / "repaired", tmp_path / "backup", postgres.new_database()
    assert main(["doctor", store, "--repair", "--into", str(target)]) == 0
    assert main(["backup", str(place), "--url", str(target)]) == 0
    assert main(["restore", str(place), "--store", fresh]) == 0
    with penstock.open(target) as kept, penstock.open(fresh) as ps:
        assert ps.queue("q").stats().messages == kept.queue("q").stats().messages > 0


def test_a_store_that_a_node_owns_is_not_copied(url, tmp_path, capsys):
    with penstock.open(url) as ps:
        ps.queue("q").push(b"1")
        assert main(["doctor", url, "--repair", "--into", str(tmp_path / "new")]) == SERVER_ERROR
        assert "is in use by the node" in capsys.readouterr().err
        assert not (tmp_path / "new").exists()
