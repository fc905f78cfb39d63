"""The audit log: a record in the frame of each change, a chain that tells of tampering, and retention that keeps it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from penstock import operations as ops
from penstock.batch import Batch, encode_one
from penstock.clock import ManualClock
from penstock.delivery.admin import PauseChange, decide_pause
from penstock.delivery.entries import OperationSet, Push, decode
from penstock.delivery.log import create_queue_entries
from penstock.embedded.audited import arguments_of, is_recorded
from penstock.embedded.session import Session
from penstock.errors import BadSettings, InvalidField, InvalidName, NotAuthorised, PenstockError, QueueNotFound
from penstock.model import AUDIT_QUEUE, MessageId, Outcome, QueueOptions
from penstock.model_audit import (
    GENESIS,
    Anchor,
    AuditFilter,
    AuditRecord,
    Caller,
    decode_record,
    encode_record,
    sealed,
    verify_chain,
)
from penstock.model_letters import LetterFilter
from penstock.model_tasks import BulkOptions, OperationView, ScheduleSpec, TaskFilter, TaskSubmission
from penstock.requests import LeaseRequest, PushOperation
from penstock.shard.audit import OPTIONS, Draft
from penstock.validation import settling
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut

DAY = 86_400
ANN = Caller("ann", "key", "10.0.0.7", "tcp", "shop", "req-1")
EVERYTHING = AuditFilter()


def opened(disk: ForgetfulDisk, clock: ManualClock | None = None, *, audit: bool = True) -> Session:
    return Session(
        None,
        clock=clock or ManualClock(),
        rng=random.Random(1),
        disk=disk,
        background=False,
        journal_file_bytes=1 << 16,
        audit=audit,
    )


@pytest.fixture
def session() -> Any:
    session = opened(ForgetfulDisk(1))
    yield session
    session.close()


def run(session: Session, operation: ops.Operation[Any], caller: Caller = ANN) -> Any:
    reply, ticket = session.run(operation, "", caller)
    session.confirm(ticket)
    return reply


def records(session: Session) -> list[AuditRecord]:
    return session.audit.find(EVERYTHING, 10_000)[::-1]


def frames(session: Session, first: int) -> list[list[Any]]:
    """The entries of every frame from a sequence on."""
    session.confirm(session.shard.journal.sequence)
    return [list(decode(data)) for sequence, data in session.shard.journal.replay(0) if sequence >= first]


def test_a_record_says_who_did_what_from_where(session):
    run(session, ops.CreateQueue("orders", {"max_attempts": 3}))

    (record,) = records(session)
    assert (record.who, record.credential, record.address, record.protocol) == ("ann", "key", "10.0.0.7", "tcp")
    assert (record.client, record.request_id, record.what, record.queue) == ("shop", "req-1", "create_queue", "orders")
    assert record.arguments["options"] == {"max_attempts": 3}
    assert (record.outcome, record.sequence, record.previous) == ("ok", 0, GENESIS)


def changes(session: Session) -> Iterator[ops.Operation[Any]]:
    """Every operation that needs `manage`, each in a state in which it changes something."""
    yield ops.CreateQueue("orders")
    yield ops.UpdateQueue("orders", {"max_attempts": 3})
    yield ops.Pause("orders")
    yield ops.Resume("orders")
    yield ops.CreateGroup("orders", "mail")
    yield ops.Seek("orders", "mail", "latest")
    yield ops.DeleteGroup("orders", "mail")
    for _ in range(4):
        session.push_one("orders", encode_one(b"a"))
    reply, _ = session.lease("orders", "default", LeaseRequest(4))
    session.settle_lease(reply.nonce, settling(Outcome.REJECTED))
    yield ops.Redrive("orders", LetterFilter(limit=1))
    yield ops.ReplaceLetters("orders", [MessageId("orders.dlq", "0", 1)], bytes(Batch.build([b"b"]).data))
    yield ops.PurgeDeadLetters("orders")
    yield ops.PauseNamespace("shop")
    yield ops.ResumeNamespace("shop")
    yield ops.Cancel(MessageId("orders", "0", 4))
    yield ops.Purge("orders")
    task_id = "01920000-0000-7000-8000-000000000000"
    run(session, ops.SubmitTasks([TaskSubmission(task_id=task_id, task_type="tidy", queue="chores")]))
    yield ops.CancelTask(task_id)
    yield ops.RetryTask(task_id)
    yield ops.BeginOperation("cancel", TaskFilter(queue="chores"), task_id)
    running = OperationSet("running", "cancel", b"{}", OperationSet.RUNNING, 0, 0)
    session.shard.change(lambda now: [running])  # without background roles, begun is done
    yield ops.StopOperation("running")
    waiting = OperationSet("waiting", "cancel", b"{}", OperationSet.WAITING, 0, 0)
    session.shard.change(lambda now: [waiting])
    yield ops.ContinueOperation("waiting")
    yield ops.ReplayMessages("orders")
    yield ops.RedriveLetters("orders")
    yield ops.DiscardLetters("orders")
    yield ops.SetSchedule(ScheduleSpec(name="nightly", cron="0 3 * * *", queue="orders", task_type="tidy"))
    yield ops.RunSchedule("nightly")
    yield ops.DeleteSchedule("nightly")
    yield ops.DeleteQueue("orders")


def test_the_record_is_in_the_frame_of_the_change():
    session, tried = opened(ForgetfulDisk(1)), set()
    run(session, ops.CreateQueue("first"))
    number = session.shard.core.by_name[AUDIT_QUEUE].id
    for change in changes(session):
        before = session.shard.journal.sequence
        run(session, change)

        frame, *others = frames(session, before + 1)
        pushed = [entry for entry in frame if isinstance(entry, Push) and entry.queue == number]
        assert len(frame) > len(pushed) == 1, change
        assert decode_record(Batch(bytes(pushed[0].batch)).payload(0)).what == change.spec.name
        later = [entry for frame in others for entry in frame if isinstance(entry, Push) and entry.queue == number]
        ends = [decode_record(Batch(bytes(entry.batch)).payload(0)) for entry in later]
        assert {record.what for record in ends} <= {"end_operation"}, change
        assert len(ends) == (change.spec.result is OperationView and change.spec.name != "stop_operation"), change
        tried.add(change.spec.name)
    in_files = {
        "rotate_data_key",
        "erase_data_keys",
        "compact_queue",
        *("quiet_worker", "resume_worker", "stop_worker"),
    }  # they change no journal; their record is durable before
    managing = {name for name, kind in ops.TABLE.items() if kind.spec.action is ops.Action.MANAGE}
    assert tried >= managing - in_files - {"preview_seek"}, "which changes nothing"
    session.close()


def test_what_commits_no_frame_and_what_fails_is_recorded_too(session):
    run(session, ops.CreateQueue("orders"))
    run(session, ops.CreateQueue("orders", exist_ok=True))
    run(session, ops.Compact())
    with pytest.raises(QueueNotFound):
        run(session, ops.Purge("nowhere"))

    assert [(record.what, record.outcome) for record in records(session)] == [
        ("create_queue", "ok"),
        ("create_queue", "ok"),
        ("compact", "ok"),
        ("purge", "queue_not_found"),
    ]


def test_a_change_of_time_that_comes_first_does_not_take_the_record(session):
    """Leases that ran out are ended in a frame of their own, before the operation is decided."""
    clock = session.clock
    run(session, ops.CreateQueue("orders", {"lease_seconds": 1}))
    session.confirm(session.push_one("orders", encode_one(b"a"))[1])
    session.lease("orders", "default", LeaseRequest(1))
    clock.advance(2)
    with pytest.raises(QueueNotFound):
        run(session, ops.Purge("nowhere"))

    assert [(record.what, record.outcome) for record in records(session)][1:] == [("purge", "queue_not_found")]


def test_nothing_is_recorded_unless_it_is_asked_for():
    session = opened(ForgetfulDisk(1), audit=False)
    run(session, ops.CreateQueue("orders"))
    assert AUDIT_QUEUE not in session.shard.core.by_name
    assert session.audit.find(EVERYTHING, 10) == []
    assert session.audit.verify().is_whole
    session.close()


def test_a_record_of_a_change_of_files_is_durable_before_the_file_is_replaced():
    disk = ForgetfulDisk(1)
    session = opened(disk)

    def change_file() -> tuple[int, int]:
        session.audit.record_first()
        return len(records(session)), 0

    assert session.audit.run(Draft(ANN, "create_key"), change_file)[0] == 1
    assert len(records(session)) == 1

    def cut_off() -> tuple[None, int]:
        session.audit.record_first()
        raise PowerCut

    with pytest.raises(PowerCut):
        session.audit.run(Draft(ANN, "revoke_key"), cut_off)
    session = opened(disk.crash())
    assert [record.what for record in records(session)] == ["create_key", "revoke_key"]


def test_an_operation_of_several_frames_is_recorded_in_the_first_and_its_failure_once_more(session):
    run(session, ops.CreateQueue("orders"))

    def work() -> tuple[None, int]:
        core = session.shard.core
        queue = core.by_name["orders"]
        session.shard.change(lambda now: decide_pause(core, queue, PauseChange("delivery", True), now))
        session.shard.change(lambda now: decide_pause(core, queue, PauseChange("delivery", False), now))
        raise InvalidField("later")

    with pytest.raises(InvalidField):
        session.audit.run(Draft(ANN, "redrive", "orders"), work)
    assert [(record.what, record.outcome) for record in records(session)][1:] == [
        ("redrive", "ok"),
        ("redrive", "invalid_field"),
    ]
    assert session.audit.verify().is_whole


def test_many_threads_make_one_chain(session):
    def manage(name: str) -> None:
        for _ in range(20):
            run(session, ops.CreateQueue(name))
            session.confirm(session.push_one("busy", encode_one(b"a"))[1])
            run(session, ops.DeleteQueue(name))

    threads = [threading.Thread(target=manage, args=(f"q{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = session.audit.verify()
    assert (found.count, found.problems) == (160, [])
    assert {record.outcome for record in records(session)} == {"ok"}


def steps(session: Session) -> Any:
    """Changes and what each leaves in the state."""
    for number in range(3):
        name = f"q{number}"
        run(session, ops.CreateQueue(name))
        run(session, ops.Pause(name))
        yield name
    run(session, ops.Seal())
    run(session, ops.DeleteQueue("q0"))
    session.checkpoint()
    run(session, ops.Resume("q1"))


def changes_seen(session: Session) -> tuple[set[str], set[str], set[str]]:
    """Queues that there are, that are paused, and all that the records say of them."""
    queues = {name: queue for name, queue in session.shard.core.by_name.items() if name != AUDIT_QUEUE}
    recorded: set[str] = set()
    paused: set[str] = set()
    for record in records(session):
        if record.what == "create_queue":
            recorded.add(record.queue)
        elif record.what == "delete_queue":
            recorded.discard(record.queue)
            paused.discard(record.queue)
        elif record.what == "pause":
            paused.add(record.queue)
        elif record.what == "resume":
            paused.discard(record.queue)
    assert {name for name, queue in queues.items() if queue.paused} == paused
    return set(queues), recorded, paused


def test_a_power_cut_at_any_operation_leaves_a_change_with_its_record_or_neither():
    whole = ForgetfulDisk(0)
    session = opened(whole)
    before = whole.operations
    list(steps(session))
    operations = whole.operations - before
    assert operations > 20
    for operation in range(1, operations + 1, dose(2, 1)):
        disk = ForgetfulDisk(operation)
        session = opened(disk)
        disk.crash_at(operation)
        with pytest.raises(PowerCut):
            list(steps(session))
        session = opened(disk.crash())
        queues, recorded, _ = changes_seen(session)
        assert queues == recorded, f"operation {operation}"
        assert session.audit.verify().problems == []
        run(session, ops.CreateQueue("after"))  # the chain goes on from what is left
        found = session.audit.verify()
        assert found.problems == []
        assert found.last is not None
        assert found.last.queue == "after"


def test_the_chain_goes_on_after_a_kill_and_after_a_clean_stop():
    disk = ForgetfulDisk(3)
    for number in range(4):
        session = opened(disk)
        run(session, ops.CreateQueue(f"q{number}"))
        if number % 2:
            session.close()
        else:
            disk = disk.crash()
    session = opened(disk)
    found = session.audit.verify()
    assert (found.count, found.problems) == (4, [])
    assert found.last is not None
    assert found.head == found.last.hash


# Tampering.


def chain(count: int, previous: str = GENESIS, first: int = 0) -> list[tuple[int, bytes]]:
    messages = []
    for sequence in range(first, first + count):
        record = sealed(AuditRecord(sequence=sequence, at="", who="ann", what=f"step {sequence}", previous=previous))
        previous = record.hash
        messages.append((sequence, encode_record(record)))
    return messages


def problems(messages: list[tuple[int, bytes]], anchor: Anchor = Anchor(), end: int = 10) -> list[str]:  # noqa: B008
    start = messages[0][0] if messages else end
    return verify_chain(messages, start, end, anchor).problems


def test_a_whole_chain_has_no_problems():
    found = verify_chain(chain(10), 0, 10, Anchor())
    assert (found.count, found.problems) == (10, [])
    assert found.first is not None
    assert found.first.what == "step 0"
    assert problems([], end=0) == []


def test_a_changed_record_is_named():
    for offset in range(10):
        messages = chain(10)
        messages[offset] = (offset, messages[offset][1].replace(b'"ann"', b'"bob"'))
        assert problems(messages) == [f"record {offset} was changed: its hash does not match"]


def test_a_changed_record_with_a_new_hash_breaks_the_chain():
    messages = chain(10)
    forged = msgspec.structs.replace(decode_record(messages[4][1]), who="bob")
    messages[4] = (4, encode_record(sealed(forged)))
    assert problems(messages) == ["record 5 does not follow the one before it: the chain is broken"]


def test_a_record_that_cannot_be_read_is_named():
    messages = chain(10)
    messages[4] = (4, b"nothing")
    assert problems(messages)[0].startswith("record 4 was changed")


def test_missing_records_are_named():
    messages = chain(10)
    assert problems(messages[:3] + messages[5:])[0] == "records 3 to 4 are missing"
    assert problems(messages[:8]) == ["records 8 to 9 are missing"]
    assert problems(messages[2:])[0] == "records 0 to 1 are missing"
    assert problems([]) == ["records 0 to 9 are missing"]


def test_records_in_another_order_are_named():
    messages = [payload for _, payload in chain(10)]
    messages[3], messages[4] = messages[4], messages[3]
    assert "record 3 was moved: it was written as number 4" in problems(list(enumerate(messages)))


def test_an_anchor_stands_for_what_retention_has_removed():
    messages = chain(10)
    anchor = Anchor(3, decode_record(messages[3][1]).hash)
    assert problems(messages[4:], anchor) == []
    assert problems(messages[2:], anchor) == []  # a crash came between the anchor and the removal
    assert problems(messages[6:], anchor)[0] == "records 4 to 5 are missing"
    assert problems([], anchor, end=4) == []


def test_an_anchor_of_another_chain_is_noticed():
    messages = chain(10)
    anchor = Anchor(3, "f" * 64)
    assert problems(messages[4:], anchor) == ["record 4 does not follow the one before it: the chain is broken"]
    assert problems(messages[2:], anchor) == ["record 3 is not the one recorded in the anchor"]
    assert problems(messages[:2], Anchor(3, "f" * 64), end=2) == ["records 2 to 3 are missing"]


# Retention.


def fill(session: Session, count: int) -> None:
    for _ in range(count):
        run(session, ops.Pause("orders"))


def test_retention_keeps_an_anchor_and_the_chain_can_be_verified():
    disk, clock = ForgetfulDisk(5), ManualClock()
    session = opened(disk, clock)
    run(session, ops.CreateQueue("orders"))
    run(session, ops.UpdateQueue(AUDIT_QUEUE, {"retention_seconds": 2 * DAY}))
    fill(session, 30)
    run(session, ops.Seal())
    clock.advance(3 * DAY)
    fill(session, 5)
    run(session, ops.Compact())

    first = session.shard.core.by_name[AUDIT_QUEUE].partitions[0].start
    assert first > 30
    found = session.audit.verify()
    assert (found.problems, session.audit.anchor.offset) == ([], first - 1)
    session = opened(disk.crash(), clock)
    assert session.audit.verify().problems == []
    fill(session, 1)
    assert session.audit.verify().problems == []


def test_a_start_that_moved_without_an_anchor_is_tampering():
    disk, clock = ForgetfulDisk(5), ManualClock()
    session = opened(disk, clock)
    run(session, ops.CreateQueue("orders"))
    run(session, ops.UpdateQueue(AUDIT_QUEUE, {"retention_seconds": 2 * DAY}))
    fill(session, 30)
    run(session, ops.Seal())
    clock.advance(3 * DAY)
    assert session.keeper is not None
    session.keeper.before_audit_removal = lambda start: None
    fill(session, 1)
    run(session, ops.Compact())
    assert "are missing" in session.audit.verify().problems[0]


def test_a_crash_anywhere_in_retention_leaves_a_chain_that_verifies():
    def prepared(seed: int) -> tuple[ForgetfulDisk, ManualClock, Session]:
        disk, clock = ForgetfulDisk(seed), ManualClock()
        session = opened(disk, clock)
        run(session, ops.CreateQueue("orders"))
        run(session, ops.UpdateQueue(AUDIT_QUEUE, {"retention_seconds": 2 * DAY}))
        fill(session, 10)
        run(session, ops.Seal())
        clock.advance(3 * DAY)
        return disk, clock, session

    disk, _, session = prepared(0)
    before = disk.operations
    run(session, ops.Compact())
    for operation in range(1, disk.operations - before + 1):
        disk, clock, session = prepared(operation)
        disk.crash_at(operation)
        with pytest.raises(PowerCut):
            run(session, ops.Compact())
        session = opened(disk.crash(), clock)
        assert session.audit.verify().problems == [], f"operation {operation}"


# The queue itself.


def test_reserved_names_are_refused_wherever_a_queue_would_be_made(session):
    with pytest.raises(InvalidName, match="reserved"):
        run(session, ops.CreateQueue("penstock.mine"))
    with pytest.raises(InvalidName, match="reserved"):
        session.push_one("penstock.mine", encode_one(b"a"))
    with pytest.raises(InvalidName, match="reserved"):
        session.transact([PushOperation("penstock.mine", Batch.build([b"a"]))])
    with pytest.raises(NotAuthorised):
        session.push_one(AUDIT_QUEUE, encode_one(b"a"))
    assert "penstock.mine" not in session.shard.core.by_name


def made_before(session: Session, name: str) -> None:
    """A queue from a time when its name was not reserved."""
    core = session.shard.core
    session.shard.change(lambda now: create_queue_entries(core.queue_id_next, name, QueueOptions(), ["0"], now))


def test_existing_queues_with_reserved_names_keep_working(session):
    made_before(session, "penstock.mine")
    session.confirm(session.push_one("penstock.mine", encode_one(b"a"))[1])
    assert session.lease("penstock.mine", "default", LeaseRequest(1))[0].count == 1
    run(session, ops.Purge("penstock.mine"))
    run(session, ops.DeleteQueue("penstock.mine"))


EXAMPLES: dict[str, Any] = {
    "queue": AUDIT_QUEUE,
    "group": "default",
    "id": MessageId(AUDIT_QUEUE, "0", 0),
    "ids": [MessageId(AUDIT_QUEUE + ".dlq", "0", 0)],
    "batch": bytes(Batch.build([b"forged"]).data),
    "changes": {"ttl_seconds": 1},
    "options": {"ttl_seconds": 1},
    "to": "latest",
    "schedule": ScheduleSpec(name="nightly", cron="* * * * *", queue=AUDIT_QUEUE, task_type="forge"),
    "name": "forged",
    "names": ["forged"],
    "sink": "forged",
    "data": b"forged",
}
REFUSED = {
    *("create_queue", "update_queue", "delete_queue", "pause", "resume", "purge", "cancel", "replace_letters"),
    *("redrive_letters", "discard_letters", "replay_messages"),
}


def operations_on_the_log() -> list[ops.Operation[Any]]:
    """Every operation of the table that can be given a queue, made for the audit log."""
    made = []
    for kind in ops.TABLE.values():
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        arguments = {
            name: 1 if field.type is int else EXAMPLES[name]
            for name, field in fields.items()
            if field.type is int or (name in EXAMPLES and field.default != BulkOptions())
        }
        required = {name for name, field in fields.items() if field.required}
        if required <= arguments.keys():
            operation = kind(**arguments)
            if AUDIT_QUEUE in operation.queues():
                made.append(operation)
    return made


def test_no_operation_changes_the_log():
    session, refused = opened(ForgetfulDisk(1)), set()
    run(session, ops.CreateQueue("orders"))
    tried = operations_on_the_log()
    assert len(tried) > 15
    for operation in tried:
        before = records(session)
        try:
            run(session, operation)
        except PenstockError:
            refused.add(operation.spec.name)
        assert records(session)[: len(before)] == before, operation
        assert session.shard.core.by_name[AUDIT_QUEUE].options == OPTIONS, operation
        assert not session.shard.core.by_name[AUDIT_QUEUE].paused, operation
        assert session.audit.verify().is_whole, operation
    assert refused >= REFUSED
    assert "set_schedule" in refused
    session.close()


def test_only_retention_can_be_changed_and_it_cannot_empty_the_log(session):
    run(session, ops.CreateQueue("orders"))
    run(session, ops.UpdateQueue(AUDIT_QUEUE, {"retention_seconds": 30 * DAY, "retention_bytes": 1 << 30}))
    assert session.shard.core.by_name[AUDIT_QUEUE].options.retention_seconds == 30 * DAY
    for changes in ({"retention_seconds": 0}, {"retention_bytes": 0}):
        with pytest.raises(InvalidField, match="would empty"):
            run(session, ops.UpdateQueue(AUDIT_QUEUE, changes))
    with pytest.raises(NotAuthorised):
        run(session, ops.UpdateQueue(AUDIT_QUEUE, {"retention_messages": 0}))


def test_the_log_can_be_leased_and_settled_like_any_queue(session):
    run(session, ops.CreateQueue("orders"))
    reply, _ = session.lease(AUDIT_QUEUE, "default", LeaseRequest(10))
    assert reply.count == 1
    assert len(records(session)) == 1


def test_a_queue_of_that_name_from_before_becomes_the_log_behind_its_messages():
    disk = ForgetfulDisk(1)
    session = opened(disk)
    made_before(session, AUDIT_QUEUE)
    old = Batch.build([b"theirs", b"too"])
    session.shard.change(lambda now: [Push(session.shard.core.by_name[AUDIT_QUEUE].id, now, [(0, 2, 0)], old.data)])
    run(session, ops.CreateQueue("orders"))
    for _ in range(2):
        assert session.audit.verify().problems == []
        assert [record.what for record in records(session)] == ["create_queue"]
        session = opened(disk.crash())


# What is kept of arguments.


def test_neither_payloads_nor_secrets_are_recorded():
    canary, secret = "canary-7431", b'{"a": "canary-7431"}'
    spec = ScheduleSpec(
        name="nightly", cron="0 3 * * *", queue="orders", task_type="tidy", args=b"[" + secret + b"]", kwargs=secret
    )
    for operation in (
        ops.SetSchedule(spec),
        ops.ReplaceLetters("orders", [MessageId("orders.dlq", "0", 1)], bytes(Batch.build([canary.encode()]).data)),
    ):
        assert is_recorded(operation)
        shown = msgspec.json.encode(arguments_of(operation)).decode()
        assert canary not in shown
    assert "nightly" in msgspec.json.encode(arguments_of(ops.SetSchedule(spec))).decode()


def test_a_record_stays_small_whatever_it_is_about():
    many = [MessageId("orders.dlq", "0", number) for number in range(100_000)]
    operation = ops.ReplaceLetters("orders", many, b"x" * 1_000_000)
    assert len(msgspec.json.encode(arguments_of(operation))) < 4_000


def test_records_are_found_newest_first_by_who_what_outcome_and_time(session):
    run(session, ops.CreateQueue("a"))
    session.clock.advance(60)
    since = session.clock.now()
    run(session, ops.CreateQueue("b"), Caller("bob"))
    with pytest.raises(QueueNotFound):
        run(session, ops.Purge("nowhere"), Caller("bob"))

    def found(**filter: Any) -> list[tuple[str, str]]:
        return [(record.what, record.queue) for record in session.audit.find(AuditFilter(**filter), 10)]

    assert found() == [("purge", "nowhere"), ("create_queue", "b"), ("create_queue", "a")]
    assert found(who="bob", outcome="ok") == [("create_queue", "b")]
    assert found(outcome="failed") == found(outcome="queue_not_found") == found(what="purge") == [("purge", "nowhere")]
    assert found(since=since) == [("purge", "nowhere"), ("create_queue", "b")]
    assert len(session.audit.find(EVERYTHING, 2)) == 2


def access_of(session: Session) -> set[str]:
    """Users that are there, and those whose making is recorded."""
    return set(session.access.document.principals)


def access_recorded(session: Session) -> set[str]:
    records = session.audit.find(EVERYTHING, 1000)
    return {record.arguments.get("target") or record.arguments["name"] for record in records if "user" in record.what}


def change_access(session: Session) -> None:
    for number in range(3):
        session.access.set_user(f"direct-{number}", grants=["viewer"])
        run(session, ops.SetUser(f"asked-{number}", grants=["viewer"], password="canary-password"))


def test_a_power_cut_never_leaves_a_change_of_access_without_its_record():
    whole = ForgetfulDisk(0)
    session = opened(whole)
    before = whole.operations
    change_access(session)
    operations = whole.operations - before
    assert len(access_of(session)) == 6
    for operation in range(1, operations + 1):
        disk = ForgetfulDisk(operation)
        session = opened(disk)
        disk.crash_at(operation)
        with pytest.raises(PowerCut):
            change_access(session)
        session = opened(disk.crash())
        assert access_of(session) <= access_recorded(session), f"operation {operation}"
        assert session.audit.verify().problems == []


def test_a_password_is_not_in_the_record_of_its_change(session):
    change_access(session)

    records = msgspec.json.encode(session.audit.find(EVERYTHING, 1000))
    assert b"asked-0" in records
    assert b"direct-0" in records
    assert b"canary-password" not in records


def test_a_queue_of_several_partitions_in_the_place_of_the_log_is_refused_at_the_start_and_can_be_deleted():
    disk = ForgetfulDisk(1)
    session = opened(disk, audit=False)
    entries = create_queue_entries(
        session.shard.core.queue_id_next, AUDIT_QUEUE, QueueOptions(partitions=2), ["0", "1"], 0
    )
    session.shard.confirm(session.shard.change(lambda now: entries))
    session.close()

    with pytest.raises(BadSettings, match="your own queue with several partitions"):
        opened(disk)
    session = opened(disk, audit=False)  # what the hint says
    run(session, ops.DeleteQueue(AUDIT_QUEUE))
    session.close()

    session = opened(disk)
    run(session, ops.CreateQueue("orders"))
    assert session.audit.verify().is_whole
