"""S3 that is busy, silent or cut off; brokers that are killed while they upload; moving segments to it and back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.cli.storage import verified
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session, segments_at
from penstock.errors import Unavailable
from penstock.storage import manifest as manifests
from penstock.storage import objects
from penstock.storage.disk import RealDisk
from penstock.storage.segment_files import location_number
from tests.segments.test_s3 import filled, read_all, seal, store_of
from tests.support.brokers import BrokerThread
from tests.support.embedded_session import session_of
from tests.support.flaky_http import flaky_proxy
from tests.support.s3 import S3Server


def listed(data: Path) -> dict[str, int]:
    found = manifests.read(RealDisk(data))
    assert found is not None
    return {name: location_number(name) for name in found.files}


def require_exact(data: Path, place) -> None:
    """At the location is what the manifest names there, and nothing else."""
    names = {name.partition("/at-1/")[2] for name, number in listed(data).items() if number == 1}
    stored = {name.partition("/")[2] for name in place.objects() if name.endswith(".parquet")}
    assert stored == names


@pytest.mark.parametrize("fault", ["503", "cut", "lost", "hang"])
def test_an_upload_that_fails_changes_nothing_and_is_made_up_for(s3, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(objects, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(objects, "TRIES", 1)
    with flaky_proxy(s3.server.port) as proxy:
        url = S3Server(proxy.port).url(f"{s3.bucket}/some/prefix")
        with penstock.open(tmp_path / "data", segments=url) as handle:
            keeper = session_of(handle).keeper
            assert keeper is not None
            keeper.stop()  # nobody else seals
            mail = handle.queue("mail")
            mail.push_many([b"%d" % n for n in range(100)])
            store_of(handle).disk.check_current()
            proxy.fault = fault
            with pytest.raises(Unavailable):
                seal(handle)
            mail.push(b"100")
            assert store_of(handle).sealed_sequence == 0
            proxy.fault = ""

            seal(handle)
            assert store_of(handle).sealed_sequence > 0
            assert [int(delivery.payload) for delivery in mail.lease(max=200)] == list(range(101))
        penstock.open(tmp_path / "data").close()  # sweeps what arrived after all

        require_exact(tmp_path / "data", s3)
        assert verified(tmp_path / "data", is_shown=False).problems == []


def test_partitions_learn_where_messages_are_although_the_location_failed_right_after_the_upload(tmp_path, monkeypatch):
    """The priorities of what was just sealed are read back, which may fail when the upload did not."""
    session = Session(tmp_path / "data", background=False, segments=segments_at(tmp_path / "elsewhere", 0))
    with Penstock(BlockingSession(session)) as handle:
        mail = handle.queue("mail")
        mail.push(b"1", priority=200)
        with monkeypatch.context() as away:
            away.setattr(session.shard, "extent_of", unavailable)
            with pytest.raises(Unavailable):
                seal(handle)
        assert [extent.sealed for extent in session.shard.core.by_name["mail"].partitions[0].extents] == [None]

        assert seal(handle) == 1

        (extent,) = session.shard.core.by_name["mail"].partitions[0].extents
        assert extent.sealed is not None
        assert [delivery.payload for delivery in mail.lease()] == [b"1"]


def unavailable(*arguments: object) -> None:
    raise Unavailable("it went away")


def test_over_the_network_an_outage_costs_no_attempt_and_pushes_go_on(s3, tmp_path):
    with flaky_proxy(s3.server.port) as proxy:
        url = S3Server(proxy.port).url(f"{s3.bucket}/some/prefix")
        filled(tmp_path / "data", url, segments_cache_bytes=0)
        with penstock.open(tmp_path / "data", segments_cache_bytes=0) as handle:
            broker = BrokerThread(session_of(handle))
            try:
                with penstock.connect(broker.url, timeout=1.0) as client:
                    mail = client.queue("mail")
                    proxy.fault = "503"
                    with pytest.raises(Unavailable, match="cannot be used"):
                        mail.lease(max=10)
                    mail.push(b"300")
                    assert mail.stats().groups["default"].waiting == 0
                    proxy.fault = ""
                    store_of(handle).disk.check_current()  # or it would be tried again in a moment
                    leased = mail.lease(max=10)
                    assert [(delivery.payload, delivery.attempt) for delivery in leased][:2] == [(b"0", 1), (b"1", 1)]
            finally:
                broker.stop()


def test_what_is_due_for_other_messages_happens_while_sealed_ones_cannot_be_read(s3, tmp_path):
    """A lease of a sealed message ends, and would be dead-lettered with its payload: that waits, nothing else does."""
    with flaky_proxy(s3.server.port) as proxy:
        url = S3Server(proxy.port).url(f"{s3.bucket}/some/prefix")
        clock, options = ManualClock(), segments_at(url, 0)
        session = Session(tmp_path / "data", clock=clock, background=False, segments=options)
        with Penstock(BlockingSession(session)) as handle:
            mail = handle.create_queue("mail", max_attempts=1)
            other = handle.create_queue("other")
            mail.push(b"sealed")
            seal(handle)
            mail.lease(lease_seconds=1)
            other.push(b"0")
            other.lease(lease_seconds=1)
            store_of(handle).forget_loaded()
            proxy.fault = "503"
            clock.advance(seconds=10)

            other.push(b"1")
            assert [delivery.payload for delivery in other.lease(max=5)] == [b"1"]
            assert mail.stats().dead == 0

            proxy.fault = ""
            clock.advance(seconds=30)
            assert mail.stats().dead == 1
            assert [delivery.payload for delivery in handle.queue("mail.dlq").lease()] == [b"sealed"]


_CHILD = """
import sys, threading, penstock
from penstock import operations as ops
handle = penstock.open(sys.argv[1], segments=sys.argv[2])
mail, first = handle.queue("mail"), int(sys.argv[3])
def seal():
    while True:
        handle._session.execute(ops.Seal())
threading.Thread(target=seal, daemon=True).start()
while True:
    mail.push_many([b"%d" % n for n in range(first, first + 20)])
    first += 20
    print(first, flush=True)
"""


@pytest.mark.parametrize("lines", [3, 30])
def test_kill_9_while_it_uploads_loses_nothing_and_leaves_nothing_behind(s3, tmp_path, lines):
    confirmed = 0
    for _ in range(3):
        command = [sys.executable, "-c", _CHILD, str(tmp_path / "data"), s3.url, str(confirmed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _, line in zip(range(lines), child.stdout, strict=False):
                confirmed = int(line)
            child.send_signal(signal.SIGKILL)
            for line in child.stdout:
                confirmed = int(line)
        with penstock.open(tmp_path / "data") as handle:
            seal(handle)
        found = [int(payload) for payload in read_all(tmp_path / "data")]
        assert found[:confirmed] == list(range(confirmed))
        confirmed = len(found)
        require_exact(tmp_path / "data", s3)
    assert verified(tmp_path / "data", is_shown=False).problems == []


def run(*words: str):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_segments_are_moved_to_a_location_and_back(s3, tmp_path):
    data = tmp_path / "data"
    payloads = filled(data, None)
    assert set(listed(data).values()) == {0}

    assert run("segments", "move", str(data), "--to", s3.url, "--json")["files_moved"] == 1
    assert set(listed(data).values()) == {1}
    assert not list((data / "segments").rglob("*.parquet"))
    assert read_all(data) == payloads
    status = run("segments", "status", str(data), "--json")
    assert [(place["is_current"], place["files"], place["messages"]) for place in status["locations"]] == [
        (False, 0, 0),
        (True, 1, 300),
    ]
    assert run("segments", "move", str(data), "--json")["files_moved"] == 0

    assert run("segments", "move", str(data), "--to", "local", "--json")["files_moved"] == 1
    assert set(listed(data).values()) == {0}
    assert [name.partition("/")[2] for name in s3.objects()] == ["PENSTOCK"]
    assert read_all(data) == payloads
    with penstock.open(data) as handle:
        assert [delivery.payload for delivery in handle.queue("mail").lease(max=300)] == payloads


def test_a_damaged_file_is_not_moved(s3, tmp_path):
    data = tmp_path / "data"
    filled(data, None)
    (name,) = listed(data)
    file = data / name
    file.write_bytes(file.read_bytes()[:-1] + b"?")

    assert run("segments", "move", str(data), "--to", s3.url, "--json")["files_moved"] == 0
    assert list(listed(data)) == [name]
