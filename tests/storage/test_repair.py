"""What a repair does to queues: what is lost stays lost, everything else goes on."""

from __future__ import annotations

import random

import pyarrow.dataset as ds
import pytest

from penstock import Message
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import Damaged, MessageNotFound
from penstock.repair.directory import Report, diagnose, repair
from penstock.storage.disk import Disk, RealDisk
from penstock.storage.frames import PREFIX, scan, seed_of
from tests.support.forgetful import ForgetfulDisk
from tests.support.operations import run_operation

FILE_BYTES = 1 << 17


def opened(disk: Disk, file_bytes: int = FILE_BYTES) -> Penstock:
    clock, rng = ManualClock(), random.Random(5)
    return Penstock(
        BlockingSession(Session(None, clock=clock, rng=rng, background=False, disk=disk, journal_file_bytes=file_bytes))
    )


def mend(disk: Disk) -> Report:
    clock = ManualClock()
    return repair(disk, diagnose(disk, clock.now()), clock, random.Random(5), journal_file_bytes=FILE_BYTES)


def journal_file(disk: ForgetfulDisk) -> str:
    return f"journal/{next(name for name in disk.list('journal') if name.endswith('.log'))}"


def damage_frame(disk: ForgetfulDisk, containing: bytes, *, at: int | None = None) -> None:
    """Turn over a bit of the first frame that contains some bytes: in those, or `at` bytes into its entries."""
    name = journal_file(disk)
    data = disk.read(name)
    shard_id = bytes.fromhex(disk.read("PENSTOCK").decode().split('"')[5])
    found = scan(data, seed_of(shard_id), int(name[8:28]))
    for position in found.positions:
        frame = data[position : position + PREFIX.size + PREFIX.unpack_from(data, position)[0]]
        if containing in frame:
            disk.flip(name, 8 * (position + (frame.index(containing) if at is None else 24 + at)))
            return
    raise AssertionError(f"no frame contains {containing!r}")


def offsets_of(messages: list[Message]) -> list[int]:
    return [message.id.offset for message in messages if message.id is not None]


@pytest.fixture
def disk() -> ForgetfulDisk:
    """Five messages in five frames, and a process that was killed."""
    disk = ForgetfulDisk()
    ps = opened(disk)
    for number in range(5):
        ps.queue("q").push(f"message {number}".encode(), dedup_key=f"key {number}")
    ps.queue("other").push(b"vouches for all before it")
    return disk.kill()


def test_damage_is_refused_and_named_until_it_is_repaired(disk):
    damage_frame(disk, b"message 2")

    with pytest.raises(Damaged, match=r"journal/0{19}1\.log.*sequence 3"):
        opened(disk)
    report = diagnose(disk, ManualClock().now()).report()
    assert [(loss.queue, loss.partition, loss.first_offset, loss.end_offset) for loss in report.losses] == [
        ("q", "0", 2, 3)
    ]
    assert report.losses[0].unsettled == {"default": 1}
    with pytest.raises(Damaged):
        opened(disk)


def test_after_a_repair_everything_but_the_lost_message_is_delivered(disk):
    damage_frame(disk, b"message 2")
    mend(disk)

    with opened(disk) as ps:
        leased = ps.queue("q").lease(10)
        assert [(d.offset, d.payload) for d in leased] == [(n, f"message {n}".encode()) for n in (0, 1, 3, 4)]
        leased.ack()
        stats = ps.queue("q").stats().groups["default"]
        assert (stats.messages, stats.acked, stats.ready, stats.dropped_by) == (5, 4, 0, {"lost": 1})


def test_reading_seeking_and_new_groups_pass_over_what_is_lost_after_any_restart(disk):
    damage_frame(disk, b"message 2")
    mend(disk)
    for _ in range(3):
        with opened(disk) as ps:
            q = ps.queue("q")
            assert offsets_of(q.read(offset=1, limit=3)) == [1, 3, 4]
            assert q.read(offset=2, limit=1)[0].payload == b"message 3"
            assert q.why("q/0/2")[0].code == "lost"
            q.seek("default", "earliest")
            assert [d.offset for d in q.lease(10)] == [0, 1, 3, 4]
            q.create_group("new")
            assert [d.offset for d in q.lease(10, group="new", start="earliest")] == [0, 1, 3, 4]
            q.delete_group("new")
            run_operation(ps._session, ops.Seal())


def test_the_offset_of_a_lost_message_is_never_used_again_though_it_was_the_last(disk):
    damage_frame(disk, b"message 4")
    report = mend(disk)

    assert [(loss.first_offset, loss.end_offset, loss.is_certain) for loss in report.losses] == [(4, 5, True)]
    with opened(disk) as ps:
        assert ps.queue("q").push(b"new").offset == 5


def test_where_a_damaged_frame_cannot_be_read_offsets_are_passed_over_rather_than_used_twice(disk):
    damage_frame(disk, b"message 4", at=8)  # the id of the queue
    report = mend(disk)

    assert [loss.is_certain for loss in report.losses if loss.queue == "q"] == [False]
    with opened(disk) as ps:
        assert ps.queue("q").push(b"new").offset > 4
        assert [d.offset for d in ps.queue("q").lease(10)][:4] == [0, 1, 2, 3]


def test_whoever_sends_a_lost_message_again_is_not_notified_that_it_is_a_duplicate(disk):
    damage_frame(disk, b"message 2")
    mend(disk)

    with opened(disk) as ps:
        q = ps.queue("q")
        assert q.push(b"message 1", dedup_key="key 1").offset == 1
        assert q.push(b"message 2", dedup_key="key 2").offset == 5


def test_history_says_which_messages_were_lost(disk, tmp_path):
    damage_frame(disk, b"message 2")
    mend(disk)
    with opened(disk) as ps:
        run_operation(ps._session, ops.Seal())

    for name in disk.list("segments/events"):
        (tmp_path / name).write_bytes(disk.read(f"segments/events/{name}"))
    events = ds.dataset(tmp_path).to_table(columns=["queue", "first_offset", "last_offset", "outcome"]).to_pylist()
    lost = {"queue": "q", "first_offset": 2, "last_offset": 2, "outcome": "lost"}
    assert [event for event in events if event["outcome"] == "lost"] == [lost]


def test_a_lost_acknowledgement_means_one_more_delivery_and_the_report_says_so():
    disk = ForgetfulDisk()
    ps = opened(disk)
    ps.queue("q").push_many([b"a", b"b"])
    ps.queue("q").lease(1, consumer="reader").ack()
    ps.queue("q").push(b"c")
    disk.kill()
    damage_frame(disk, b"reader", at=16)  # the lease
    second = ForgetfulDisk()
    second._directories, second._files = set(disk._directories), dict(disk._files)
    report = mend(second)

    assert any("may be delivered again" in note for note in report.notes)
    assert report.losses == []
    with opened(second) as ps:
        assert [d.payload for d in ps.queue("q").lease(10)] == [b"b", b"c"]  # the ack itself is sound


def test_a_queue_whose_first_frame_is_lost_keeps_its_name_and_its_other_messages(disk):
    damage_frame(disk, b"message 0")
    report = mend(disk)

    assert any("queue 'q' was created in a lost frame" in note for note in report.notes)
    with opened(disk) as ps:
        assert [d.payload for d in ps.queue("q").lease(10)] == [f"message {n}".encode() for n in range(1, 5)]


def test_a_queue_whose_name_is_lost_is_found_under_another():
    disk = ForgetfulDisk()
    ps = opened(disk)
    ps.create_queue("precious")
    ps.queue("precious").push(b"kept")
    disk.kill()
    damage_frame(disk, b"precious", at=1 + 8)
    report = mend(disk)

    with opened(disk) as ps:
        names = [name for name in ps.queues() if name != "precious"] or ps.queues()
        assert [message.payload for name in names for message in ps.queue(name).read()] == [b"kept"]
    assert report.losses == []


def test_a_dead_letter_outlives_the_message_that_it_came_from():
    disk = ForgetfulDisk()
    ps = opened(disk)
    ps.queue("q").push(b"poison")
    run_operation(ps._session, ops.Seal())
    ps.queue("q").lease()[0].reject("no good")
    run_operation(ps._session, ops.Seal())
    ps.close()
    file = f"segments/messages/{disk.list('segments/messages')[0]}"
    disk.flip(file, 8 * 100)
    mend(disk)

    with opened(disk) as ps:
        q = ps.queue("q")
        assert [letter.payload for letter in q.dlq.list()] == [b"poison"]
        assert q.stats().groups["default"].dropped_by == {"lost": 1}
        with pytest.raises(MessageNotFound):
            q.dlq.redrive()
        assert q.dlq.redrive(edit=lambda letter: letter) == 1
        assert [d.payload for d in q.lease()] == [b"poison"]


def test_a_damaged_manifest_of_no_segments_at_all_is_rebuilt(disk):
    disk.flip("segments/manifest.arrow", 8 * 100)
    with pytest.raises(Damaged):
        opened(disk)

    assert mend(disk).losses == []
    with opened(disk) as ps:
        assert len(ps.queue("q").lease(10)) == 5


def test_one_damaged_row_group_costs_the_messages_in_it_and_no_others(tmp_path):
    disk = RealDisk(tmp_path)
    ps = opened(disk, file_bytes=1 << 23)
    payload = random.Random(1).randbytes(100_000)
    for _ in range(60):
        ps.queue("q").push(payload, durability="os")
    run_operation(ps._session, ops.Seal())
    ps.close()
    files = [f"segments/messages/{name}" for name in disk.list("segments/messages")]
    largest = tmp_path / max(files, key=disk.size)
    largest.write_bytes(largest.read_bytes()[:1000] + b"!" + largest.read_bytes()[1001:])
    report = mend(disk)

    (loss,) = report.losses
    with opened(disk) as ps:
        kept = offsets_of(ps.queue("q").read(limit=100))
    assert 0 < loss.end_offset - loss.first_offset < 60
    assert kept == [n for n in range(60) if not loss.first_offset <= n < loss.end_offset]


@pytest.mark.parametrize("which", ["queue-", ""], ids=["parts of queues", "everything"])
def test_a_lost_checkpoint_is_rebuilt_from_history_with_what_groups_had_settled(which):
    disk = ForgetfulDisk()
    ps = opened(disk)
    q = ps.create_queue("q", max_attempts=1)
    q.push_many([bytes([n]) for n in range(20)])
    q.create_group("audit")
    q.lease(10).ack()
    q.lease(3, group="audit").ack()
    q.lease()[0].reject("no")
    run_operation(ps._session, ops.Seal())
    q.dlq.redrive()
    q.lease(2)[0].ack()
    run_operation(ps._session, ops.Seal())
    ps.close()
    for name in disk.list("checkpoints"):
        if which in name:
            disk._files.pop(f"checkpoints/{name}")
    report = mend(disk)

    assert report.losses == []
    assert any("set them again" in note for note in report.notes) == (which == "")
    with opened(disk) as ps:
        q = ps.queue("q")
        assert q.options().max_attempts == (1 if which else 5)
        assert q.stats().acked == 11
        assert [d.offset for d in q.lease(3, group="audit")] == [3, 4, 5]
        assert sorted(d.offset for d in q.lease(30)) == list(range(11, 20))
