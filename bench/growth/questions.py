"""Questions of people about many messages and tasks: they wait for the answer, and nobody else waits for them."""

from __future__ import annotations

from typing import Any

from bench.growth.cost import CONSTANT, LINEAR, Setting, Work, cost
from penstock import Message
from penstock import operations as ops
from penstock.envelopes import new_task_id
from penstock.model import Outcome
from penstock.model_letters import MessageFilter
from penstock.model_tasks import TaskFilter, TaskSubmission
from penstock.requests import LeaseRequest, Settling
from tests.support.operations import run_operation

BATCH = 1_000


def _filled(setting: Setting, messages: int, keys: int = 1_000_000, **options: Any) -> None:
    """A queue whose messages have keys."""
    queue = setting.ps.create_queue("mail", **options)
    for first in range(0, messages, BATCH):
        numbers = range(first, min(first + BATCH, messages))
        queue.push_many([Message(payload=b'{"n":1}', key=f"k{number % keys}") for number in numbers])
        setting.clock.advance(1)


def _again(setting: Setting, question: ops.Operation[Any]) -> Work:
    """A question that was asked before: what is imported and read for the first one does not count."""
    run_operation(setting.session, question)
    return lambda: run_operation(setting.session, question)


@cost("search for what is nowhere", "messages", (10_000, 40_000, 100_000), (3_000, 24_000))
def search(setting: Setting, messages: int) -> Work:
    """A page that looks at all of them."""
    _filled(setting, messages)
    return _again(setting, ops.SearchMessages("mail", MessageFilter(text="nowhere"), look_back=100_000))


@cost("search for the newest", "messages", (10_000, 40_000, 160_000), (3_000, 24_000), exponent_max=CONSTANT)
def search_newest(setting: Setting, messages: int) -> Work:
    """A page of the newest, however many are older."""
    _filled(setting, messages)
    return _again(setting, ops.SearchMessages("mail", MessageFilter(), limit=20))


@cost(
    "preview of a seek",
    "messages, every second settled",
    (10_000, 40_000, 100_000),
    (2_000, 16_000),
    exponent_max=CONSTANT,
)
def preview_seek(setting: Setting, messages: int) -> Work:
    """What moving a group to the middle would do."""
    _filled(setting, messages)
    for number, delivery in enumerate(setting.ps.queue("mail").lease(messages)):
        if number % 2:
            delivery.ack()
    return _again(setting, ops.PreviewSeek("mail", "default", messages // 2, None))


@cost("signatures", "dead letters", (2_500, 5_000, 10_000), (1_000, 8_000))
def signatures(setting: Setting, letters: int) -> Work:
    """Dead letters by their errors."""
    _filled(setting, letters)
    setting.ps.queue("mail").lease(letters).reject("ValueError: no")
    return _again(setting, ops.LetterSignatures("mail", 10))


@cost("why a queue waits", "messages", (30_000, 120_000, 480_000), (24_000, 96_000))
def why_queue(setting: Setting, messages: int) -> Work:
    """The reasons of all messages, most of which wait for others of their keys."""
    _filled(setting, messages, keys=100, ordering="key")
    setting.ps.queue("mail").lease(100)
    return _again(setting, ops.WhyQueue("mail"))


@cost("keys of a queue", "keys", (30_000, 120_000, 480_000), (24_000, 96_000))
def keys(setting: Setting, messages: int) -> Work:
    """The keys with the largest backlog."""
    _filled(setting, messages)
    return _again(setting, ops.MessageKeys("mail"))


# tasks


def _submitted(setting: Setting, tasks: int, children: int, workflow: str = "") -> None:
    """Parents with children, which wait for them."""
    for number in range(tasks):
        name = workflow or f"w{number}"
        parent = new_task_id(setting.clock.now())
        family = [TaskSubmission(task_id=parent, task_type="t", queue="mail", workflow=name)]
        for _ in range(children):
            child = new_task_id(setting.clock.now())
            family.append(
                TaskSubmission(task_id=child, task_type="t", queue="mail", workflow=name, depends_on=(parent,))
            )
        run_operation(setting.session, ops.SubmitTasks(tuple(family)))
        setting.clock.advance(0.001)


@cost("workflows: a page", "workflows", (500, 2_000, 8_000), (200, 1_600), exponent_max=CONSTANT)
def workflows(setting: Setting, workflows: int) -> Work:
    """The newest of many."""
    _submitted(setting, workflows, 1)
    return _again(setting, ops.ListWorkflows(20))


@cost("workflows: one", "tasks of it", (500, 2_000, 8_000), (60, 480), exponent_max=LINEAR)
def workflow(setting: Setting, tasks: int) -> Work:
    """One with all its tasks, and its critical path."""
    _submitted(setting, tasks, 1, "shop")
    return _again(setting, ops.FindWorkflow("shop"))


@cost("tasks: retry all", "dead tasks with a child each", (500, 2_000, 8_000), (200, 1_600), repeats=1)
def retry_all(setting: Setting, tasks: int) -> Work:
    """Tasks that died one after the other, and children that were cancelled because of them."""
    _submitted(setting, tasks, 1)
    for _ in range(tasks):
        reply, _ = setting.session.lease("mail", "default", LeaseRequest(1))
        setting.session.settle_lease(reply.nonce, Settling(Outcome.REJECTED, error="no"))
        setting.clock.advance(0.001)
    run_operation(setting.session, ops.ListTasks(TaskFilter()))

    def work() -> None:
        view, _ = run_operation(setting.session, ops.BeginOperation("retry", TaskFilter(), "again"))
        assert (view.done, view.failed) == (2 * tasks, 0), view

    return work
