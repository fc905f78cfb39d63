"""A broker's files as readers of history see them: the same bytes as on disk, wherever they come from."""

from __future__ import annotations

import random
import shutil
import threading

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from penstock import limits
from penstock import operations as ops
from penstock.batch import encode_one
from penstock.embedded.session import Session
from penstock.errors import StorageError, Unavailable
from penstock.history.broker_files import BrokerFiles, local_files
from penstock.storage import pins
from tests.support.broker_restarts import held_port
from tests.support.brokers import BrokerThread
from tests.support.cut_proxy import NoPause
from tests.support.operations import push_bytes, run_operation


@pytest.fixture
def session(tmp_path):
    opened = Session(tmp_path / "data", durability="os", rng=random.Random(1))
    opened.push_one("mail", encode_one(b"a" * 1000))
    run_operation(opened, ops.Seal())
    opened.push_one("mail", encode_one(b"b"))
    yield opened
    opened.close()


@pytest.fixture(params=["penstock", "http"])
def broker(session, request):
    with held_port(2) as port:
        running = BrokerThread(session, port, request.param)
        yield running
        running.stop()


@pytest.fixture(params=["local", "fetched"])
def files(request, broker):
    found = BrokerFiles(broker.url, local=request.param == "local", rng=NoPause(3))
    assert (found.local is not None) == (request.param == "local")
    yield found
    found.close()


def test_files_are_listed_measured_and_read_as_they_are_on_disk(files, tmp_path):
    data = tmp_path / "data"
    for directory in ("journal", "segments/messages"):
        names = files.list(directory)
        assert names == sorted(path.name for path in (data / directory).iterdir())
        for name in names:
            path = data / directory / name
            full = f"{directory}/{name}"
            assert files.exists(full)
            assert files.size(full) == path.stat().st_size
            assert files.read(full, 5, 10) == path.read_bytes()[5:15]
            assert files.read(full) == path.read_bytes()
    assert files.exists("PENSTOCK")
    assert not files.exists("segments/messages/none.parquet")


def test_a_file_that_is_larger_than_an_answer_comes_in_pieces(files, session, tmp_path):
    name = "journal/" + files.list("journal")[-1]
    whole = (tmp_path / "data" / name).read_bytes()

    assert len(whole) > 2 * limits.fetch_bytes_max
    assert files.read(name) == whole
    assert files.read(name, 7, limits.fetch_bytes_max + 1) == whole[7 : limits.fetch_bytes_max + 8]


def test_parquet_is_read_through_it(files):
    name = "segments/messages/" + files.list("segments/messages")[0]

    with files.open_input(name) as source:
        assert pq.ParquetFile(source).read().column("payload").to_pylist() == [b"a" * 1000]


def test_a_file_that_is_not_there_is_not_found(files):
    for ask in (files.read, files.size, files.open_input):
        with pytest.raises(FileNotFoundError):
            ask("segments/messages/none.parquet")


def test_the_broker_says_how_far_the_journal_is_durable(files, session):
    push_bytes(session, "mail", b"c")

    assert files.durable_sequence() == session.shard.journal.sequence


def test_pins_are_the_brokers(files, session):
    files.pin("reader", 0, ["segments/messages/a.parquet"])
    assert pins.held(session.files._disk, session.shard.clock.now()).files == {"segments/messages/a.parquet"}

    files.unpin("reader")
    assert pins.held(session.files._disk, session.shard.clock.now()) == pins.Held()


def test_a_pin_that_cannot_be_taken_is_no_error(files, broker):
    broker.stop()
    files.close()

    files.pin("reader", 0, None)
    files.unpin("reader")


@pytest.mark.parametrize("local", [True, False])
def test_a_reader_goes_on_when_the_broker_comes_back(session, broker, local):
    files = BrokerFiles(broker.url, local=local, rng=NoPause(3))
    port = broker.server.port
    broker.stop()
    answers: list[object] = []
    reader = threading.Thread(target=lambda: answers.extend((files.durable_sequence(), files.read("PENSTOCK"))))
    reader.start()
    again = BrokerThread(session, port, broker.protocol)
    try:
        reader.join(60)
        assert answers == [session.shard.journal.sequence, session.files._disk.read("PENSTOCK")]
    finally:
        files.close()
        again.stop()


def test_another_broker_at_the_same_address_is_refused(session, broker, tmp_path):
    files = BrokerFiles(broker.url, rng=NoPause(3))
    port = broker.server.port
    broker.stop()
    other = Session(tmp_path / "other", durability="os", rng=random.Random(2))
    again = BrokerThread(other, port, broker.protocol)
    try:
        with pytest.raises(StorageError, match="another broker now"):
            files.durable_sequence()
    finally:
        files.close()
        again.stop()
        other.close()


def test_a_broker_that_stays_away_is_named_with_what_to_do(broker):
    url = broker.url
    files = BrokerFiles(url, rng=NoPause(3))
    files._session._settings = replace(files._session._settings, timeout_seconds=0.01)
    broker.stop()

    with pytest.raises(Unavailable, match="penstock serve"):
        files.durable_sequence()
    with pytest.raises(Unavailable, match="no broker answers"):
        BrokerFiles(url, connect_seconds=0.01, rng=NoPause(3))
    files.close()


def test_a_directory_with_other_data_is_not_taken_for_the_brokers(session, tmp_path):
    info = session.files.history()

    assert local_files(info) is not None
    assert local_files(replace(info, shard_id="00" * 16)) is None
    assert local_files(replace(info, directory=str(tmp_path))) is None


def test_a_directory_seen_from_another_host_is_taken_for_the_brokers_if_what_it_writes_appears_there(
    session, broker, tmp_path, monkeypatch
):
    monkeypatch.setattr("penstock.shard.stored_files.socket.gethostname", lambda: "elsewhere")
    reported = session.files.history
    shared = BrokerFiles(broker.url, rng=NoPause(3))
    assert shared.local is not None
    shared.close()

    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    session.files.history = lambda: replace(reported(), directory=str(tmp_path / "copy"), host="elsewhere too")
    copied = BrokerFiles(broker.url, rng=NoPause(3))
    assert copied.local is None
    copied.close()
