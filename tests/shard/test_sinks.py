"""Sinks: a batch that is committed again is stored once, whatever happens in between."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import structs

from penstock import Message, limits
from penstock import operations as ops
from penstock.batch import Batch
from penstock.clock import ManualClock
from penstock.delivery.entries import SinkCommitted, decode
from penstock.delivery.sinks import Sinks
from penstock.delivery.snapshot import encode_part, restore_sinks, take_sinks
from penstock.embedded.session import Session
from penstock.errors import (
    BadBatch,
    InvalidField,
    InvalidName,
    QueueFull,
    QueueNotFound,
    RateLimited,
    SinkConflict,
    StorageError,
    TooLarge,
)
from penstock.repair.directory import diagnose
from penstock.replies import SinkState
from penstock.requests import SinkCommit
from penstock.shard import sink_commit
from penstock.storage.staging import decode_staged, encode_staged, name_for
from tests.support.accounts import assert_accounts
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.operations import keep_house, run_operation
from tests.support.sinks import committed, opened, payloads, staged, staged_files

DAY = 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def session(clock: ManualClock) -> Session:
    return opened(ForgetfulDisk(), clock)


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of the tests fit one frame."""
    monkeypatch.setattr(sink_commit, "ROOM_BYTES", 200)


def step(session: Session, batch: int, names: tuple[str, ...], **more: Any) -> SinkState:
    state, ticket = run_operation(session, ops.CommitSink(**structs.asdict(SinkCommit("q", "s", batch, names, **more))))
    session.confirm(ticket)
    assert isinstance(state, SinkState)
    return state


def sink_frames(session: Session) -> list[list[SinkCommitted]]:
    """The commits in each frame of the journal that has one."""
    frames = [list(decode(data)) for _, data in session.shard.journal.replay(0)]
    found = [[each for each in entries if isinstance(each, SinkCommitted)] for entries in frames]
    return [each for each in found if each]


def test_a_batch_goes_in_whole_with_its_number_in_one_frame(session):
    names = staged(session, [b"a", b"b"], [b"c"])

    assert step(session, 0, names) == SinkState(0)

    assert payloads(session) == Counter([b"a", b"b", b"c"])
    assert [len(each) for each in sink_frames(session)] == [1]
    assert staged_files(session) == []
    assert run_operation(session, ops.GetSinkState("q", "s"))[0] == SinkState(0)


def test_a_batch_that_is_committed_again_is_not_stored_again_and_its_files_go(session):
    committed(session, 0, staged(session, [b"a"]))
    committed(session, 1, staged(session, [b"b"]))

    again = staged(session, [b"b"], [b"other order"])
    assert step(session, 1, again) == SinkState(1)

    assert payloads(session) == Counter([b"a", b"b"])
    assert staged_files(session) == []


def test_the_first_batch_may_come_again_like_any_other(session):
    committed(session, 0, staged(session, [b"a"]))

    assert step(session, 0, staged(session, [b"a"])) == SinkState(0)

    assert payloads(session) == Counter([b"a"])


def test_an_empty_batch_counts_and_makes_the_queue(session):
    assert step(session, 0, ()) == SinkState(0)
    assert step(session, 0, staged(session, [b"late"])) == SinkState(0)

    assert payloads(session) == Counter()
    assert run_operation(session, ops.Queues())[0] == ["q"]


def test_keys_partitions_priorities_delays_and_headers_are_those_of_an_ordinary_push(session):
    run_operation(session, ops.CreateQueue("q", {"partitions": 4}, exist_ok=False))
    items = [Message(payload=b"%d" % n, key=f"k{n}", headers={"n": str(n)}, priority=n) for n in range(50)]
    run_operation(session, ops.CreateQueue("same", {"partitions": 4}, exist_ok=False))
    session.push("same", Batch.build(items), None, None)

    committed(
        session,
        0,
        staged(session, items, [Message(payload=b"here", partition=2), Message(payload=b"there", partition="3")]),
    )

    for number in range(4):
        ours = run_operation(session, ops.Read("q", number, None, None, 100))[0]
        theirs = run_operation(session, ops.Read("same", number, None, None, 100))[0]
        kept = [m for m in ours if m.payload not in (b"here", b"there")]
        assert [(m.payload, m.key, m.headers, m.priority) for m in kept] == [
            (m.payload, m.key, m.headers, m.priority) for m in theirs
        ]
    assert run_operation(session, ops.Read("q", 2, None, None, 100))[0][-1].payload == b"here"
    assert run_operation(session, ops.Read("q", 3, None, None, 100))[0][-1].payload == b"there"


def test_a_dedup_key_that_is_known_is_not_stored_again(session):
    session.push("q", Batch.build([Message(payload=b"a", dedup_key="1")]), None, None)

    committed(
        session, 0, staged(session, [Message(payload=b"b", dedup_key="1")], [Message(payload=b"c", dedup_key="2")])
    )

    assert payloads(session) == Counter([b"a", b"c"])


def test_a_full_queue_or_a_rate_refuses_the_batch_and_nothing_has_happened(session, clock):
    run_operation(session, ops.CreateQueue("q", {"max_length": 2, "overflow": "reject_new"}, exist_ok=False))
    names = staged(session, [b"a", b"b", b"c"])
    with pytest.raises(QueueFull):
        step(session, 0, names)
    run_operation(session, ops.UpdateQueue("q", {"max_length": None, "push_per_second": 1.0, "push_burst": 3}))
    committed(session, 0, names)
    more = staged(session, [b"d"])
    with pytest.raises(RateLimited):
        step(session, 1, more)
    clock.advance(5)

    committed(session, 1, more)

    assert payloads(session) == Counter([b"a", b"b", b"c", b"d"])


def test_a_consumer_that_waits_is_woken(session):
    run_operation(session, ops.CreateQueue("q", {}, exist_ok=False))
    woken: list[bool] = []
    session.watch("q", lambda: woken.append(True))

    committed(session, 0, staged(session, [b"a"]))

    assert woken


# batches over several frames


@pytest.mark.usefixtures("small_frames")
def test_a_large_batch_goes_in_over_several_frames_that_say_how_far_it_is(session):
    names = staged(session, *[[b"%d" % n] for n in range(5)])

    states = [step(session, 3, names) for _ in range(3)]

    assert states == [SinkState(-1, 2, 5), SinkState(-1, 4, 5), SinkState(3)]
    assert [[(each.done, len(each.staged)) for each in frame] for frame in sink_frames(session)] == [
        [(2, 5)],
        [(4, 5)],
        [(5, 5)],
    ]
    assert payloads(session) == Counter(b"%d" % n for n in range(5))
    assert staged_files(session) == []


@pytest.mark.usefixtures("small_frames")
def test_who_comes_again_goes_on_with_the_files_that_were_staged_first(session, clock):
    committed(session, 0, staged(session, [b"before"]))
    first = staged(session, *[[b"%d" % n] for n in range(5)])
    step(session, 1, first)
    session._disk.kill()
    session = opened(session._disk, clock, 2)

    second = staged(session, [b"4", b"3", b"2"], [b"1", b"0"])
    run_operation(session, ops.DiscardStaged("q", [*first]))  # needed: nothing happens
    committed(session, 1, second)

    assert payloads(session) == Counter([b"before", *(b"%d" % n for n in range(5))])
    assert staged_files(session) == []
    assert_accounts(session.shard)


@pytest.mark.usefixtures("small_frames")
def test_an_unfinished_batch_is_finished_before_the_next(session):
    step(session, 1, staged(session, *[[b"%d" % n] for n in range(5)]))

    committed(session, 2, staged(session, [b"next"]))

    assert payloads(session) == Counter([b"next", *(b"%d" % n for n in range(5))])
    assert staged_files(session) == []


@pytest.mark.usefixtures("small_frames")
def test_two_that_commit_the_same_batch_at_once_store_it_once(tmp_path):
    session = Session(tmp_path)
    ways = [staged(session, *[[b"%d" % n] for n in range(20)]) for _ in range(4)]
    ready = threading.Barrier(4)

    def commit(names: tuple[str, ...]) -> SinkState:
        ready.wait()
        return committed(session, 1, names)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(commit, ways)) == [SinkState(1)] * 4

    assert payloads(session) == Counter(b"%d" % n for n in range(20))
    assert staged_files(session) == []
    session.close()


@pytest.mark.usefixtures("small_frames")
def test_files_of_an_unfinished_batch_that_are_gone_are_named_and_a_reset_starts_over(session):
    names = staged(session, *[[b"%d" % n] for n in range(5)])
    step(session, 1, names)
    session.staging.remove(names[3:])
    with pytest.raises(StorageError, match=f"batch 1: the staged file .*{names[3]} is gone.*resetSink"):
        committed(session, 1, staged(session, [b"x"]))

    committed(session, 0, staged(session, [b"anew"]), is_reset=True)

    assert run_operation(session, ops.GetSinkState("q", "s"))[0] == SinkState(0)
    assert payloads(session)[b"anew"] == 1


# crashes


def life(session: Session) -> None:
    """Three batches, the second over several frames, with housework in between."""
    for batch, count in ((1, 1), (2, 5), (3, 2)):
        lines = [[b"%d-%d" % (batch, n)] for n in range(count)]
        names = staged(session, *lines)
        wanted = SinkCommit("q", "s", batch, names)
        while True:
            state, ticket = run_operation(session, ops.CommitSink(**structs.asdict(wanted)))
            session.confirm(ticket)
            if batch == 2 and state.done == 4:
                session.checkpoint()
                run_operation(session, ops.Seal())
            if state.batch >= batch:
                break


EXPECTED = Counter([b"1-0", *(b"2-%d" % n for n in range(5)), b"3-0", b"3-1"])


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize("share", range(dose(1, 4)))
def test_a_power_cut_at_any_operation_of_the_disk_leaves_neither_gap_nor_duplicate(share):
    disk = ForgetfulDisk(0)
    session = opened(disk, ManualClock())
    before = disk.operations
    life(session)
    operations = disk.operations - before
    assert payloads(session) == EXPECTED
    assert operations > 60

    for operation in range(1, operations + 1):
        clock, disk = ManualClock(), ForgetfulDisk(operation + 1000 * share)
        session = opened(disk, clock)
        disk.crash_at(operation)
        with pytest.raises(PowerCut):
            life(session)
        session = opened(disk.crash(), clock, 2)
        life(session)  # like a query after a restart, only that this one replays everything
        assert payloads(session) == EXPECTED, f"operation {operation}"
        assert_accounts(session.shard)
        after = session._disk
        assert isinstance(after, ForgetfulDisk)
        after.kill()
        session = opened(after, clock, 3)
        assert payloads(session) == EXPECTED, f"operation {operation}, opened again"
        assert run_operation(session, ops.GetSinkState("q", "s"))[0] == SinkState(3)


@pytest.mark.parametrize("housework", ["checkpoint", "seal", "close"])
def test_what_sinks_have_committed_survives_housework_and_a_restart(session, clock, housework):
    committed(session, 0, staged(session, [b"a"]), origin="query")
    committed(session, 7, staged(session, [b"b"]), origin="query")
    keep_house(session, housework)
    session._disk.kill()
    session = opened(session._disk, clock, 2)
    committed(session, 8, staged(session, [b"c"]))
    session._disk.kill()

    session = opened(session._disk, clock, 3)

    assert run_operation(session, ops.GetSinkState("q", "s"))[0] == SinkState(8)
    committed(session, 7, staged(session, [b"b"]))
    assert payloads(session) == Counter([b"a", b"b", b"c"])


def test_a_repair_goes_on_without_a_damaged_part_and_says_so(session, clock):
    committed(session, 0, staged(session, [b"a"]))
    session.close()
    disk = session._disk.kill()
    (part,) = (name for name in disk.list("checkpoints") if name.startswith("sinks"))
    disk.flip(f"checkpoints/{part}", 12)

    diagnosis = diagnose(disk, clock.now())

    assert any("sinks committed before the last checkpoint" in note for note in diagnosis.report().notes)


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize("seed", range(dose(20, 500)))
def test_any_history_of_commits_replays_and_restarts_stores_each_batch_once(seed):
    rng, clock = random.Random(seed), ManualClock()
    session = opened(ForgetfulDisk(seed), clock)
    expected: Counter[bytes] = Counter()
    for batch in range(1, 12):
        rows = [b"%d-%d" % (batch, row) for row in range(rng.randint(0, 6))]
        expected.update(rows)
        is_in = False
        while not is_in or rng.random() < 0.3:  # like a query that does not know whether it was in
            rng.shuffle(rows)
            cut = rng.randint(0, len(rows))
            names = staged(session, *[each for each in (rows[:cut], *([row] for row in rows[cut:])) if each])
            for _ in range(rng.randint(1, 8)):
                is_in = step(session, batch, names).batch >= batch
                if rng.random() < 0.2:
                    keep_house(session, rng.choice(["checkpoint", "seal"]))
            if rng.random() < 0.3:
                disk = session._disk
                assert isinstance(disk, ForgetfulDisk)
                session = opened(disk.crash() if rng.random() < 0.5 else disk.kill(), clock, batch)

    assert payloads(session) == expected
    assert_accounts(session.shard)


# who counts


def test_a_sink_of_another_query_is_refused_unless_it_is_reset(session):
    committed(session, 4, staged(session, [b"a"]), origin="one")
    with pytest.raises(SinkConflict, match="another query has used it up to batch 4"):
        step(session, 0, (), origin="two")
    with pytest.raises(SinkConflict, match="it is at batch 4, and this is batch 0"):
        step(session, 0, ())

    committed(session, 0, staged(session, [b"b"]), origin="two", is_reset=True)
    committed(session, 0, staged(session, [b"b"]), origin="two", is_reset=True)

    assert payloads(session) == Counter([b"a", b"b"])


def test_the_same_name_in_another_queue_is_another_sink_across_checkpoints_too(session):
    committed(session, 4, staged(session, [b"a"]))
    theirs = staged(session, [b"theirs"], queue="other")
    committed(session, 5, staged(session, [b"b"]))  # which sweeps what its own attempts have left
    committed(session, 0, theirs, queue="other")
    restored = Sinks()
    restore_sinks(restored, encode_part(take_sinks(session.shard.core.sinks, 7)))

    assert run_operation(session, ops.GetSinkState("q", "s"))[0] == SinkState(5)
    assert run_operation(session, ops.GetSinkState("other", "s"))[0] == SinkState(0)
    assert run_operation(session, ops.GetSinkState("nowhere", "s"))[0] == SinkState()
    assert restored.known == session.shard.core.sinks.known


def test_a_sink_whose_queue_was_deleted_goes_on_in_the_new_one(session):
    committed(session, 0, staged(session, [b"a"]))
    run_operation(session, ops.DeleteQueue("q"))

    committed(session, 1, staged(session, [b"b"]))

    assert payloads(session) == Counter([b"b"])


def test_a_sink_that_is_used_once_is_forgotten_after_a_day_and_others_are_not(session, clock):
    committed(session, 0, (), sink="once", is_once=True)
    committed(session, 0, (), sink="often")
    clock.advance(DAY + 1)
    committed(session, 0, (), sink="new")

    assert {name for _, name in session.shard.core.sinks.known} == {"often", "new"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"queue": "no name"}, InvalidName, "queue"),
        ({"sink": ""}, InvalidField, "sink: the name is empty"),
        ({"sink": "x" * 257}, InvalidField, "sink: 257 bytes is over the limit of 256"),
        ({"batch": -1}, InvalidField, "batch: -1"),
        ({"staged": ("../../etc/passwd",)}, InvalidField, "not the name of a staged file"),
        ({"staged": (name_for("q", "s", 0, 0, bytes(10)),)}, StorageError, "is gone.*stage the batch again"),
        ({"staged": (name_for("q", "s", 0, 0, bytes(10)),) * 2}, InvalidField, "appears twice"),
    ],
)
def test_a_commit_that_makes_no_sense_is_refused(session, change, error, message):
    with pytest.raises(error, match=message):
        run_operation(
            session, ops.CommitSink(**structs.asdict(SinkCommit(**{"queue": "q", "sink": "s", "batch": 0, **change})))
        )

    assert run_operation(session, ops.Queues())[0] == []


# staged files


def test_a_file_is_staged_by_position_and_the_same_bytes_again_do_no_harm(session):
    run_operation(session, ops.CreateQueue("q", {}, exist_ok=True))
    data = b"".join(encode_staged(Batch.build([b"a", b"b"])))
    name = name_for("q", "s", 1, 0, bytes(10))
    for _ in range(2):
        run_operation(session, ops.Stage("q", name, 40, data[40:]))
        run_operation(session, ops.Stage("q", name, 0, data[:40]))

    committed(session, 0, (name,))

    assert payloads(session) == Counter([b"a", b"b"])


@pytest.mark.parametrize("name", ["x", "../journal/reserve", "0" * 16 + "-1-" + "0" * 31, "A" * 16 + "-1-" + "0" * 32])
def test_a_name_that_leads_elsewhere_is_refused(session, name):
    run_operation(session, ops.CreateQueue("q", {}, exist_ok=True))
    with pytest.raises(InvalidField, match="not the name of a staged file"):
        run_operation(session, ops.Stage("q", name, 0, b""))
    with pytest.raises(InvalidField, match="not the name of a staged file"):
        run_operation(session, ops.DiscardStaged("q", [name]))


def test_a_file_that_is_too_large_or_not_sound_is_refused(session):
    run_operation(session, ops.CreateQueue("q", {}, exist_ok=True))
    name = name_for("q", "s", 1, 0, bytes(10))
    with pytest.raises(InvalidField, match="position"):
        run_operation(session, ops.Stage("q", name, 24 << 20, b"x"))
    data = bytearray(b"".join(encode_staged(Batch.build([Message(payload=b"a", partition="1")]))))
    for position in range(len(data)):
        data[position] ^= 1
        with pytest.raises(BadBatch):
            decode_staged(bytes(data))
        data[position] ^= 1
    run_operation(session, ops.Stage("q", name, 0, bytes(data)[:-1]))
    with pytest.raises(BadBatch, match=f"staged file {name}"):
        step(session, 0, (name,))


def test_nothing_is_staged_for_a_queue_that_is_not_there(session):
    with pytest.raises(QueueNotFound, match="there is no queue 'q'"):
        run_operation(session, ops.Stage("q", name_for("q", "s", 1, 0, bytes(10)), 0, b"x"))

    assert staged_files(session) == []


def test_all_staged_files_together_are_bounded_and_room_comes_back(session, monkeypatch):
    monkeypatch.setattr(limits, "staged_files_total_max", 3)
    monkeypatch.setattr(limits, "staged_bytes_total_max", 100)
    run_operation(session, ops.CreateQueue("q", {}, exist_ok=True))
    names = [name_for("q", "s", number, 0, bytes(10)) for number in range(4)]

    run_operation(session, ops.Stage("q", names[0], 0, bytes(90)))
    run_operation(session, ops.Stage("q", names[0], 0, bytes(90)))  # the same again takes no room
    for position, data in ((0, bytes(11)), (24 << 19, b"x")):
        with pytest.raises(TooLarge, match=r"staged: over 3 files or 100 bytes"):
            run_operation(session, ops.Stage("q", names[1], position, data))
    run_operation(session, ops.Stage("q", names[1], 0, b"x"))
    run_operation(session, ops.Stage("q", names[2], 0, b"x"))
    with pytest.raises(TooLarge):
        run_operation(session, ops.Stage("q", names[3], 0, b""))
    run_operation(session, ops.DiscardStaged("q", [names[0]]))
    run_operation(session, ops.Stage("q", names[3], 0, bytes(98)))

    assert sorted(staged_files(session)) == sorted(names[1:])


def test_old_files_are_removed_but_for_those_that_an_unfinished_batch_needs(session, clock, monkeypatch):
    monkeypatch.setattr(sink_commit, "ROOM_BYTES", 200)
    needed = staged(session, *[[b"%d" % n] for n in range(5)], at=clock.now())
    step(session, 0, needed)
    orphans = staged(session, [b"x"], at=clock.now())
    assert session.keeper.sweep_staged() == 0
    clock.advance(DAY + 1)
    fresh = staged(session, [b"y"], at=clock.now())

    assert session.keeper.sweep_staged() == 1

    assert set(staged_files(session)) == {*needed, *fresh}
    assert not {*orphans} & {*staged_files(session)}


@pytest.mark.parametrize("is_in", [False, True], ids=["first", "again"])
def test_a_commit_removes_what_attempts_of_its_sink_before_it_have_left(session, clock, is_in):
    if is_in:
        committed(session, 0, staged(session, [b"a"], at=clock.now()))
    left = staged(session, [b"x"], [b"y"], at=clock.now())
    others = staged(session, [b"o"], sink="another", at=clock.now())
    clock.advance(1)
    names = staged(session, [b"a"], at=clock.now())
    clock.advance(1)
    ahead = staged(session, [b"b"], at=clock.now())

    committed(session, 0, names)

    assert payloads(session) == Counter([b"a"])
    assert set(staged_files(session)) == {*others, *ahead}
    assert not {*left} & {*staged_files(session)}


def test_a_commit_leaves_what_is_to_be_committed_next(session, clock, small_frames):
    late = staged(session, [b"9"], at=clock.now())  # by a clock that is slow
    clock.advance(1)
    step(session, 0, staged(session, *[[b"%d" % n] for n in range(5)], at=clock.now()))

    committed(session, 1, late)

    assert payloads(session) == Counter([*(b"%d" % n for n in range(5)), b"9"])
    assert not staged_files(session)


def test_nothing_can_be_staged_in_memory(clock):
    session = Session(None, clock=clock, background=False)

    with pytest.raises(StorageError, match="in memory"):
        staged(session, [b"a"])
