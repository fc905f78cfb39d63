"""A Penstock whose segments are in S3, or in a directory elsewhere: everything that reads and writes them."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import limits
from penstock import operations as ops
from penstock.errors import InvalidField, Unavailable
from penstock.history import OffsetRange, open_history
from penstock.storage import block_cache
from penstock.storage.disk import RealDisk
from penstock.storage.objects import open_objects
from penstock.storage.segment_files import read_book
from penstock.storage.segments import SegmentStore
from penstock.telemetry.meter import Meter
from penstock.telemetry.metrics import Metrics
from tests.support.brokers import BrokerThread
from tests.support.embedded_session import session_of
from tests.support.s3 import s3_server


@pytest.fixture(params=["s3", "directory"])
def url(request, tmp_path) -> str:
    return request.getfixturevalue("s3").url if request.param == "s3" else str(tmp_path / "elsewhere")


def seal(handle: penstock.Penstock) -> int:
    sealed: int = handle._session.execute(ops.Seal())
    return sealed


def store_of(handle: penstock.Penstock) -> SegmentStore:
    store = session_of(handle).shard.store
    assert store is not None
    return store


def filled(path: Path, url: str | None, count: int = 300, **options: Any) -> list[bytes]:
    payloads = [b"%d" % n for n in range(count)]
    with penstock.open(path, segments=url, **options) as handle:
        handle.queue("mail").push_many(payloads)
        seal(handle)
    return payloads


def read_all(location: str | Path, **options: Any) -> list[bytes]:
    history = open_history(location, **options)
    try:
        moment = history.look()
        parts = moment.queue("mail").partitions
        slices = history.plan(moment, [OffsetRange("mail", name, 0, part.end) for name, part in parts.items()])
        table = pa.Table.from_batches(history.read(slices, ["payload"]))
        return sorted(table["payload"].to_pylist(), key=int)
    finally:
        history.close()


def test_sealed_messages_are_leased_from_the_location_after_a_restart(url, tmp_path):
    payloads = filled(tmp_path / "data", url)
    shutil.rmtree(tmp_path / "data" / "cache")

    with penstock.open(tmp_path / "data") as handle:
        leased = handle.queue("mail").lease(max=1000)
        assert [delivery.payload for delivery in leased] == payloads
        assert not list((tmp_path / "data" / "segments").rglob("*.parquet"))


def test_history_verify_and_doctor_read_the_location(url, tmp_path):
    from penstock.cli.storage import examine, verified

    payloads = filled(tmp_path / "data", url)

    assert read_all(tmp_path / "data") == payloads
    assert verified(tmp_path / "data", is_shown=False).problems == []
    report = examine(tmp_path / "data", repair=False, is_shown=False)
    assert report.is_sound
    assert report.checked.sealed_messages == len(payloads)


@pytest.mark.parametrize("has_credentials", [True, False])
def test_readers_at_a_broker_need_no_credentials(s3, tmp_path, monkeypatch, has_credentials):
    payloads = filled(tmp_path / "data", s3.url)
    with penstock.open(tmp_path / "data", segments_cache_bytes=0) as handle:
        broker = BrokerThread(session_of(handle))
        try:
            if not has_credentials:
                from penstock.history.broker_files import BrokerSegments

                monkeypatch.setattr(BrokerSegments, "_opened", refused)
            for local in (True, False):
                assert read_all(broker.url, local=local) == payloads
        finally:
            broker.stop()


def refused(*arguments: Any) -> Any:
    raise Unavailable("AWS Error ACCESS_DENIED")


def test_a_lost_manifest_is_rebuilt_from_the_location(url, tmp_path):
    from penstock.cli.storage import examine

    payloads = filled(tmp_path / "data", url)
    (tmp_path / "data" / "segments" / "manifest.arrow").unlink()

    assert not examine(tmp_path / "data", repair=False, is_shown=False).is_sound
    assert examine(tmp_path / "data", repair=True, is_shown=False).is_repaired

    assert read_all(tmp_path / "data") == payloads


def test_a_damaged_object_is_named_and_never_read_as_something_else(s3, tmp_path):
    filled(tmp_path / "data", s3.url, segments_cache_bytes=0)
    (key,) = [name for name in s3.objects() if "/messages/" in name]
    system, path = s3.server.system(), f"{s3.bucket}/some/prefix/{key}"
    with system.open_input_file(path) as source:
        data = bytearray(source.read())
    data[50] ^= 1
    with system.open_output_stream(path) as sink:
        sink.write(bytes(data))

    with penstock.open(tmp_path / "data") as handle, pytest.raises(penstock.PenstockError, match="checksum"):
        list(handle.queue("mail").lease(max=10))


def test_segments_stay_where_they_are_when_the_location_changes(s3, tmp_path):
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    written: list[bytes] = []
    for number, place in enumerate([None, s3.url, str(elsewhere), "local", s3.url]):
        with penstock.open(data, segments=place) as handle:
            payloads = [b"%d" % (100 * number + n) for n in range(100)]
            handle.queue("mail").push_many(payloads)
            written += payloads
            seal(handle)

    names = [file.rpartition("/")[0] for file in manifest_names(data)]
    assert sorted(names) == sorted(
        ["segments/messages"] * 2 + ["segments/at-1/messages"] * 2 + ["segments/at-2/messages"]
    )
    assert read_all(data) == written
    assert [entry.number for entry in read_book(RealDisk(data)).locations] == [1, 2]


def manifest_names(data: Path) -> list[str]:
    from penstock.storage import manifest

    found = manifest.read(RealDisk(data))
    assert found is not None
    return sorted(found.files)


def test_retention_removes_objects_and_what_is_cached_of_them(s3, tmp_path):
    filled(tmp_path / "data", s3.url)
    assert len(s3.objects()) > 1
    with penstock.open(tmp_path / "data") as handle:
        handle.delete_queue("mail")
        handle._session.execute(ops.Compact())

        assert [name.partition("/")[2] for name in s3.objects()] == ["PENSTOCK"]
        assert os.listdir(tmp_path / "data" / "cache") == []


def test_older_code_refuses_a_directory_with_a_location(s3, tmp_path):
    filled(tmp_path / "data", s3.url)

    assert json.loads((tmp_path / "data" / "PENSTOCK").read_text())["format"] == 4


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/path", "'ftp'"),
        ("s3://", "no bucket"),
        ("s3://bucket?colour=blue", "'colour' is not an option"),
        ("s3://bucket?scheme=gopher", "http or https"),
        ("file://host/path", "absolute path"),
        ("", "is not a location"),
        ("s3://AKIA:verysecret@bucket/prefix", "credentials"),
        ("s3://AKIA@bucket/prefix", "contains a user name"),
        ("s3://bucket?secret_key=verysecret", "credentials"),
        ("abfs://account.example/x?sas_token=verysecret", "credentials"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_and_no_secret_is_shown(tmp_path, url, words):
    with pytest.raises(InvalidField, match=words) as caught:
        penstock.open(tmp_path / "data", segments=url)

    assert "verysecret" not in str(caught.value)
    penstock.open(tmp_path / "data").close()  # it was let go, and nothing was kept of it


def test_a_wrong_bucket_is_refused_at_the_start_and_nothing_is_changed(s3, tmp_path):
    wrong = s3.server.url("no-such-bucket/prefix")
    with pytest.raises(Unavailable, match="NO_SUCH_BUCKET"):
        penstock.open(tmp_path / "data", segments=wrong)

    with penstock.open(tmp_path / "data") as handle:
        handle.queue("mail").push(b"1")
        assert seal(handle) == 1
    assert read_book(RealDisk(tmp_path / "data")).locations == []


def test_a_location_that_does_not_answer_cannot_be_chosen(credentials, tmp_path):
    with s3_server() as server:
        url = server.url("bucket/prefix")
    with pytest.raises(Unavailable, match="cannot be used"):
        penstock.open(tmp_path / "data", segments=url)


def test_while_the_location_is_away_pushes_go_on_and_no_attempt_is_lost(credentials, tmp_path):
    with s3_server() as server:
        server.make_bucket("bucket")
        filled(tmp_path / "data", server.url("bucket/prefix"), segments_cache_bytes=0)

    with penstock.open(tmp_path / "data", segments_cache_bytes=0) as handle:
        mail = handle.queue("mail")
        for auto_ack in (False, True):
            for _ in range(6):
                with pytest.raises(Unavailable, match="cannot be used"):
                    mail.lease(max=10, auto_ack=auto_ack)
        mail.push(b"new")
        with pytest.raises(Unavailable):
            seal(handle)
        mail.push(b"newer")
        stats = mail.stats()
        group = stats.groups["default"]

        assert (group.ready, group.dead, group.acked) == (302, 0, 0)


def test_sealing_goes_on_when_the_location_is_back(s3, tmp_path, monkeypatch):
    from penstock.storage import objects

    with penstock.open(tmp_path / "data", segments=s3.url) as handle:
        mail = handle.queue("mail")
        mail.push(b"1")
        with monkeypatch.context() as away:
            away.setattr(objects.ArrowObjects, "_at", refused)
            with pytest.raises(Unavailable):
                seal(handle)

        seal(handle)  # unless the storekeeper has done it by now
        assert store_of(handle).sealed_sequence > 0
        assert [delivery.payload for delivery in mail.lease()] == [b"1"]


def test_an_object_that_was_removed_by_another_process_is_missing_and_not_unavailable(s3):
    """A reader of history then looks up where its messages are now."""
    owner, reader = open_objects(s3.url), open_objects(s3.url)
    owner.put("shard/a", b"hello")
    assert reader.read("shard/a", 1, 100) == b"ello"
    owner.remove("shard/a")

    with pytest.raises(FileNotFoundError):
        reader.read("shard/a", 1, 100)
    with pytest.raises(FileNotFoundError):
        reader.size("shard/a")


def test_a_check_asks_the_location_each_time(s3, tmp_path):
    with penstock.open(tmp_path / "data", segments=s3.url) as handle:
        disk = store_of(handle).disk
        disk.check_current()
        s3.server.system().delete_dir_contents(s3.bucket)

        with pytest.raises(Unavailable, match="no data of this shard"):
            disk.check_current()


def test_odd_characters_in_a_location(s3, tmp_path):
    for number, url in enumerate([s3.server.url(f"{s3.bucket}/a b/ö#1"), str(tmp_path / "a b" / "ö%20")]):
        if "#" in url:
            url = url.replace("#", "%23").replace(" ", "%20").replace("ö", "%C3%B6")
        payloads = filled(tmp_path / str(number), url, segments_cache_bytes=0)
        assert read_all(tmp_path / str(number)) == payloads


def test_encrypted_messages_are_ciphertext_at_the_location(s3, tmp_path, monkeypatch):
    key = bytes(range(32))
    with penstock.open(tmp_path / "data", segments=s3.url, master_key=key) as handle:
        handle.create_queue("mail", encryption=True).push(b"a secret text")
        seal(handle)
    system = s3.server.system()
    (name,) = [name for name in s3.objects() if "/messages/" in name]
    with system.open_input_file(f"{s3.bucket}/some/prefix/{name}") as source:
        assert b"a secret text" not in source.read()

    with penstock.open(tmp_path / "data", master_key=key) as handle:
        assert [delivery.payload for delivery in handle.queue("mail").lease()] == [b"a secret text"]


def test_a_damaged_object_is_repaired_as_far_as_it_can_be_read(s3, tmp_path):
    from penstock.cli.storage import examine

    data = tmp_path / "data"
    filled(data, s3.url, count=2 * limits.segment_row_group_rows, segments_cache_bytes=0)
    (key,) = [name for name in s3.objects() if "/messages/" in name]
    system, path = s3.server.system(), f"{s3.bucket}/some/prefix/{key}"
    with system.open_input_file(path) as source:
        content = bytearray(source.read())
    content[50] ^= 1
    with system.open_output_stream(path) as sink:
        sink.write(bytes(content))

    report = examine(data, repair=True, is_shown=False)

    assert report.is_repaired
    assert sum(loss.end_offset - loss.first_offset for loss in report.losses) == limits.segment_row_group_rows
    assert len(read_all(data)) == limits.segment_row_group_rows
    assert key not in s3.objects()
    assert len([name for name in s3.objects() if "/messages/" in name]) == 1


def test_a_thousand_small_reads_ask_the_location_a_few_times(s3, tmp_path):
    payloads = filled(tmp_path / "data", s3.url, count=2000)
    shutil.rmtree(tmp_path / "data" / "cache")
    with penstock.open(tmp_path / "data") as handle:
        store = store_of(handle)
        files, cache = store.disk, store.disk.cache
        assert cache is not None
        (extent,) = store.extents
        for _ in range(1000):
            name = extent.file
            assert files.read(name, 4, 100)
        assert cache.misses <= 2
        assert cache.hits >= 999
        page = Metrics(session_of(handle), Meter()).render()[0].decode()
        assert f'penstock_segment_cache_reads_total{{result="hit"}} {cache.hits}' in page
        assert f"penstock_segment_cache_bytes {cache.bytes}" in page
        assert [delivery.payload for delivery in handle.queue("mail").lease(max=2000)] == payloads


def test_blocks_that_are_evicted_while_they_are_read_do_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "segment_block_bytes", 100)
    disk = RealDisk(tmp_path)
    cache = block_cache.BlockCache(disk, bytes_max=600)
    data = bytes(range(256)) * 10
    wrong: list[int] = []

    def read_often(name: str) -> None:
        for n in range(150):
            position = n * 37 % 2000
            if (
                cache.read(name, position, 300, lambda start, size: data[start : start + size])
                != (data[position : position + 300])
            ):
                wrong.append(n)

    threads = [threading.Thread(target=read_often, args=(f"segments/at-1/messages/{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert cache.bytes <= 600
    assert sum((tmp_path / "cache" / name).stat().st_size for name in os.listdir(tmp_path / "cache")) <= 600


def test_a_damaged_block_is_fetched_again_and_a_whole_one_is_not(tmp_path):
    cache = block_cache.BlockCache(RealDisk(tmp_path), bytes_max=10_000)
    fetched: list[int] = []

    def fetch(start: int, size: int) -> bytes:
        fetched.append(start)
        return b"x" * 500

    name = "segments/at-1/messages/a.parquet"
    assert cache.read(name, 0, 500, fetch) == cache.read(name, 0, 500, fetch) == b"x" * 500
    assert len(fetched) == 1
    (block,) = (tmp_path / "cache").iterdir()
    for damage in (b"", b"short", b"y" * 508, block.read_bytes()[:-1]):
        block.write_bytes(damage)
        again = block_cache.BlockCache(RealDisk(tmp_path), bytes_max=10_000)

        assert again.read(name, 0, 500, fetch) == b"x" * 500
        assert again.read(name, 0, 500, fetch) == b"x" * 500
    assert len(fetched) == 5


def test_the_cache_keeps_what_was_used_last_within_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "segment_block_bytes", 92)
    cache = block_cache.BlockCache(RealDisk(tmp_path), bytes_max=300)
    fetched: list[int] = []

    def fetch(start: int, size: int) -> bytes:
        fetched.append(start // 92)
        return b"x" * size

    for number in (0, 1, 2, 0, 3, 0, 1):  # 3 takes the place of 1, then 1 that of 2
        cache.read("name", number * 92, 92, fetch)

    assert fetched == [0, 1, 2, 3, 1]
    assert cache.bytes == 300
    assert block_cache.BlockCache(RealDisk(tmp_path), bytes_max=100).bytes == 100
