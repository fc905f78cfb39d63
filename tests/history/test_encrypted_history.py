"""History of encrypted queues: opened for who has the keys, ciphertext for everybody else."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import operations as ops
from penstock.access import encryption
from penstock.batch import Batch
from penstock.embedded.session import Session
from penstock.errors import StorageError
from penstock.history import History, open_history
from penstock.model import Message, Outcome
from penstock.requests import LeaseRequest, Settling
from tests.support.brokers import BrokerThread
from tests.support.operations import run_operation

CANARY = "c4n4ry-h15t"


@pytest.fixture
def key_file(tmp_path):
    file = tmp_path / "master.key"
    encryption.new_key_file(file)
    return file


@pytest.fixture
def session(tmp_path, key_file):
    opened = Session(tmp_path / "data", durability="os", master_key=key_file, background=False)
    run_operation(opened, ops.CreateQueue("secret", {"encryption": True}))
    run_operation(opened, ops.CreateQueue("hidden", {"encryption": True}))
    run_operation(opened, ops.CreateQueue("open"))
    for part in ("sealed", "tail"):
        for queue in ("secret", "open", "hidden"):
            messages = [
                Message(payload=f"{CANARY} {part} {row}", key=f"k {CANARY}", headers={"h": part}) for row in range(3)
            ]
            opened.push(queue, Batch.build(messages), None, None)
        reply, _ = opened.lease("secret", "default", LeaseRequest(1))
        opened.settle_lease(reply.nonce, Settling(Outcome.RELEASED, error=f"because {CANARY}"))
        if part == "sealed":
            opened.shard.journal.rotate()
            run_operation(opened, ops.Seal())
    yield opened
    opened.close()


def message(part: str, row: int) -> Message:
    return Message(payload=f"{CANARY} {part} {row}", key=f"k {CANARY}", headers={"h": part})


def rows(history: History, queue: str) -> list[tuple[Any, ...]]:
    moment = history.look()
    slices = history.plan(moment, moment.everything(queue))
    columns = ("offset", "payload", "key", "headers")
    return [
        row
        for batch in history.read(slices, columns)
        for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)
    ]


EXPECTED = [
    (offset, f"{CANARY} {part} {row}".encode(), f"k {CANARY}", [("h", part)])
    for offset, (part, row) in enumerate((part, row) for part in ("sealed", "tail") for row in range(3))
]


def errors(history: History) -> list[str]:
    moment = history.look()
    slices = history.plan_changes(moment, "events", ["secret"])
    return [text for batch in history.read(slices, ["error"]) for text in batch.column("error").to_pylist()]


def test_a_directory_is_read_with_the_master_key_of_the_environment(session, tmp_path, key_file, monkeypatch):
    monkeypatch.setenv("PENSTOCK_MASTER_KEY", str(key_file))
    with closing(open_history(tmp_path / "data")) as history:
        assert rows(history, "secret") == EXPECTED
        assert rows(history, "open") == EXPECTED
        assert errors(history) == [f"because {CANARY}"] * 2


def test_without_a_master_key_only_what_is_not_encrypted_is_read(session, tmp_path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_MASTER_KEY", raising=False)
    with closing(open_history(tmp_path / "data")) as history:
        assert rows(history, "open") == EXPECTED
        with pytest.raises(StorageError, match="no master key"):
            rows(history, "secret")
        moment = history.look()
        assert [view.end for view in moment.queue("secret").partitions.values()] == [6]


@pytest.mark.parametrize("local", [True, False])
def test_a_broker_gives_the_keys_of_what_is_read(session, local, monkeypatch):
    monkeypatch.delenv("PENSTOCK_MASTER_KEY", raising=False)
    asked: list[str] = []
    broker = BrokerThread(session)
    try:
        with closing(open_history(broker.url, local=local)) as history:
            keys: Any = history._keys
            execute = keys._execute

            def noted(operation: Any) -> Any:
                asked.append(operation.queue)
                return execute(operation)

            keys._execute = noted
            assert rows(history, "open") == EXPECTED
            assert asked == []
            assert rows(history, "secret") == EXPECTED
            assert set(asked) == {"secret"}  # not those of other queues in the same files
            assert errors(history) == [f"because {CANARY}"] * 2
            moment = history.look()
            planned = pickle.dumps(history.plan(moment, moment.everything("secret")))
            secrets = session.key_ring.keys_of([1, 2]) if session.key_ring is not None else []
            assert secrets
            assert not any(secret in planned for _, secret in secrets)
    finally:
        broker.stop()


def test_other_readers_of_parquet_see_ciphertext(session, tmp_path):
    files = sorted((tmp_path / "data/segments/messages").glob("*.parquet"))
    tables = [pq.read_table(file).to_pylist() for file in files]
    found = [row for table in tables for row in table]
    secret = [row for row in found if row["queue"] == "secret"]
    assert len(secret) == 3
    for row in secret:
        assert (row["payload"], row["headers"]) == (b"", None)
        assert row["data_key"]
        assert row["sealed"]
        assert row["payload_bytes"] == len(f"{CANARY} sealed 0")
        assert len(row["key"]) == 32
    assert len({row["key"] for row in secret}) == 1  # a keyed hash: the same for the same key
    assert {row["payload"] for row in found if row["queue"] == "open"} == {p for _, p, _, _ in EXPECTED[:3]}
    assert CANARY.encode() not in b"".join(
        file.read_bytes() for file in Path(tmp_path / "data/segments/events").iterdir()
    )
