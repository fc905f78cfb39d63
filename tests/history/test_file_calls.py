"""Stored files over the wire: what is told of them, that nothing else is, and what happens when they go."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import pytest

from penstock import limits
from penstock import operations as ops
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField, InvalidName, NotAuthorised, StorageError, TooLarge
from penstock.remote.settings import session as dial
from penstock.remote.settings import settings
from penstock.replies import HistoryInfo
from penstock.storage import pins
from tests.support.brokers import BrokerThread
from tests.support.cut_proxy import EVERYTHING, CuttingProxy, NoPause
from tests.support.operations import push_bytes, run_operation

HOSTILE = [
    "", "/", "/etc/passwd", "..", "../lock", "lock", "journal", "journal/", "journal//a", "journal/../lock",
    "segments/..", "journal/./x", "journal/.hidden", "journal\\x", "journal/a\\..\\..\\b", "damaged/a", "staging/a",
    "PENSTOCK/x", "PENSTOCK\n", "PENSTOCK\0", "journal/a\0b", "journal/a\n", "penstock", "~", "journal/~",
    "JOURNAL/a", "journal/é", "file:journal/a", " journal/a", "segments/messages/../../lock",
    "journal/" + "a/" * 9 + "..",
]  # fmt: skip


@pytest.fixture
def session(tmp_path):
    opened = Session(tmp_path / "data", durability="os", rng=random.Random(1))
    yield opened
    opened.close()


@pytest.fixture
def broker(session):
    running = BrokerThread(session)
    yield running
    running.stop()


class Calls:
    """The five operations on files, of any session."""

    def __init__(self, session: Any) -> None:
        self._execute = session.execute

    def history(self) -> HistoryInfo:
        found: HistoryInfo = self._execute(ops.History())
        return found

    def list_files(self, directory: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = self._execute(ops.ListFiles(directory))
        return found

    def fetch(self, name: str, position: int, length: int) -> Any:
        return self._execute(ops.Fetch(name, position, length))

    def pin(self, name: str, files: list[str] | None) -> None:
        self._execute(ops.Pin(name, files))

    def unpin(self, name: str) -> None:
        self._execute(ops.Unpin(name))


@pytest.fixture
def remote(broker):
    made = dial(settings(broker.url, rng=NoPause(3)))
    yield Calls(made)
    made.close()


@pytest.fixture(params=["embedded", "remote"])
def calls(request, session):
    """In this process and over TCP."""
    return request.getfixturevalue("remote") if request.param == "remote" else Calls(BlockingSession(session))


def test_a_broker_says_where_its_files_are_and_makes_the_journal_durable_up_to_what_it_says(calls, session, tmp_path):
    push_bytes(session, "mail", b"a")  # written, not synced
    written = session.shard.journal.sequence

    reported = calls.history()

    assert reported.durable_sequence == written == session.shard.journal.durable_sequence
    assert reported.directory == str(tmp_path / "data")
    assert reported.host == socket.gethostname()
    assert reported.shard_id == json.loads((tmp_path / "data" / "PENSTOCK").read_text())["shard"]


def test_every_stored_file_comes_as_it_is_on_disk(calls, session, tmp_path):
    push_bytes(session, "mail", b"a")
    run_operation(session, ops.Seal())
    session.checkpoint()

    seen = 0
    for directory in ("journal", "segments", "segments/messages", "checkpoints"):
        for name, size in calls.list_files(directory):
            path = tmp_path / "data" / directory / name
            assert size == path.stat().st_size
            if path.is_file() and size <= limits.fetch_bytes_max:
                assert calls.fetch(f"{directory}/{name}", 0, limits.fetch_bytes_max) == path.read_bytes()
                seen += 1
    assert seen >= 3
    assert calls.fetch("PENSTOCK", 0, 1000) == (tmp_path / "data" / "PENSTOCK").read_bytes()


def test_a_piece_that_reaches_past_the_end_is_shorter(calls, tmp_path):
    whole = (tmp_path / "data" / "PENSTOCK").read_bytes()

    assert calls.fetch("PENSTOCK", 3, 4) == whole[3:7]
    assert calls.fetch("PENSTOCK", len(whole) - 2, 100) == whole[-2:]
    assert calls.fetch("PENSTOCK", len(whole), 100) == b""
    assert calls.fetch("PENSTOCK", 1 << 40, 100) == b""
    assert calls.fetch("PENSTOCK", 0, 0) == b""


def test_a_piece_that_cannot_be_is_refused(calls):
    for position, length in ((-1, 1), (0, -1), (0, limits.fetch_bytes_max + 1), (1 << 63, 1), ((1 << 40) + 1, 1)):
        with pytest.raises(InvalidField, match=r"position|length"):
            calls.fetch("PENSTOCK", position, length)


def test_no_name_leads_out_of_what_is_reported(calls):
    for name in HOSTILE:
        with pytest.raises(InvalidField, match="name"):
            calls.fetch(name, 0, 10)
        with pytest.raises(InvalidField, match="files"):
            calls.pin("reader", [name])
        if name != "journal":
            with pytest.raises(InvalidField, match="directory"):
                calls.list_files(name)


def test_a_pin_is_named_like_everything_else(calls):
    for name in ("", "../lock", "a/b", ".x", "a\n"):
        with pytest.raises(InvalidName):
            calls.pin(name, None)
        with pytest.raises(InvalidName):
            calls.unpin(name)


def test_a_file_that_is_gone_is_nothing_and_no_error(calls):
    assert calls.fetch("segments/messages/00000000000000000009-0.parquet", 0, 10) is None
    assert calls.list_files("segments/tasks") == []


def test_a_directory_is_no_file(calls, session):
    with pytest.raises(InvalidField, match="is a directory"):
        calls.fetch("segments/pins", 0, 10)


def test_a_pin_from_outside_holds_segments_until_it_is_taken_back(calls, session, tmp_path):
    push_bytes(session, "mail", b"a")
    run_operation(session, ops.Seal())
    file = f"segments/messages/{calls.list_files('segments/messages')[0][0]}"
    disk = session.files._disk

    calls.pin("reader", [file])
    assert pins.held(disk, session.shard.clock.now()).files == {file}

    calls.pin("reader", None)
    assert pins.held(disk, session.shard.clock.now()).everything

    calls.unpin("reader")
    calls.unpin("reader")
    assert pins.held(disk, session.shard.clock.now()) == pins.Held()


def test_what_is_only_in_memory_has_no_files():
    session = Session(None, durability="os", background=False)
    try:
        for ask in (session.files.history, lambda: session.files.list("journal"), lambda: session.files.pin("a", None)):
            with pytest.raises(StorageError, match="in memory"):
                ask()
    finally:
        session.close()


def test_the_calls_are_for_those_who_may_read_everything(broker, remote):
    asked = []

    def refuse(principal, action, queue):
        asked.append((str(action), queue))
        raise NotAuthorised("no")

    broker.broker.authorise = refuse
    for ask in (
        remote.history,
        lambda: remote.list_files("journal"),
        lambda: remote.fetch("PENSTOCK", 0, 1),
        lambda: remote.pin("reader", None),
        lambda: remote.unpin("reader"),
    ):
        with pytest.raises(NotAuthorised):
            ask()

    assert asked == [("export", "")] * 5


@pytest.mark.parametrize("bytes_down", [30, 60, 1000])
def test_a_piece_whose_answer_is_cut_is_asked_for_again(broker, bytes_down):
    proxy = CuttingProxy(broker.server.port, [(EVERYTHING, bytes_down)])
    remote = dial(settings(proxy.url, rng=NoPause(3)))
    try:
        calls = Calls(remote)
        assert len(calls.fetch("journal/" + calls.list_files("journal")[0][0], 0, 100_000)) == 100_000
        assert calls.history().durable_sequence >= 0
    finally:
        remote.close()
        proxy.close()


def test_pins_are_bounded_and_those_that_are_there_can_be_renewed(calls, monkeypatch):
    monkeypatch.setattr(limits, "pins_max", 2)
    monkeypatch.setattr(limits, "pinned_files_max", 1)
    for name in ("a", "b", "a"):
        calls.pin(name, None)

    with pytest.raises(TooLarge, match="pins: there are already 2"):
        calls.pin("c", None)
    with pytest.raises(InvalidField, match="files: 2 is too many"):
        calls.pin("a", ["segments/x", "segments/y"])
    calls.unpin("a")
    calls.pin("c", [])
