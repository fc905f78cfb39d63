"""Lists show what may be seen; what has an id is looked up, and who may not see it learns nothing; inner queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from penstock import operations as ops
from penstock.access.grants import Principal, parse_grants
from penstock.batch import Batch
from penstock.broker.access import LOCAL, Client
from penstock.broker.broker import Broker
from penstock.embedded.session import Session
from penstock.errors import NotAuthorised, ScheduleNotFound, TaskNotFound
from penstock.model import Message, MessageId, Outcome, Receipt
from penstock.model_letters import LetterFilter, MessageFilter
from penstock.model_tasks import ScheduleSpec, TaskFilter, TaskSubmission, WorkerInfo
from penstock.requests import LeaseRequest, PushOperation, SettleOperation, Settling
from tests.support.broker_loop import on_uvloop

OWNER = Client(LOCAL, "", "127.0.0.1", "tcp")
QUEUES = ("orders", "shop.mail", "shop.sms")
TASKS = {queue: f"0190a1b2-c3d4-7e5f-8a9b-00000000000{number}" for number, queue in enumerate(QUEUES)}
NO_TASK = "0190a1b2-c3d4-7e5f-8a9b-0000000000ff"
ACK = Settling(Outcome.ACKED)


def client(*grants: str, name: str = "bob") -> Client:
    return Client(Principal(name, parse_grants(grants)), "", "10.0.0.8", "tcp")


def task(queue: str, task_id: str, **options: Any) -> TaskSubmission:
    return TaskSubmission(task_id=task_id, task_type="send", queue=queue, **options)


@asynccontextmanager
async def furnished() -> AsyncIterator[Broker]:
    """A broker with a task, a schedule, a worker and an operation in each of three queues."""
    broker = Broker(Session(None, background=False))
    try:
        for queue, task_id in TASKS.items():
            await broker.execute(OWNER, ops.CreateQueue(queue))
            await broker.execute(OWNER, ops.SubmitTasks([task(queue, task_id)]))
            spec = ScheduleSpec(name=f"every-{queue}", cron="0 3 * * *", task_type="report", queue=queue)
            await broker.execute(OWNER, ops.SetSchedule(spec))
            info = WorkerInfo(worker_id=f"worker-{queue}", queues=(queue, "orders"))
            await broker.execute(OWNER, ops.HeartbeatWorker(info))
            await broker.execute(
                OWNER,
                ops.BeginOperation(
                    "cancel", TaskFilter(queue=queue, task_type="nothing"), f"op-{queue.replace('.', '-')}"
                ),
            )
        yield broker
    finally:
        await broker.drain()
        broker.close()
        await asyncio.to_thread(broker.session.close)


@on_uvloop
async def test_lists_show_only_what_may_be_seen():
    bob = client("monitor:shop.*", "read:shop.mail")
    async with furnished() as broker:
        assert await broker.execute(bob, ops.Queues()) == ["shop.mail", "shop.sms"]
        assert (await broker.execute(bob, ops.Info())).queues == 2
        workers = await broker.execute(bob, ops.Workers())
        assert [(worker.info.worker_id, worker.info.queues) for worker in workers] == [
            ("worker-shop.mail", ("shop.mail",)),
            ("worker-shop.sms", ("shop.sms",)),
        ]
        schedules = await broker.execute(bob, ops.Schedules())
        assert [schedule.spec.queue for schedule in schedules] == ["shop.mail", "shop.sms"]
        operations = await broker.execute(bob, ops.ListOperations())
        assert {operation.queue for operation in operations} == {"shop.mail", "shop.sms"}
        page = await broker.execute(bob, ops.ListTasks())
        assert [task.queue for task in page.tasks] == ["shop.mail"]


@on_uvloop
async def test_what_the_filter_of_an_operation_looks_for_is_shown_only_to_who_may_read_it():
    viewer, reader, unmasked = (client(f"{role}:shop.*") for role in ("viewer", "reader", "operator"))
    letters = LetterFilter(error_contains="4111", key="4111")
    messages = MessageFilter(text="4111", headers={"card": "4111"})
    began: dict[str, ops.Operation[Any]] = {
        "tasks": ops.BeginOperation("cancel", TaskFilter(queue="shop.mail", argument="card=4111"), "tasks"),
        "letters": ops.RedriveLetters("shop.mail", letters, operation_id="letters"),
        "messages": ops.ReplayMessages("shop.mail", messages, "orders", "messages"),
    }
    async with furnished() as broker:
        for operation in began.values():
            await broker.execute(OWNER, operation)

        async def shown(who: Client) -> list[str]:
            found = [await broker.execute(who, ops.FindOperation(operation_id)) for operation_id in began]
            listed = await broker.execute(who, ops.ListOperations())
            assert all(view in listed for view in found)
            return [str((view.filter, view.letters, view.messages)) for view in found]

        assert not any("4111" in text for text in await shown(viewer))
        assert all("4111" in text for text in await shown(reader))
        await broker.execute(OWNER, ops.UpdateQueue("shop.mail", {"masked_fields": ("card",)}))
        assert not any("4111" in text for text in await shown(reader))
        assert all("4111" in text for text in await shown(unmasked))


@on_uvloop
async def test_the_target_of_a_replay_is_shown_only_to_who_may_see_that_queue():
    async with furnished() as broker:
        await broker.execute(OWNER, ops.ReplayMessages("shop.mail", target="orders", operation_id="messages"))
        for who, target in ((client("reader:shop.*"), "•••"), (client("reader"), "orders")):
            assert (await broker.execute(who, ops.FindOperation("messages"))).target == target


@on_uvloop
async def test_who_may_see_everything_sees_everything_and_who_may_see_nothing_sees_nothing():
    everyone, nobody = client("owner"), client("push:orders")
    async with furnished() as broker:
        for operation in (ops.Queues(), ops.Workers(), ops.Schedules(), ops.ListOperations()):
            assert len(await broker.execute(everyone, operation)) == 3
            assert await broker.execute(nobody, operation) == []
        assert len((await broker.execute(everyone, ops.ListTasks())).tasks) == 3
        assert (await broker.execute(nobody, ops.ListTasks())).tasks == []
        assert (
            (await broker.execute(everyone, ops.Info())).queues,
            (await broker.execute(nobody, ops.Info())).queues,
        ) == (3, 0)


@on_uvloop
async def test_suggestions_come_from_queues_that_one_may_read():
    bob = client("monitor:*", "read:shop.mail")
    async with furnished() as broker:
        secret = task("orders", "0190a1b2-c3d4-7e5f-8a9b-000000000200")
        changed = {"task_type": "secret", "workflow": "hidden", "kwargs": b'{"pin": 1}'}
        await broker.execute(OWNER, ops.SubmitTasks([msgspec.structs.replace(secret, **changed)]))

        async def values(who, field: str) -> set[str]:
            return {found.value for found in await broker.execute(who, ops.SuggestTasks(field))}

        assert await values(bob, "queue") == {"shop.mail"}
        for field, value in (
            ("task_type", "secret"),
            ("workflow", "hidden"),
            ("kwargs", "kwargs.pin"),
        ):
            assert value not in await values(bob, field)
            assert value in await values(OWNER, field)
        assert await values(bob, "task_type")
        assert [found.workflow for found in (await broker.execute(OWNER, ops.ListWorkflows())).workflows] == ["hidden"]
        assert (await broker.execute(bob, ops.ListWorkflows())).workflows == []
        for workflow in ("hidden", "none"):  # the same answer
            with pytest.raises(TaskNotFound, match=f"there is no workflow '{workflow}'"):
                await broker.execute(bob, ops.FindWorkflow(workflow))
        assert await values(client("push:orders"), "queue") == set()


@on_uvloop
async def test_pages_of_tasks_end_and_hold_all_that_may_be_read():
    bob = client("read:shop.sms")
    async with furnished() as broker:
        for number in range(20):
            queue = ("orders", "shop.sms")[number % 2]
            await broker.execute(
                OWNER, ops.SubmitTasks([task(queue, f"0190a1b2-c3d4-7e5f-8a9b-0000000001{number:02d}")])
            )
        seen: list[str] = []
        cursor, pages = None, 0
        while True:
            page = await broker.execute(bob, ops.ListTasks(TaskFilter(limit=3, cursor=cursor)))
            seen += [task.queue for task in page.tasks]
            cursor, pages = page.cursor, pages + 1
            if cursor is None:
                break
        assert (seen, pages) == (["shop.sms"] * 11, 4)


@on_uvloop
async def test_what_has_an_id_is_refused_alike_whether_it_exists_or_not():
    bob = client("read,manage,monitor,push:shop.*")
    async with furnished() as broker:
        for kind in (ops.FindTask, ops.CancelTask, ops.RetryTask):
            texts = []
            for task_id in (TASKS["orders"], NO_TASK):
                with pytest.raises(NotAuthorised) as refused:
                    await broker.execute(bob, kind(task_id))
                texts.append((str(refused.value).replace(task_id, "ID"), refused.value.hint))
            assert texts[0] == texts[1]
            assert "orders" not in str(texts)
            with pytest.raises(TaskNotFound):
                await broker.execute(OWNER, kind(NO_TASK))
        with pytest.raises(NotAuthorised):
            await broker.execute(bob, ops.WaitTask(TASKS["orders"], 0.0))
        for operation in (
            ops.FindOperation("op-orders"),
            ops.FindOperation("op-none"),
            ops.StopOperation("op-orders"),
            ops.BeginOperation("cancel", TaskFilter(queue="shop.mail"), "op-orders"),
            ops.DeleteSchedule("every-orders"),
            ops.DeleteSchedule("every-none"),
        ):
            with pytest.raises(NotAuthorised) as denied:
                await broker.execute(bob, operation)
            assert "queue 'orders'" not in str(denied.value)
        assert (await broker.execute(bob, ops.FindTask(TASKS["shop.mail"]))).queue == "shop.mail"
        assert (await broker.execute(bob, ops.FindOperation("op-shop-mail"))).operation_id == "op-shop-mail"
        await broker.execute(bob, ops.DeleteSchedule("every-shop.mail"))
        with pytest.raises(ScheduleNotFound):
            await broker.execute(OWNER, ops.DeleteSchedule("every-shop.mail"))


# inner queues


@on_uvloop
async def test_every_push_and_every_receipt_of_a_transaction_is_checked():
    async with furnished() as broker:
        await broker.pushed(OWNER, "orders", Batch.build([b"a"]))
        lease = await broker.leased(OWNER, "orders", "default", LeaseRequest(9))
        proof = Receipt("orders", "0", lease.pieces[0].offsets[0], 1, lease.nonce)
        push = PushOperation("shop.mail", Batch.build([b"b"]))
        bob = client("push:shop.*", "consume:shop.*")
        for step in (PushOperation("orders", Batch.build([b"c"])), SettleOperation(proof, ACK)):
            with pytest.raises(NotAuthorised, match="orders"):
                await broker.transact(bob, [push, step])
        with pytest.raises(NotAuthorised):
            await broker.settled(bob, [proof], ACK)
        with pytest.raises(NotAuthorised):
            await broker.settled_lease(bob, lease.nonce, ACK)
        with pytest.raises(NotAuthorised):
            await broker.extended(bob, lease.nonce, 60)
        assert len((await broker.transact(bob, [push]))[0]) == 1


@on_uvloop
async def test_who_depends_on_a_task_must_be_able_to_read_it():
    bob = client("push:shop.*", "read:shop.sms")
    async with furnished() as broker:
        for parent in (TASKS["orders"], TASKS["shop.mail"], NO_TASK):
            child = task("shop.mail", "0190a1b2-c3d4-7e5f-8a9b-000000000201", depends_on=(parent,))
            with pytest.raises(NotAuthorised, match=parent):
                await broker.execute(bob, ops.SubmitTasks([child]))
        child = task("shop.mail", "0190a1b2-c3d4-7e5f-8a9b-000000000202", depends_on=(TASKS["shop.sms"],))
        other = task("shop.mail", "0190a1b2-c3d4-7e5f-8a9b-000000000203", depends_on=(child.task_id,))
        assert len(await broker.execute(bob, ops.SubmitTasks([child, other]))) == 2


@on_uvloop
async def test_a_schedule_needs_manage_and_push_and_cannot_be_taken_from_another_queue():
    async with furnished() as broker:
        spec = ScheduleSpec(name="mine", cron="0 3 * * *", task_type="report", queue="shop.mail")
        for grants in (("manage:shop.*",), ("push:shop.*",)):
            with pytest.raises(NotAuthorised):
                await broker.execute(client(*grants), ops.SetSchedule(spec))
        bob = client("manage,push:shop.*")
        assert (await broker.execute(bob, ops.SetSchedule(spec))).spec.queue == "shop.mail"
        with pytest.raises(NotAuthorised, match="every-orders"):
            await broker.execute(bob, ops.SetSchedule(msgspec.structs.replace(spec, name="every-orders")))


@on_uvloop
async def test_an_operation_on_many_tasks_needs_all_queues_that_it_can_touch():
    bob = client("manage:shop.*")
    async with furnished() as broker:
        for filter in (TaskFilter(), TaskFilter(queue="orders"), TaskFilter(queue="shop.mail", argument="a")):
            with pytest.raises(NotAuthorised):
                await broker.execute(bob, ops.BeginOperation("cancel", filter))
        await broker.execute(bob, ops.BeginOperation("cancel", TaskFilter(queue="shop.mail")))


@on_uvloop
async def test_a_worker_needs_every_queue_that_it_names():
    bob = client("consume:shop.*")
    async with furnished() as broker:
        for queues in (("shop.mail", "orders"), ()):
            with pytest.raises(NotAuthorised):
                await broker.execute(bob, ops.HeartbeatWorker(WorkerInfo(worker_id="w", queues=queues)))
        await broker.execute(bob, ops.HeartbeatWorker(WorkerInfo(worker_id="w", queues=("shop.mail",))))
        with pytest.raises(NotAuthorised, match="any queue"):
            await broker.execute(client("push:orders"), ops.AwaitNews("w"))


@on_uvloop
async def test_replacing_dead_letters_is_a_push():
    async with furnished() as broker:
        replace = ops.ReplaceLetters("orders", [MessageId("orders.dlq", "0", 0)], bytes(Batch.build([b"a"]).data))
        with pytest.raises(NotAuthorised, match="push"):
            await broker.execute(client("manage:orders"), replace)


@on_uvloop
async def test_a_push_makes_a_queue_within_the_pattern_of_its_grant_and_not_outside():
    bob = client("push:shop.*", "monitor:*")
    async with furnished() as broker:
        await broker.pushed(bob, "shop.new", Batch.build([b"a"]))
        with pytest.raises(NotAuthorised):
            await broker.pushed(bob, "other", Batch.build([b"a"]))
        assert await broker.execute(bob, ops.Queues()) == [*QUEUES[:1], "shop.mail", "shop.new", "shop.sms"]


# events


async def heard(broker: Broker, who: Client, topics: tuple[Any, ...], until: int, queues: Any = None) -> list[Any]:
    news = asyncio.Event()
    events: list[Any] = []
    listener = broker.listen(who, queues, 0.1, news.set, topics)
    ready = asyncio.Event()
    listener.when_ready(ready.set)
    await ready.wait()
    try:
        if "tasks" in topics:
            for number, queue in enumerate(("orders", "shop.mail", "shop.sms")):
                id = f"0190a1b2-c3d4-7e5f-8a9b-0000000003{number:02d}"
                await broker.execute(OWNER, ops.SubmitTasks([task(queue, id)]))
        async with asyncio.timeout(20):
            while len(events) < until:
                await news.wait()
                news.clear()
                events += listener.take()
    finally:
        listener.close()
    return events


@on_uvloop
async def test_events_are_of_queues_that_may_be_seen():
    bob = client("monitor:shop.*", "read:shop.sms")
    async with furnished() as broker:
        (counters,) = await heard(broker, bob, ("queues",), 1)
        assert [stats.name for stats in counters.counters] == ["shop.mail", "shop.sms"]
        workers = await heard(broker, bob, ("workers",), 2)
        assert [event.worker.info.queues for event in workers] == [("shop.mail",), ("shop.sms",)]
        tasks = await heard(broker, bob, ("tasks",), 1)
        assert {event.queue for event in tasks} == {"shop.sms"}
        with pytest.raises(NotAuthorised):
            await heard(broker, bob, ("queues",), 1, ["orders"])
        with pytest.raises(NotAuthorised):
            await heard(broker, bob, ("queues", "tasks"), 1, ["shop.mail"])  # which it may monitor, not read
        with pytest.raises(NotAuthorised):
            await heard(broker, client("push:*"), ("queues",), 1)


@on_uvloop
async def test_a_change_of_grants_reaches_a_listener():
    bob = client("monitor:shop.*")
    async with furnished() as broker:
        listener = broker.listen(bob, None, 0.1, lambda: None)
        assert (listener.wants("shop.mail"), listener.wants("orders")) == (True, False)
        bob.principal.change(parse_grants(["monitor:orders"]), "")
        assert (listener.wants("shop.mail"), listener.wants("orders")) == (False, True)
        listener.close()


@on_uvloop
async def test_who_may_only_monitor_learns_why_messages_wait_and_no_key():
    ann, bob = client("read:shop.*", "monitor:shop.*", name="ann"), client("monitor:shop.*")
    async with furnished() as broker:
        await broker.execute(OWNER, ops.CreateQueue("shop.keyed", {"ordering": "key"}))
        messages = [Message(payload=b"1", key="customer-7") for _ in range(3)]
        await broker.pushed(OWNER, "shop.keyed", Batch.build(messages))

        seen = await broker.execute(ann, ops.WhyQueue("shop.keyed"))
        hidden = await broker.execute(bob, ops.WhyQueue("shop.keyed"))

        assert [reason.key for reason in seen.groups[0].reasons if reason.code == "held_by_key"] == ["customer-7"]
        assert "customer-7" in repr(seen)
        assert [reason.count for reason in hidden.groups[0].reasons] == [
            reason.count for reason in seen.groups[0].reasons
        ]
        assert "customer-7" not in repr(hidden)


@on_uvloop
async def test_parents_in_other_queues_are_not_named():
    child = "0190a1b2-c3d4-7e5f-8a9b-0000000000aa"
    async with furnished() as broker:
        waits = task("shop.mail", child, depends_on=(TASKS["orders"], TASKS["shop.mail"]))
        await broker.execute(OWNER, ops.SubmitTasks([waits]))

        everything = await broker.execute(OWNER, ops.WhyTask(child))
        some = await broker.execute(client("read:shop.mail"), ops.WhyTask(child))

        assert {parent.task_id for parent in everything.parents} == {TASKS["orders"], TASKS["shop.mail"]}
        assert [parent.task_id for parent in some.parents] == [TASKS["shop.mail"]]
        with pytest.raises(NotAuthorised):
            await broker.execute(client("read:orders"), ops.WhyTask(child))
