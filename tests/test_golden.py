"""Data directories written by earlier versions: they open, everything is there, and they can be worked with.

tests/data holds them; tests/support/golden.py says what is in them and how they were written.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.repair.directory import diagnose
from penstock.storage.directory import FORMATS
from penstock.storage.disk import ReadOnlyDisk
from penstock.verify import Verification, verify
from tests.support.accounts import assert_accounts
from tests.support.golden import DATA, NOW, contents, moved, opened
from tests.support.operations import run_operation

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz"))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(name: str, tmp_path: Path) -> Path:
    with tarfile.open(DATA / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    moved(tmp_path / "data")
    return tmp_path / "data"


def verified(directory: Path) -> Verification:
    disk = ReadOnlyDisk(directory)
    try:
        return verify(disk, NOW)
    finally:
        disk.close()


def test_there_is_one_that_was_closed_and_one_that_was_killed_of_each_format():
    later = {f"{how}-{number}" for how in ("clean", "killed") for number in FORMATS[1:]}

    assert {"clean", "killed"} | later == set(NAMES)


def test_a_directory_of_an_earlier_version_is_sound(directory):
    assert verified(directory).problems == []
    disk = ReadOnlyDisk(directory)
    assert diagnose(disk, NOW).is_sound
    disk.close()


def test_everything_in_it_is_found_again(directory, name):
    session = opened(directory)
    now = json.loads(json.dumps(contents(session)))
    session.close()

    assert now == json.loads((DATA / f"{name}.json").read_text())


def test_keys_that_were_pushed_before_are_known(directory):
    session = opened(directory)
    queue = Penstock(BlockingSession(session)).queue("unique")
    before = queue.stats().groups["default"].messages
    queue.push(b"again", dedup_key="only 0")

    assert queue.stats().groups["default"].messages == before
    session.close()


def test_it_can_be_worked_with(directory):
    session = opened(directory)
    ps = Penstock(BlockingSession(session))
    ps.delete_queue("orders")
    ps.delete_queue("steps")
    ps.create_queue("orders", partitions=3, ordering="key")
    ps.queue("orders").create_group("billing", start="earliest")
    ps.create_queue("steps", ordering="partition")
    ps.queue("jobs").push(b"new")
    held = ps.queue("jobs").lease(max=1000)
    held.ack()
    run_operation(session, ops.Seal())
    run_operation(session, ops.Compact())
    session.checkpoint()
    assert_accounts(session.shard)
    session.close()

    assert verified(directory).problems == []
    again = opened(directory)
    assert run_operation(again, ops.Stats("jobs"))[0].groups["default"].leased == 0
    again.close()
