"""Producers, sinks, workers and members belong to principals: nobody fences, takes or ends those of another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import operations as ops
from penstock.access.authenticator import Authenticator
from penstock.access.discovery import new_entry
from penstock.access.grants import OWNER, Principal, parse_grants
from penstock.batch import Batch
from penstock.broker.access import LOCAL, Client
from penstock.broker.broker import Broker
from penstock.clock import ManualClock
from penstock.delivery.producers import NAMED, named_id, stored_id
from penstock.embedded.session import Session
from penstock.errors import InvalidField, LeaseLost, MemberFenced, NotAuthorised, ProducerFenced
from penstock.model_tasks import TaskSubmission, WorkerInfo
from penstock.replies import LeaseReply
from penstock.requests import LeaseRequest, PushOperation
from penstock.storage.staging import encode_staged, name_for
from tests.support.broker_loop import on_uvloop

LOCAL_CLIENT = Client(LOCAL, "", "127.0.0.1", "tcp")
RUN_KEY = Client(Principal("owner", OWNER), "", "127.0.0.1", "tcp")
TASK = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"


def someone(name: str, *grants: str, namespace: str = "") -> Client:
    return Client(
        Principal(name, parse_grants(grants or ("push,consume,monitor,manage:*",)), namespace), "", "10.0.0.8", "tcp"
    )


ANN, MALLORY = someone("ann"), someone("mallory")


@asynccontextmanager
async def broker_at(path: Path | None = None, **options: Any) -> AsyncIterator[Broker]:
    broker = Broker(Session(path, background=False, **options))
    try:
        await broker.execute(LOCAL_CLIENT, ops.CreateQueue("q", {"partitions": 2}, exist_ok=True))
        yield broker
    finally:
        await broker.drain()
        broker.close()
        await asyncio.to_thread(broker.session.close)


async def push(broker: Broker, client: Client, payload: bytes, producer: tuple[int, int, int]) -> Any:
    return (await broker.pushed(client, "q", Batch.build([payload]), 0, None, producer)).ids()


async def push_one(broker: Broker, client: Client, payload: bytes, producer: tuple[int, int, int]) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.push_one(client, "q", payload, producer, future.set_result)
    return await future


# producers


@on_uvloop
async def test_a_name_is_another_producer_for_another_principal_and_nobody_is_fenced():
    async with broker_at() as broker:
        id, epoch = await broker.execute(ANN, ops.InitProducer("shop-1"))
        other, _ = await broker.execute(MALLORY, ops.InitProducer("shop-1"))
        assert other != id
        assert await push(broker, ANN, b"a", (id, epoch, 1)) == await push(broker, ANN, b"a", (id, epoch, 1))
        again, later = await broker.execute(ANN, ops.InitProducer("shop-1"))
        assert (again, later) == (id, epoch + 1)
        with pytest.raises(ProducerFenced):
            await push(broker, ANN, b"b", (id, epoch, 2))


@on_uvloop
async def test_the_producer_of_somebody_else_is_refused_and_never_answered_for():
    async with broker_at() as broker:
        id, epoch = await broker.execute(ANN, ops.InitProducer("shop-1"))
        own, own_epoch = await broker.execute(LOCAL_CLIENT, ops.InitProducer("shop-1"))
        await push(broker, ANN, b"a", (id, epoch, 1))
        for victim in ((id, epoch, 1), (id, epoch + 9, 2), (own, own_epoch, 1)):
            with pytest.raises(ProducerFenced, match="belongs to another client"):
                await push(broker, MALLORY, b"a", victim)
            assert isinstance(await push_one(broker, MALLORY, b"a", victim), ProducerFenced)
            with pytest.raises(ProducerFenced):
                await broker.transact(MALLORY, [PushOperation("q", Batch.build([b"a"]))], victim)
        assert await push(broker, ANN, b"b", (id, epoch, 2))  # not fenced


@on_uvloop
async def test_numbers_that_producers_draw_are_apart_too():
    async with broker_at() as broker:
        first = await push(broker, ANN, b"a", (77, 1, 5))
        for client in (MALLORY, LOCAL_CLIENT):
            ids = await push(broker, client, b"stolen", (77, 9, 5))  # neither a conflict, nor a duplicate, nor a fence
            assert ids != first
        assert await push(broker, ANN, b"a", (77, 1, 5)) == first
        _, offset = await push_one(broker, MALLORY, b"more", (77, 9, 6))
        assert (await push_one(broker, MALLORY, b"more", (77, 9, 6)))[1] == offset


def test_ids_of_the_owner_are_those_of_before_and_others_are_spread():
    assert stored_id("", 77) == 77
    assert named_id("", "shop-1") == stored_id("", named_id("", "shop-1"))
    names = {named_id("ann", f"shop-{number}") for number in range(10_000)}
    assert len(names) == 10_000
    assert all(id & NAMED and stored_id("ann", id) & NAMED for id in names)
    assert not stored_id("ann", 77) & NAMED
    assert stored_id("ann", 77) != stored_id("bob", 77)
    assert named_id("ann", "x") != named_id("team/ann", "x")


@on_uvloop
async def test_registering_a_producer_takes_a_grant_to_push_somewhere():
    async with broker_at() as broker:
        await broker.execute(someone("bob", "push:orders"), ops.InitProducer("shop-1"))
        with pytest.raises(NotAuthorised, match="any queue"):
            await broker.execute(someone("bob", "read:orders"), ops.InitProducer("shop-1"))


@on_uvloop
async def test_what_was_there_before_access_control_passes_to_the_owner(tmp_path):
    """A directory of before has the plain names. With access control, the key of the run is the owner."""
    async with broker_at(tmp_path) as broker:
        id, epoch = await broker.execute(LOCAL_CLIENT, ops.InitProducer("shop-1"))
        first = await push(broker, LOCAL_CLIENT, b"a", (id, epoch, 1))
        await stage_and_commit(broker, LOCAL_CLIENT, 0, b"x")
    async with broker_at(tmp_path) as broker:
        assert await push(broker, RUN_KEY, b"a", (id, epoch, 1)) == first
        assert await broker.execute(RUN_KEY, ops.InitProducer("shop-1")) == (id, epoch + 1)
        assert (await broker.execute(RUN_KEY, ops.GetSinkState("q", "daily"))).batch == 0
        assert (await broker.execute(ANN, ops.GetSinkState("q", "daily"))).batch == -1


def test_a_name_alone_does_not_make_an_owner():
    assert someone("owner", "push:*").owner == "owner"
    assert Client(Principal("owner", OWNER, "team"), "", "", "tcp").owner == "team/owner"
    assert (LOCAL_CLIENT.owner, RUN_KEY.owner, ANN.owner) == ("", "", "ann")


# sinks


async def stage_and_commit(broker: Broker, client: Client, batch: int, payload: bytes) -> str:
    name = name_for("q", "daily", 0, broker.clock.now(), os.urandom(10))
    data = b"".join(encode_staged(Batch.build([payload])))
    await broker.execute(client, ops.Stage("q", name, 0, data))
    await broker.execute(client, ops.CommitSink("q", "daily", batch, (name,)))
    return name


def staged(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "staging").iterdir())


@on_uvloop
async def test_a_sink_is_its_principals_own_and_survives_a_restart(tmp_path):
    async with broker_at(tmp_path) as broker:
        await stage_and_commit(broker, ANN, 0, b"a")
        await stage_and_commit(broker, ANN, 1, b"b")
        await stage_and_commit(broker, MALLORY, 0, b"m")  # no conflict with a sink that is at batch 1
        assert (await broker.execute(ANN, ops.GetSinkState("q", "daily"))).batch == 1
    async with broker_at(tmp_path) as broker:
        assert (await broker.execute(ANN, ops.GetSinkState("q", "daily"))).batch == 1
        assert (await broker.execute(MALLORY, ops.GetSinkState("q", "daily"))).batch == 0
        with pytest.raises(InvalidField):
            await broker.execute(MALLORY, ops.GetSinkState("q", "ann\0daily"))


@on_uvloop
async def test_staged_files_can_be_discarded_and_committed_by_their_principal_and_for_their_queue_only(tmp_path):
    async with broker_at(tmp_path) as broker:
        await broker.execute(LOCAL_CLIENT, ops.CreateQueue("other"))
        name = name_for("q", "daily", 0, broker.clock.now(), os.urandom(10))
        data = b"".join(encode_staged(Batch.build([b"a"])))
        await broker.execute(ANN, ops.Stage("q", name, 0, data))
        await broker.execute(ANN, ops.DiscardStaged("other", [name]))
        await broker.execute(MALLORY, ops.DiscardStaged("q", [name]))
        await broker.execute(MALLORY, ops.Stage("q", name, 0, b"overwritten" + data))
        assert len(staged(tmp_path)) == 2
        await broker.execute(ANN, ops.CommitSink("q", "daily", 0, (name,)))
        assert [message.payload for message in await broker.execute(LOCAL_CLIENT, ops.Peek("q", 9))] == [b"a"]
        await broker.execute(MALLORY, ops.DiscardStaged("q", [name]))
        assert staged(tmp_path) == []


@on_uvloop
async def test_leftovers_of_a_principals_sink_go_with_its_next_commit(tmp_path):
    clock = ManualClock()
    async with broker_at(tmp_path, clock=clock) as broker:
        left = name_for("q", "daily", 0, clock.now(), os.urandom(10))
        await broker.execute(ANN, ops.Stage("q", left, 0, b"x"))
        await broker.execute(MALLORY, ops.Stage("q", left, 0, b"x"))
        clock.advance(5)
        await stage_and_commit(broker, ANN, 0, b"a")
        assert len(staged(tmp_path)) == 1  # Mallory's


# workers


async def running(broker: Broker, client: Client) -> LeaseReply:
    await broker.execute(LOCAL_CLIENT, ops.SubmitTasks([TaskSubmission(task_id=TASK, task_type="t", queue="q")]))
    await broker.execute(client, ops.HeartbeatWorker(WorkerInfo(worker_id="w1", queues=("q",))))
    return await broker.leased(client, "q", "default", LeaseRequest(5, consumer="w1"))


@on_uvloop
async def test_nobody_ends_the_worker_of_another_or_gets_its_news():
    async with broker_at() as broker:
        lease = await running(broker, ANN)
        await broker.execute(MALLORY, ops.HeartbeatWorker(WorkerInfo(worker_id="w1", queues=("q",), is_stopping=True)))
        workers = await broker.execute(LOCAL_CLIENT, ops.Workers())
        assert [(worker.owner, worker.state) for worker in workers] == [("ann", "alive"), ("mallory", "stopping")]
        for client in (MALLORY, LOCAL_CLIENT):
            await broker.execute(client, ops.ForgetWorker("w1"))
        await broker.extended(ANN, lease.nonce, 60)  # it still has its lease
        await broker.execute(LOCAL_CLIENT, ops.CancelTask(TASK))
        assert not (await broker.execute(MALLORY, ops.AwaitNews("w1"))).cancelled
        assert (await broker.execute(ANN, ops.AwaitNews("w1"))).cancelled == (TASK,)


@on_uvloop
async def test_a_worker_that_says_goodbye_releases_what_it_has():
    async with broker_at() as broker:
        lease = await running(broker, ANN)
        await broker.execute(ANN, ops.ForgetWorker("w1"))
        with pytest.raises(LeaseLost):
            await broker.extended(ANN, lease.nonce, 60)


# members


@on_uvloop
async def test_nobody_takes_over_the_member_of_another():
    async with broker_at() as broker:
        mine = await broker.execute(ANN, ops.Join("q", "default", "m1"))
        assert mine.member == "m1"
        theirs = await broker.execute(MALLORY, ops.Join("q", "default", "m1"))
        members = await broker.execute(LOCAL_CLIENT, ops.Members("q"))
        assert [member.member for member in members] == ["m1", "m1"]
        await broker.execute(MALLORY, ops.Leave("q", "default", "m1", theirs.generation))
        mine = await broker.execute(ANN, ops.Heartbeat("q", "default", "m1", mine.generation, ("0", "1")))
        assert sorted(mine.assigned) == ["0", "1"]
        with pytest.raises(MemberFenced):
            await broker.execute(MALLORY, ops.Heartbeat("q", "default", "m1", mine.generation))
        stolen = LeaseRequest(member="m1", generation=mine.generation)
        with pytest.raises(MemberFenced):
            await broker.leased(MALLORY, "q", "default", stolen)
        await broker.leased(ANN, "q", "default", stolen)


# the end of a principal


@on_uvloop
async def test_a_principal_that_loses_its_last_credential_holds_nothing_any_more(tmp_path):
    async with broker_at() as broker:
        store = broker.session.access
        authenticator = Authenticator(store, broker.clock, new_entry())
        authenticator.on_gone = broker.give_up
        store.on_change.append(authenticator.refresh)
        grants = ["push,consume:*"]
        keys = [store.create_key("ann", grants)[0].id, store.create_key("ann", grants)[0].id]
        store.create_key("mallory", grants)
        leases = [await running(broker, ANN), await _leased(broker, MALLORY)]
        await broker.execute(ANN, ops.Join("q", "default", "m1"))

        store.revoke_key(keys[0])
        await _settle_down(broker)
        assert await _members(broker) == ["m1"]  # it still has another key
        store.revoke_key(keys[1])
        await _settle_down(broker)

        assert await _members(broker) == []
        assert await broker.execute(LOCAL_CLIENT, ops.Workers()) == []
        with pytest.raises(LeaseLost):
            await broker.extended(LOCAL_CLIENT, leases[0].nonce, 60)
        await broker.extended(MALLORY, leases[1].nonce, 60)
        again = await broker.leased(LOCAL_CLIENT, "q", "default", LeaseRequest())
        assert again.pieces[0].attempt(0) == 1  # it was not counted


async def _leased(broker: Broker, client: Client) -> LeaseReply:
    await broker.execute(LOCAL_CLIENT, ops.CreateQueue("other"))
    await broker.pushed(LOCAL_CLIENT, "other", Batch.build([b"a"]))
    return await broker.leased(client, "other", "default", LeaseRequest())


async def _members(broker: Broker) -> list[str]:
    return [member.member for member in await broker.execute(LOCAL_CLIENT, ops.Members("q"))]


async def _settle_down(broker: Broker) -> None:
    """What was handed to a thread before is done."""
    for _ in range(3):
        await asyncio.to_thread(lambda: None)


def test_a_key_that_expires_is_gone_and_a_password_is_a_credential():
    clock = ManualClock()
    session = Session(None, clock=clock, background=False)
    store = session.access
    gone: list[str] = []
    authenticator = Authenticator(store, clock, new_entry())
    authenticator.on_gone = gone.append
    store.create_key("ann", ["push:*"], expires_seconds=60)
    store.create_key("bob", ["push:*"], expires_seconds=60)
    store.set_user("bob", password="a hash")
    authenticator.refresh()
    clock.advance(59)
    authenticator.refresh()
    assert gone == []
    clock.advance(2)
    authenticator.refresh()
    authenticator.refresh()
    assert gone == ["ann"]
    store.delete_user("bob")
    authenticator.refresh()
    assert gone == ["ann", "bob"]
    session.close()
