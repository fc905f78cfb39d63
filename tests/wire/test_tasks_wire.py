"""Tasks over TCP: what is sent again happens once, waits are woken and hold no thread, and who may do what."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any, NamedTuple

import pytest

import penstock
from penstock import aio, envelopes
from penstock import operations as ops
from penstock.batch import Batch, alike_of, encode_one, encode_one_with, encode_plain, layout
from penstock.broker.access import Client, Principal
from penstock.embedded.session import Session
from penstock.errors import BadRequest, InvalidField, LeaseLost, NotAuthorised, TaskNotFound, Unavailable
from penstock.model import ContentType, Receipt
from penstock.model_tasks import Finish, TaskFilter, TaskState, TaskSubmission, WorkerInfo
from penstock.remote import request as asking
from penstock.requests import LeaseRequest
from penstock.server import dispatch
from penstock.server.tcp import connection
from penstock.wire import requests
from tests.remote.test_resend import FACES, Limit, World
from tests.support.broker_loop import SOMEONE, broker_on, on_uvloop, until
from tests.support.brokers import BrokerThread
from tests.support.cut_proxy import EVERYTHING, CuttingProxy
from tests.support.operations import run_operation

UNKNOWN = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
STEPS = {"penstock": 7, "http": 41}  # between two cuts: HTTP takes many more bytes


class AnyWorld(World):
    """A `World` over either protocol."""

    def __init__(self, protocol: str) -> None:
        super().__init__()
        if protocol == "http":
            self.broker.stop()
            self.broker = BrokerThread(self.session, protocol=protocol)
        self.protocol = protocol

    @contextmanager
    def cut(self, *limits: Limit) -> Iterator[Any]:
        with super().cut(*limits) as proxy:
            yield Cut(proxy.url.replace("penstock", self.protocol), proxy)


class Cut(NamedTuple):
    """A wire that is cut, and the url at its near end."""

    url: str
    proxy: CuttingProxy

    @property
    def bytes(self) -> list[list[int]]:
        return self.proxy.bytes


@pytest.fixture(params=["penstock"])
def world(request: pytest.FixtureRequest) -> Iterator[AnyWorld]:
    made = AnyWorld(request.param)
    yield made
    made.close()


over_both = pytest.mark.parametrize("world", list(STEPS), indirect=True)


def new(queue: str = "mail", **options: Any) -> TaskSubmission:
    return TaskSubmission(task_id=envelopes.new_task_id(0), task_type="send", queue=queue, **options)


def leased(session: Any, queue: str) -> list[tuple[str, Receipt]]:
    """A worker's runs: task ids and receipts."""
    reply, _ = session.lease(queue, "default", LeaseRequest(count_max=1_000, consumer="w1"))
    return [
        (envelopes.parse_envelope(payload).task_id, Receipt(queue, piece.partition(row), offset, 1, reply.nonce))
        for piece in reply.pieces
        for row, (offset, payload) in enumerate(zip(piece.offsets, piece.payloads(), strict=True))
    ]


def running(session: Any, queue: str, count: int = 1) -> list[Finish]:
    """Tasks that are run, and how they would end."""
    session.push(queue, envelopes.tasks_batch([new(queue) for _ in range(count)]), None, None)
    return [
        Finish(receipt=receipt, task_id=task_id, outcome="completed", result=b"7")
        for task_id, receipt in leased(session, queue)
    ]


def cuts(world: AnyWorld, face: Any, work: Any) -> Iterator[Limit]:
    step = STEPS[world.protocol]
    with world.cut() as proxy:
        face(proxy, work)
        up, down = (max(each[way] for each in proxy.bytes) for way in (0, 1))
    yield from ((number, EVERYTHING) for number in (*range(0, up, step), up))
    yield from ((EVERYTHING, number) for number in (*range(0, down, step), down))


def execute(operation: ops.Operation[Any]) -> Any:
    """An operation, for either face."""
    return lambda ps: ps._session.execute(operation)


@over_both
@pytest.mark.parametrize("face", FACES)
def test_a_finish_is_accepted_wherever_the_wire_is_cut(world, face):
    for limit in cuts(world, face, execute(ops.FinishTasks(running(world.session, world.queue(), 2)))):
        finishes = running(world.session, world.queue(), 2)
        with world.cut(limit, limit) as proxy:
            assert face(proxy, execute(ops.FinishTasks(finishes))) == [None, None], limit
        for each in finishes:
            view = run_operation(world.session, ops.FindTask(each.task_id))[0]
            assert (view.state, view.result, len(view.runs)) == (TaskState.COMPLETED, b"7", 1)


@over_both
@pytest.mark.parametrize("face", FACES)
def test_tasks_are_stored_once_wherever_the_wire_is_cut(world, face):
    def workflow(queue: str) -> list[TaskSubmission]:
        first = new(queue)
        return [first, new(queue, depends_on=(first.task_id,)), new(queue, unique_key="k")]

    for limit in cuts(world, face, execute(ops.SubmitTasks(workflow(world.queue())))):
        tasks = workflow(queue := world.queue())
        with world.cut(limit, limit) as proxy:
            reported = face(proxy, execute(ops.SubmitTasks(tasks)))
        assert [(each.task_id, each.is_new) for each in reported] == [(each.task_id, True) for each in tasks], limit
        assert {
            each.task_id for each in run_operation(world.session, ops.ListTasks(TaskFilter(queue=queue)))[0].tasks
        } == {each.task_id for each in tasks}
        assert len(leased(world.session, queue)) == 2


@over_both
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("options", [{}, {"priority": 200, "max_attempts": 3}])
def test_a_single_task_is_pushed_once_wherever_the_wire_is_cut(world, face, options):
    def push(queue: str) -> Any:
        return lambda ps: ps._session.push_one(queue, envelopes.task_message(new(queue, **options)), None)

    for limit in cuts(world, face, push(world.queue())):
        queue = world.queue()
        with world.cut(limit, limit) as proxy:
            assert str(face(proxy, push(queue))) == f"{queue}/0/0"
        assert len(leased(world.session, queue)) == 1, limit


def test_a_finish_that_is_sent_again_is_refused_when_another_has_the_task(world):
    (finish,) = running(world.session, "mail")
    world.clock.advance(3600)
    world.session.timekeeper.tick()
    with penstock.connect(world.broker.url) as ps:
        request = asking.execute(ops.FinishTasks([finish]))
        request.sent = 1

        session: Any = ps._session
        (error,) = session.ask(request)
    assert isinstance(error, LeaseLost)


def test_ways_to_end_are_distinguished_when_they_are_sent_again(world):
    done, failed, dead = running(world.session, "mail", 3)
    ends = [
        done,
        Finish(receipt=failed.receipt, task_id=failed.task_id, outcome="failed", error="once more"),
        Finish(receipt=dead.receipt, task_id=dead.task_id, outcome="dead", error="never"),
    ]
    other = [Finish(receipt=each.receipt, task_id=each.task_id, outcome="released") for each in ends]
    with penstock.connect(world.broker.url) as ps:
        assert run_operation(ps._session, ops.FinishTasks(ends))[0] == [None, None, None]
        for finishes, expected in ((ends, [True] * 3), (other, [False] * 3)):
            request = asking.execute(ops.FinishTasks(finishes))
            request.sent = 1
            session: Any = ps._session
            assert [answer is None for answer in session.ask(request)] == expected
        assert [type(each) for each in run_operation(ps._session, ops.FinishTasks(ends))[0]] == [LeaseLost] * 3


def test_a_finish_is_known_after_a_restart(tmp_path):
    session = Session(tmp_path / "data", rng=random.Random(1))
    finishes = running(session, "mail", 2)
    session.confirm(run_operation(session, ops.FinishTasks(finishes[:1]))[1])
    session.close()
    session = Session(tmp_path / "data", rng=random.Random(1))
    broker = BrokerThread(session)
    with penstock.connect(broker.url) as ps:
        remote: Any = ps._session
        request = asking.execute(ops.FinishTasks(finishes))
        request.sent = 1  # the answer was lost with the broker

        assert [type(answer) for answer in remote.ask(request)] == [NoneType, LeaseLost]
    broker.stop()
    session.close()


def test_an_id_that_its_caller_chose_is_known_when_it_is_submitted_again(world):
    task = new(is_named=True, unique_key="k")
    with penstock.connect(world.broker.url) as ps:
        assert run_operation(ps._session, ops.SubmitTasks([task]))[0][0].is_new
        assert not run_operation(ps._session, ops.SubmitTasks([task]))[0][0].is_new


# waiting


async def waits_of(broker: Any, number: int) -> None:
    await until(lambda: len(broker.waits) == number)


@on_uvloop
async def test_many_waits_hold_no_thread_and_are_woken_by_the_end():
    async with broker_on() as broker:
        finishes = running(broker.session, "mail", 200)
        waiting = [
            asyncio.ensure_future(broker.execute(SOMEONE, ops.WaitTask(each.task_id, 60.0))) for each in finishes
        ]
        await waits_of(broker, 200)
        page = await broker.execute(SOMEONE, ops.ListTasks(TaskFilter(limit=200)))
        assert len(page.tasks) == 200

        assert await broker.execute(SOMEONE, ops.FinishTasks(finishes)) == [None] * 200
        views = await asyncio.gather(*waiting)
        assert {(view.state, view.result) for view in views} == {(TaskState.COMPLETED, b"7")}
        assert not broker.waits
        assert not len(broker.session.tasks.waiters)


@on_uvloop
async def test_a_wait_for_a_task_that_fails_goes_on_until_it_is_dead():
    async with broker_on() as broker:
        (finish,) = running(broker.session, "mail")
        waiting = asyncio.ensure_future(broker.execute(SOMEONE, ops.WaitTask(finish.task_id, 60.0)))
        await waits_of(broker, 1)
        failed = Finish(receipt=finish.receipt, task_id=finish.task_id, outcome="failed", error="no", delay_seconds=0.0)
        assert await broker.execute(SOMEONE, ops.FinishTasks([failed])) == [None]
        view = await broker.execute(SOMEONE, ops.FindTask(finish.task_id))
        assert not view.is_final
        assert not waiting.done()

        await broker.execute(SOMEONE, ops.CancelTask(finish.task_id))
        assert (await waiting).state is TaskState.CANCELLED


@on_uvloop
async def test_a_wait_ends_when_its_time_is_over_or_its_client_goes():
    async with broker_on() as broker:
        (finish,) = running(broker.session, "mail")
        view = await broker.execute(SOMEONE, ops.WaitTask(finish.task_id, 0.0))
        assert view.state is TaskState.RUNNING
        view = await broker.execute(SOMEONE, ops.WaitTask(finish.task_id, 0.01))
        assert view.state is TaskState.RUNNING

        gone = asyncio.ensure_future(broker.execute(SOMEONE, ops.WaitTask(finish.task_id, 60.0)))
        news = asyncio.ensure_future(broker.execute(SOMEONE, ops.AwaitNews("w1", 60.0)))
        await waits_of(broker, 2)
        gone.cancel()
        news.cancel()
        await asyncio.wait((gone, news))
        assert not broker.waits
        assert not len(broker.session.tasks.waiters)


@on_uvloop
async def test_a_broker_that_drains_sends_those_who_wait_elsewhere():
    async with broker_on() as broker:
        (finish,) = running(broker.session, "mail")
        waiting = asyncio.ensure_future(broker.execute(SOMEONE, ops.WaitTask(finish.task_id, 60.0)))
        await waits_of(broker, 1)
        await broker.drain()
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await broker.execute(SOMEONE, ops.WaitTask(finish.task_id, 60.0))
        assert await broker.execute(SOMEONE, ops.FinishTasks([finish])) == [None]


def test_a_client_that_stops_waiting_takes_its_request_back(world):
    (finish,) = running(world.session, "mail")

    async def run() -> None:
        async with aio.connect(world.broker.url) as ps:
            waiting = asyncio.ensure_future(ps._session.execute(ops.WaitTask(finish.task_id, 60.0)))
            await until(lambda: world.broker.broker.waits)
            waiting.cancel()
            await asyncio.wait([waiting])
            await until(lambda: not world.broker.broker.waits)
            assert (await ps._session.execute(ops.FindTask(finish.task_id))).state is TaskState.RUNNING
            lost = asyncio.ensure_future(ps._session.execute(ops.WaitTask(finish.task_id, 60.0)))
            await until(lambda: world.broker.broker.waits)
            before = set(world.broker.broker.waits)
            await asyncio.to_thread(world.broker.cut)
            await until(lambda: set(world.broker.broker.waits) - before)  # it has asked again
            assert (await ps._session.execute(ops.FinishTasks([finish]))) == [None]
            assert (await lost).state is TaskState.COMPLETED

    asyncio.run(asyncio.wait_for(run(), 60))


def test_thousands_who_wait_keep_nobody_from_being_heard(world, monkeypatch):
    monkeypatch.setattr(connection, "UNANSWERED_MAX", 20)
    monkeypatch.setattr(dispatch, "WAITS_MAX", 50)
    finishes = running(world.session, "mail", 60)

    async def run() -> None:
        async with aio.connect(world.broker.url) as ps:
            session = ps._session
            waiting = [asyncio.ensure_future(session.execute(ops.WaitTask(each.task_id, 60.0))) for each in finishes]
            await until(lambda: len(world.broker.broker.waits) == len(finishes))
            assert await session.execute(ops.FinishTasks(finishes)) == [None] * len(finishes)
            assert {view.state for view in await asyncio.gather(*waiting)} == {TaskState.COMPLETED}
            (peer,) = world.broker.server._connections
            assert (peer._unanswered, peer._waits, peer._pending) == (0, {}, {})

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_worker_hears_of_a_task_that_was_cancelled_while_it_ran(world):
    (finish,) = running(world.session, "mail")

    async def run() -> None:
        async with aio.connect(world.broker.url) as ps:
            session = ps._session
            assert (
                await session.execute(ops.HeartbeatWorker(WorkerInfo(worker_id="w1", queues=("mail",))))
            ).cancelled == ()
            news = asyncio.ensure_future(session.execute(ops.AwaitNews("w1", 60.0)))
            await until(lambda: world.broker.broker.waits)
            view = await session.execute(ops.CancelTask(finish.task_id))
            assert view.state is TaskState.CANCELLED
            assert (await news).cancelled == (finish.task_id,)
            assert isinstance((await session.execute(ops.FinishTasks([finish])))[0], LeaseLost)
            assert [each.info.worker_id for each in await session.execute(ops.Workers())] == ["w1"]
            await session.execute(ops.ForgetWorker("w1"))
            assert await session.execute(ops.Workers()) == []

    asyncio.run(asyncio.wait_for(run(), 60))


# access, bad input, the short form


@on_uvloop
async def test_whether_somebody_may_depends_on_the_queue_of_the_task():
    def only_mail(principal: Any, action: str, queue: str) -> None:
        if queue != "mail":
            raise NotAuthorised(f"{action} on {queue!r}")

    async with broker_on(authorise=only_mail) as broker:
        mine, theirs = running(broker.session, "mail")[0], running(broker.session, "secret")[0]
        client = Client(Principal("ann"), "test", "127.0.0.1", "test")
        for made in (ops.FindTask, ops.CancelTask, ops.RetryTask, lambda id: ops.WaitTask(id, 1.0)):
            given = made(theirs.task_id)
            with pytest.raises(NotAuthorised):
                await broker.execute(client, given)
        with pytest.raises(NotAuthorised):
            await broker.execute(client, ops.FinishTasks([mine, theirs]))
        with pytest.raises(NotAuthorised):
            await broker.execute(client, ops.SubmitTasks([new("mail"), new("secret")]))
        assert (await broker.execute(client, ops.FindTask(mine.task_id))).state is TaskState.RUNNING
        assert await broker.execute(client, ops.FinishTasks([mine])) == [None]


def test_bad_input_is_refused_by_its_name(world):
    with penstock.connect(world.broker.url) as ps:
        session: Any = ps._session
        with pytest.raises(TaskNotFound):
            run_operation(session, ops.FindTask(UNKNOWN))
        with pytest.raises(TaskNotFound):
            run_operation(session, ops.WaitTask(UNKNOWN, 1.0))
        with pytest.raises(InvalidField, match="task_id"):
            run_operation(session, ops.FindTask("nonsense"))
        with pytest.raises(InvalidField, match="task_id"):
            run_operation(session, ops.WaitTask("nonsense", 1.0))
        with pytest.raises(InvalidField, match=r"tasks\[1\]\.args"):
            run_operation(session, ops.SubmitTasks([new(), new(args=b"{}", unique_key="k")]))
        with pytest.raises(InvalidField, match="wait"):
            session.ask(asking.execute(ops.WaitTask(UNKNOWN, 61.0)))
        wrong = {"receipt": ["mail", "0", 0, 1, 7], "task_id": UNKNOWN, "outcome": "lost"}
        request = asking.execute(ops.FinishTasks([]))
        request.encode = lambda _: (requests.encode(["finish_tasks", {"finishes": [wrong]}]),)
        with pytest.raises(InvalidField, match="outcome"):
            session.ask(request)


@on_uvloop
async def test_single_tasks_of_one_turn_become_one_frame():
    async with broker_on() as broker:
        broker.session.push_one("mail", encode_one(b"first"))
        before = broker.shard.journal.sequence
        answers: list[Any] = []
        for number in range(10):
            payload = envelopes.encode_envelope(new())
            broker.push_one(SOMEONE, "mail", payload, (7, 1, number + 1), answers.append, ContentType.TASK)
        await until(lambda: len(answers) == 10)
        assert broker.shard.journal.sequence == before + 1
        assert answers == [("0", offset) for offset in range(1, 11)]


def test_tasks_with_the_same_options_become_one_frame(world):
    options: list[dict[str, Any]] = [{"priority": 200, "max_attempts": 3}, {"delay_seconds": 60.0}, {"key": "k"}]
    tasks = [new(**each) for each in options for _ in range(5)]

    async def run() -> None:
        async with aio.connect(world.broker.url) as ps:
            await ps.queue("mail").push(b"first")
            before = world.session.shard.journal.sequence
            pushes = [ps._session.push_one("mail", envelopes.task_message(task), None) for task in tasks]
            ids = await asyncio.gather(*pushes)
            assert len(set(ids)) == len(tasks)
            assert world.session.shard.journal.sequence == before + 1 + 1 + 5  # keys choose partitions
            views = [await ps._session.execute(ops.FindTask(task.task_id)) for task in tasks]
            assert [view.message_id for view in views] == list(map(str, ids))
            assert [view.priority for view in views] == [200] * 5 + [128] * 10
            assert [view.max_attempts for view in views[:6]] == [3] * 5 + [views[5].max_attempts]
            assert [view.state for view in views] == ["pending"] * 5 + ["scheduled"] * 5 + ["pending"] * 5

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    "options", [{}, {"priority": 7}, {"delay_us": 5, "ttl_us": 9}, {"max_attempts": 300, "content_type": 3}]
)
def test_messages_with_the_same_options_are_packed_as_each_was(options):
    payloads = [b"a", b"", b"ccc"]
    ones = [Batch(encode_one_with(payload, **options)) for payload in payloads]
    alike = alike_of(ones[0].data)
    assert alike is not None
    for count in (1, 3):
        packed = Batch.parse(encode_plain(payloads[:count], alike), validate=True)
        assert packed.payloads() == payloads[:count]
        for flag in layout.FIXED:
            column, expected = packed.fixed(flag), ones[0].fixed(flag)
            assert (column is None) == (expected is None)
            assert column is None or expected is None or set(column.tolist()) == set(expected.tolist())
    for other in ({"key": "k"}, {"dedup_key": "k"}, {"deliver_at_us": 5}, {"headers": {"a": "b"}}):
        assert alike_of(encode_one_with(b"", **options, **other)) is None


def test_the_short_form_says_what_the_message_holds():
    data = encode_one_with(b"{}", content_type=ContentType.TASK)
    request = asking.push_encoded("mail", data, None)
    assert b"".join(request.encode(5)).hex() == "03" + "0000000000000005" + "04" + b"mail".hex() + b"{}".hex()
    assert asking.push_encoded("mail", data, "os").kind != request.kind
    assert asking.push_encoded("mail", encode_one_with(b"{}", priority=3), None).kind != request.kind
    with pytest.raises(BadRequest, match="not a content type"):
        requests.content_type_of(b"\x09", 0, 1)
    with pytest.raises(BadRequest, match="cut short"):
        requests.content_type_of(b"", 0, 0)


def test_what_was_pushed_in_the_short_form_is_a_task(world):
    task = new()
    with penstock.connect(world.broker.url) as ps:
        ps._session.push_one("mail", envelopes.task_message(task), None)
        assert run_operation(ps._session, ops.FindTask(task.task_id))[0].state is TaskState.PENDING
