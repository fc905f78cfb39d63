"""The audit log of a broker: who asks, what is denied, and no more of it than fits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import operations as ops
from penstock.access.grants import Principal, parse_grants
from penstock.broker.access import Client
from penstock.broker.audit import LINES_MAX, OTHERS, WINDOW_US, Lines
from penstock.broker.broker import Broker
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.errors import NotAuthorised, QueueNotFound, TaskNotFound
from penstock.model import AUDIT_QUEUE
from penstock.model_audit import AuditFilter, AuditRecord, Caller
from penstock.operations.base import Action
from penstock.shard.audit import Draft
from penstock.telemetry.logs import context
from tests.support.broker_loop import on_uvloop

ANN = Client(Principal("ann", parse_grants(["owner"]), credential="key"), "shop", "10.0.0.7", "http")
BOB = Client(Principal("bob", parse_grants(["viewer"]), credential="jwt"), "", "10.0.0.8", "tcp")


async def audited(audit: bool = True) -> tuple[Broker, ManualClock]:
    clock = ManualClock()
    return Broker(Session(None, audit=audit, clock=clock, background=False)), clock


def records(broker: Broker, **filter: Any) -> list[AuditRecord]:
    return broker.session.audit.find(AuditFilter(**filter), 10_000)[::-1]


async def close(broker: Broker) -> None:
    await broker.drain()
    broker.close()
    await asyncio.to_thread(broker.session.close)


@on_uvloop
async def test_a_record_has_the_principal_its_credential_its_address_and_the_request():
    broker, _ = await audited()
    with context(request_id="req-7"):
        await broker.execute(ANN, ops.CreateQueue("orders"))
    with pytest.raises(QueueNotFound):
        await broker.execute(ANN, ops.Purge("nowhere"))
    with pytest.raises(TaskNotFound):
        await broker.execute(ANN, ops.CancelTask("01920000-0000-7000-8000-000000000000"))

    created, purged = records(broker)
    assert (created.who, created.credential, created.address, created.protocol) == ("ann", "key", "10.0.0.7", "http")
    assert (created.client, created.request_id, created.outcome) == ("shop", "req-7", "ok")
    assert (purged.what, purged.outcome, purged.request_id) == ("purge", "queue_not_found", "")
    await close(broker)


@on_uvloop
async def test_a_denial_is_recorded_once_for_many_and_the_count_follows():
    broker, clock = await audited()
    for _ in range(1_000):
        with pytest.raises(NotAuthorised):
            await broker.execute(BOB, ops.DeleteQueue("orders"))
    assert broker.audit.flush() == 1
    (record,) = records(broker)
    assert (record.who, record.address, record.what, record.queue) == ("bob", "10.0.0.8", "denied", "orders")
    assert (record.outcome, record.arguments, record.count) == ("not_authorised", {"action": "manage"}, 1_000)

    for _ in range(5):
        broker.refused(BOB, Action.MANAGE, "orders")
    assert broker.audit.flush() == 0  # within a minute: counted, and not written
    clock.advance(WINDOW_US / 1e6)
    assert broker.audit.flush() == 1
    assert [record.count for record in records(broker)] == [1_000, 5]
    await close(broker)


@on_uvloop
async def test_a_task_that_may_not_be_touched_is_a_denial_too():
    broker, _ = await audited()
    with pytest.raises(NotAuthorised):
        await broker.execute(BOB, ops.CancelTask("01920000-0000-7000-8000-000000000000"))
    assert broker.audit.flush() == 1
    await close(broker)


@on_uvloop
async def test_100_000_denials_of_as_many_callers_write_few_frames_and_take_little_memory():
    broker, clock = await audited()
    await broker.execute(ANN, ops.CreateQueue("orders"))
    before = broker.shard.journal.sequence
    for number in range(100_000):
        client = Client(BOB.principal, "", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "tcp")
        broker.refused(client, Action.PUSH, f"q{number}")
        if number % 10_000 == 9_999:
            clock.advance(1)
            broker.audit.flush()
    assert broker.shard.journal.sequence - before <= 10
    denied = records(broker, what="denied")
    assert len(denied) <= LINES_MAX + 10
    assert sum(record.count for record in denied if record.who == "bob") == LINES_MAX
    assert denied[-1].who == OTHERS
    await broker.drain()
    assert sum(record.count for record in records(broker, what="denied")) == 100_000
    await close(broker)


@on_uvloop
async def test_a_timer_writes_what_is_counted_and_a_stop_writes_the_rest():
    broker, _ = await audited()
    for _ in range(3):
        broker.refused(BOB, Action.PUSH, "orders")
    while not await asyncio.to_thread(records, broker):  # noqa: ASYNC110 - nothing is notified of it
        await asyncio.sleep(0)
    broker.refused(BOB, Action.PUSH, "orders")
    await broker.drain()
    assert sum(record.count for record in records(broker)) == 4
    await close(broker)


@on_uvloop
async def test_logins_are_counted_by_the_hour_and_failed_ones_by_the_minute():
    broker, clock = await audited()
    for _ in range(10):
        broker.audit.login(ANN)
        broker.audit.failed_login("10.0.0.9", "http", credential="key", claimed="k1")
    broker.audit.flush()
    clock.advance(120)
    broker.audit.login(ANN)
    broker.audit.failed_login("10.0.0.9", "http", credential="key", claimed="k1")
    broker.audit.flush()
    assert [(record.what, record.count, record.outcome) for record in records(broker)] == [
        ("failed_login", 10, "not_authenticated"),
        ("login", 10, "ok"),
        ("failed_login", 1, "not_authenticated"),
    ]
    failed = records(broker, what="failed_login")[0]
    assert (failed.who, failed.address, failed.credential, failed.arguments) == (
        "",
        "10.0.0.9",
        "key",
        {"claimed": "k1"},
    )
    clock.advance(3_600)
    broker.audit.flush()
    assert len(records(broker, what="login")) == 2
    await close(broker)


@on_uvloop
async def test_exports_are_counted_not_recorded_one_by_one(tmp_path):
    broker = Broker(Session(tmp_path / "data", audit=True))
    for _ in range(50):
        await broker.execute(ANN, ops.ListFiles("journal"))
    await broker.drain()
    found = records(broker)
    assert {record.what for record in found} == {"list_files"}
    assert sum(record.count for record in found) == 50
    assert len(found) <= 2
    broker.close()
    await asyncio.to_thread(broker.session.close)


@on_uvloop
async def test_a_broker_that_does_not_audit_writes_nothing():
    broker, _ = await audited(audit=False)
    await broker.execute(ANN, ops.CreateQueue("orders"))
    broker.refused(BOB, Action.PUSH, "orders")
    broker.audit.login(ANN)
    broker.audit.failed_login("10.0.0.9", "tcp")
    await close(broker)
    assert AUDIT_QUEUE not in broker.shard.core.by_name


@on_uvloop
async def test_counted_lines_are_not_synced_by_themselves(tmp_path):
    broker = Broker(Session(tmp_path / "data", audit=True, background=False))
    await broker.execute(ANN, ops.CreateQueue("orders"))
    durable = broker.shard.journal.durable_sequence
    broker.refused(BOB, Action.PUSH, "orders")
    await asyncio.to_thread(broker.audit.flush)
    assert broker.shard.journal.sequence > durable
    assert broker.shard.journal.durable_sequence == durable
    await close(broker)


def test_a_line_that_is_quiet_makes_room_for_others():
    lines = Lines()
    for number in range(LINES_MAX):
        lines.add((str(number),), Draft(Caller("bob"), "denied"), WINDOW_US, 0, 0)
    assert len(lines.take(0)) == LINES_MAX
    lines.add(("new",), Draft(Caller("bob"), "denied"), WINDOW_US, 0, 1)
    assert [draft.caller.who for draft in lines.take(1)] == [OTHERS]
    lines.add(("newer",), Draft(Caller("bob"), "denied"), WINDOW_US, 0, 2 * WINDOW_US)
    assert [draft.caller.who for draft in lines.take(2 * WINDOW_US)] == ["bob"]
    assert len(lines) == 1
