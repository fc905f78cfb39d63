"""Copies of a data directory name the same objects: one of them writes and removes at the location, and no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from penstock import operations as ops
from penstock.cli import main
from penstock.cli.exits import NOTHING_THERE, SERVER_ERROR
from penstock.errors import DirectoryInUse, Unavailable
from penstock.storage import manifest as manifests
from penstock.storage.disk import RealDisk
from penstock.storage.location_owner import NAME, Ownership, decode_token, encode_token, read_owner_file
from tests.support.forgetful import ForgetfulDisk

PAYLOADS = [b"%d" % n for n in range(50)]


@pytest.fixture(params=["s3", "directory"])
def url(request, tmp_path) -> str:
    return request.getfixturevalue("s3").url if request.param == "s3" else str(tmp_path / "elsewhere")


def fill(location: str | Path, url: str | None) -> None:
    with penstock.open(location, segments=url) as handle:
        handle.queue("mail").push_many(PAYLOADS)
        handle._session.execute(ops.Seal())


def read(handle: penstock.Penstock) -> list[Any]:
    return [message.payload for message in handle.queue("mail").read(limit=1_000)]


def remove_all(handle: penstock.Penstock) -> None:
    handle.delete_queue("mail")
    handle._session.execute(ops.Compact())


@pytest.fixture
def original(tmp_path, url) -> Path:
    path = Path(tmp_path) / "data"
    fill(path, url)
    return path


@pytest.fixture
def copy(original, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def drop_cache(directory: Path) -> None:
    shutil.rmtree(directory / "cache", ignore_errors=True)


def test_a_copy_is_refused_and_its_original_is_not(original, copy):
    with pytest.raises(DirectoryInUse, match="belongs to the directory that this is a copy of") as refused:
        penstock.open(copy)
    assert "penstock segments claim" in refused.value.hint

    with penstock.open(original) as handle:
        assert read(handle) == PAYLOADS
        remove_all(handle)


def test_a_directory_that_is_moved_stays_the_owner(original, tmp_path):
    moved = original.rename(tmp_path / "moved")
    with penstock.open(moved) as handle:
        assert read(handle) == PAYLOADS


def test_whoever_claims_has_it_and_the_other_removes_nothing_any_more(original, copy, capsys):
    with penstock.open(original) as handle:
        assert main(["segments", "claim", str(copy), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["locations"]) == 1

        remove_all(handle)  # it does not know; what it gives up is left there
        handle.queue("news").push(b"1")
        with pytest.raises(DirectoryInUse, match="was taken over by another copy"):
            handle._session.execute(ops.Seal())
    drop_cache(copy)
    with penstock.open(copy) as handle:
        assert read(handle) == PAYLOADS
    with pytest.raises(DirectoryInUse, match="was taken over by another copy"):
        penstock.open(original)


@pytest.fixture
def cloned_disks(monkeypatch) -> None:
    """As with snapshots of a whole disk: files of a copy have the numbers of the original's."""
    monkeypatch.setattr(RealDisk, "place", lambda disk: "inode 12")


def test_a_clone_of_the_whole_disk_is_refused_once_the_original_was_opened_again(cloned_disks, original, copy):
    penstock.open(original).close()

    with pytest.raises(DirectoryInUse, match="was taken over by another copy"):
        penstock.open(copy)


def test_a_clone_that_is_opened_beside_the_original_loses_nothing_to_it(cloned_disks, original, tmp_path):
    original_handle = penstock.open(original)
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    with penstock.open(copy) as clone:
        remove_all(original_handle)

        drop_cache(copy)
        assert read(clone) == PAYLOADS
    original_handle.close()
    assert main(["segments", "claim", str(original)]) == 0
    penstock.open(original).close()


def test_a_restored_backup_has_objects_of_its_own_and_both_go_on(original, tmp_path, url):
    place, restored = str(tmp_path / "backup"), tmp_path / "restored"
    assert main(["backup", place, "--url", str(original)]) == 0
    assert main(["restore", place, "--data", str(restored)]) == 0
    with penstock.open(original) as first, penstock.open(restored, segments=url) as second:
        for handle in (first, second):
            handle.queue("mail").push(b"more")
            handle._session.execute(ops.Seal())
        remove_all(first)

        assert read(second) == [*PAYLOADS, b"more"]


def test_a_repair_of_a_copy_is_refused_before_anything_is_moved(original, copy, capsys):
    manifest = copy / manifests.NAME
    manifest.write_bytes(b"?" + manifest.read_bytes()[1:])

    assert main(["doctor", str(copy), "--repair"]) == SERVER_ERROR
    assert "penstock segments claim" in capsys.readouterr().err
    drop_cache(original)
    with penstock.open(original) as handle:
        assert read(handle) == PAYLOADS


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"?")], ids=["missing", "damaged"])
def test_an_original_whose_tokens_are_lost_is_claimed(original, damage):
    damage(original / NAME)
    with pytest.raises(DirectoryInUse, match="penstock segments claim"):
        penstock.open(original)

    assert main(["segments", "claim", str(original)]) == 0
    with penstock.open(original) as handle:
        assert read(handle) == PAYLOADS


def test_a_location_of_an_earlier_version_gets_an_owner_when_it_is_opened(tmp_path):
    original, place = tmp_path / "data", tmp_path / "elsewhere"
    fill(original, str(place))
    (original / NAME).unlink()
    proof = next(place.glob("*/PENSTOCK"))
    proof.write_bytes(b"0123456789abcdef")
    copy = shutil.copytree(original, tmp_path / "copy")

    penstock.open(original).close()

    assert decode_token(proof.read_bytes()) in read_owner_file(RealDisk(original)).tokens
    with pytest.raises(DirectoryInUse):
        penstock.open(copy)


def test_a_location_that_is_away_at_the_start_is_taken_before_the_first_file(tmp_path):
    original, place = tmp_path / "data", tmp_path / "elsewhere"
    fill(original, str(place))
    copy = shutil.copytree(original, tmp_path / "copy")
    place.rename(tmp_path / "unmounted")

    with penstock.open(copy) as handle:
        handle.queue("news").push(b"1")
        with pytest.raises(Unavailable):
            handle._session.execute(ops.Seal())
        assert not place.exists()  # nothing is written where it should be mounted
        (tmp_path / "unmounted").rename(place)
        with pytest.raises(DirectoryInUse, match="a copy of"):
            handle._session.execute(ops.Seal())


def test_nothing_to_claim_is_no_error_and_no_directory_is_one(tmp_path, capsys):
    penstock.open(tmp_path / "data").close()
    assert main(["segments", "claim", str(tmp_path / "data")]) == 0
    assert "there is nothing to claim" in capsys.readouterr().out
    assert main(["segments", "claim", str(tmp_path / "nowhere")]) == NOTHING_THERE
    assert not (tmp_path / "nowhere").exists()


@pytest.fixture
def store(request) -> str:
    found: str = request.getfixturevalue("postgres").new_database()
    return found


def test_a_copy_of_a_store_in_postgresql_is_refused_and_claimed(store, url, postgres):
    fill(store, url)
    source, name = store.rpartition("/")[2], "copied_" + store.rpartition("/")[2]
    postgres.sql(f"CREATE DATABASE {name} TEMPLATE {source}")
    copied = postgres.url(name)
    with pytest.raises(DirectoryInUse, match="a copy of"):
        penstock.open(copied)
    with penstock.open(store) as handle:
        assert read(handle) == PAYLOADS

    assert main(["segments", "claim", copied]) == 0
    with penstock.open(copied) as handle:
        assert read(handle) == PAYLOADS
    with pytest.raises(DirectoryInUse, match="was taken over by another copy"):
        penstock.open(store)
    with psycopg.connect(store) as connection:
        assert connection.execute("SELECT owner FROM penstock.shards").fetchone() == ("",)  # nobody is left as owner


def test_one_owner_after_the_other_takes_the_location_over(store, url):
    fill(store, url)
    for _ in range(3):
        with penstock.open(store) as handle:
            assert read(handle) == PAYLOADS
            handle.queue("news").push(b"1")
            handle._session.execute(ops.Seal())


class Place:
    """A location in memory."""

    number, url = 1, "s3://bucket"

    def __init__(self) -> None:
        self.token = ""

    def owner(self) -> str:
        return self.token

    def set_owner(self, token: str) -> None:
        self.token = token


def opening(disk: Any, place: Place) -> Ownership:
    owners = Ownership(disk)
    owners.take(place)
    return owners


def test_a_token_of_a_former_owner_that_arrives_late_is_still_one_of_ours():
    disk, place = ForgetfulDisk(), Place()
    disk.make_directory("segments")
    opening(disk, place)
    late = place.token
    owner = opening(disk, place)

    place.token = late
    owner.check(place)
    opening(disk, place).check(place)


def test_of_two_that_take_a_location_at_once_one_removes():
    disk, place = ForgetfulDisk(), Place()
    disk.make_directory("segments")
    opening(disk, place)
    copy = disk.crash()
    first, second = opening(disk.kill(), place), Ownership(copy)

    with pytest.raises(DirectoryInUse):
        second.take(place)
    second.take(place, claims=True)
    second.check(place)
    with pytest.raises(DirectoryInUse):
        first.check(place)


@pytest.mark.parametrize("content", [b"", b"0123456789abcdef", b"\xff" * 39])
def test_what_is_no_token_is_nobodys(content):
    assert decode_token(content) == ""
    assert decode_token(encode_token("ab")) == "ab"
