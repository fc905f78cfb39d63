"""Closing while others are in the middle of something: all are told, and nothing is written afterwards."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import operations as ops
from penstock.batch import encode_one
from penstock.embedded.session import Session
from penstock.errors import Closed, DiskFull
from penstock.requests import LeaseRequest
from penstock.storage.segments import Prefetcher
from tests.support.operations import run_operation

SECONDS = 60  # nothing here takes that long; a hang fails instead of hanging


def test_whoever_waits_is_notified_although_the_last_checkpoint_failed(tmp_path, monkeypatch):
    session = Session(tmp_path / "data")
    run_operation(session, ops.CreateQueue("mail", {}, exist_ok=False))
    sat_down = threading.Semaphore(0)
    watch = session.watch

    def watched(*call: Any) -> Any:
        waiter = watch(*call)
        sat_down.release()
        return waiter

    def save() -> None:
        raise DiskFull("no room for a checkpoint")

    monkeypatch.setattr(session, "watch", watched)
    assert session.keeper is not None
    monkeypatch.setattr(session.keeper._checkpointer, "save", save)
    with ThreadPoolExecutor(2) as pool:
        calls: list[Any] = [
            pool.submit(session.lease_waiting, "mail", "default", LeaseRequest(1), SECONDS),
            pool.submit(session.run, ops.AwaitNews("w-1", SECONDS)),
        ]
        assert sat_down.acquire(timeout=SECONDS)
        with pytest.raises(DiskFull):
            session.close()
        for call in calls:
            with pytest.raises(Closed):
                call.result(SECONDS)
    session.close()

    Session(tmp_path / "data").close()  # the directory is free, and sound


def test_nothing_touches_the_directory_once_it_is_given_back(tmp_path, monkeypatch):
    session = Session(tmp_path / "data", background=False)
    session.push_one("mail", encode_one(b"a"))
    assert session.keeper is not None
    keeper = session.keeper
    monkeypatch.setattr(session.shard.journal, "close", lambda: None)  # whoever rotated before it was closed
    session.close()
    session.shard.journal.rotate()
    for work in (keeper.seal, keeper.checkpoint, keeper.retain, keeper.compact):
        with pytest.raises(Closed):
            work()
    monkeypatch.undo()
    session.shard.journal.close()


def test_a_journal_that_is_closed_is_not_called_broken(tmp_path):
    session = Session(tmp_path / "data")
    session.push_one("mail", encode_one(b"a"))
    session.close()

    with pytest.raises(Closed):
        run_operation(session, ops.Seal())
    assert session.shard.journal.failed is None


def test_reading_ahead_may_begin_while_it_is_closed(monkeypatch):
    """Whoever starts the thread is overtaken by whoever closes, before the thread runs."""
    prefetcher = Prefetcher(None)  # type: ignore[arg-type] # nothing is read
    closing = threading.Thread(target=prefetcher.close)
    start = threading.Thread.start

    def overtaken(thread: threading.Thread) -> None:
        if thread is not closing:
            closing.start()
            closing.join(0.1)  # it waits for the lock; without one it would be done, or have failed
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", overtaken)
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    extent = type("Extent", (), {"file": "f", "row_group": 0, "queue": 1, "partition": 0, "end_offset": 1})
    monkeypatch.setattr(Prefetcher, "_run", lambda self: None)
    prefetcher.after(extent)  # type: ignore[arg-type]
    closing.join(SECONDS)

    assert failures == []
