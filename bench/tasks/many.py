"""A million tasks: what they cost while they wait, and a page of them when they are done."""

from __future__ import annotations

from statistics import median
from time import perf_counter

from bench.measure import Row, Scale, directory
from bench.server.process import broker
from bench.tasks.app import QUEUE, tasks_at
from bench.tasks.process import TEXT
from penstock import operations as ops
from penstock.embedded.session import Session
from penstock.envelopes import new_task_id, parse_envelope, tasks_batch
from penstock.model import Receipt
from penstock.model_tasks import Finish, TaskFilter, TaskState, TaskSubmission
from penstock.requests import LeaseRequest
from tests.support.operations import run_operation

MILLION = 1_000_000
BATCH = 1_000
ROUNDS = 20


def memory(scale: Scale) -> list[Row]:
    """The broker's, with a million pending tasks."""
    with broker() as served:
        tasks = tasks_at(served.url)
        with tasks.app:
            for _ in range(scale(MILLION) // BATCH):
                tasks.noop.enqueue_many([(0.0, TEXT)] * BATCH)
            assert next(iter(tasks.app.jobs(status="pending"))).status() == "pending"
        resident = served.resident_mb()
    return [Row("broker memory, 1 M pending tasks", resident, "MB", floor=500, ceiling=True)]


def page(scale: Scale) -> list[Row]:
    """Of completed tasks, by status and type, the first and one further on."""
    with directory() as path:
        session = Session(path / "data", durability="os")
        begun = perf_counter()
        for number in range(scale(MILLION) // BATCH):
            _done(session, f"type-{number % 10}")
        caught = perf_counter()
        run_operation(session, ops.ListTasks(TaskFilter(limit=1)))
        behind = perf_counter() - caught
        seconds = [_page(session) for _ in range(ROUNDS)]
        session.close()
    rate = scale(MILLION) / (perf_counter() - begun)
    return [
        Row("1 M completed tasks, one page by status and type", 1_000 * median(seconds), "ms", floor=50, ceiling=True),
        Row("task index: seconds behind after 1 M tasks in a row", behind, "s"),
        Row("the whole life of a task in one process, no sync", rate, "/s"),
    ]


def _done(session: Session, task_type: str) -> None:
    tasks = [
        TaskSubmission(task_id=new_task_id(session.shard.clock.now()), task_type=task_type, queue=QUEUE, args=b"[1]")
        for _ in range(BATCH)
    ]
    session.push(QUEUE, tasks_batch(tasks), None, None)
    reply, _ = session.lease(QUEUE, "default", LeaseRequest(BATCH, consumer="bench"))
    finishes = []
    for piece in session.loaded(reply.pieces):
        for index, payload in enumerate(piece.payloads()):
            receipt = Receipt(QUEUE, piece.partition(index), piece.offsets[index], piece.attempt(index), reply.nonce)
            task_id = parse_envelope(payload).task_id
            finishes.append(Finish(receipt=receipt, task_id=task_id, outcome="completed", result=b"1"))
    accepted, _ = run_operation(session, ops.FinishTasks(finishes))
    assert accepted == [None] * BATCH


def _page(session: Session) -> float:
    wanted = TaskFilter(states=(TaskState.COMPLETED,), task_type="type-3")
    begun = perf_counter()
    found, _ = run_operation(session, ops.ListTasks(wanted))
    seconds = perf_counter() - begun
    assert len(found.tasks) == wanted.limit
    return seconds
