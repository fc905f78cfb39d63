"""The task index: what has become of each task, as the journal tells it."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from penstock.batch import Batch
from penstock.clock import ManualClock
from penstock.delivery import admin
from penstock.envelopes import new_task_id, tasks_batch
from penstock.errors import InvalidField
from penstock.model import ContentType, Message, Outcome, to_datetime
from penstock.model_tasks import BulkOptions, OperationAction, TaskFilter, TaskState, TaskSubmission, TaskView
from penstock.requests import LeaseRequest, Settling
from penstock.shard.bulk import book
from penstock.shard.opening import open_in_memory
from penstock.shard.shard import Shard
from penstock.shard.tasks import operations
from penstock.storage.task_changes import id_bytes
from penstock.task_index.argument_filter import argument_terms
from penstock.task_index.index import TaskIndex


class Scene:
    """A shard in memory, its task index, and a hand to do things with."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.shard: Shard = open_in_memory(self.clock, random.Random(1))
        self.task_index = TaskIndex(self.shard)

    def submit(self, count: int = 1, **fields: Any) -> list[str]:
        tasks = [submission(new_task_id(self.clock.now()), **fields) for _ in range(count)]
        self.shard.push(tasks[0].queue, tasks_batch(tasks), None, None)
        return [task.task_id for task in tasks]

    def lease(self, count: int = 1, queue: str = "mail", worker: str = "w1") -> Any:
        return self.shard.lease(queue, "default", LeaseRequest(count, consumer=worker))[0]

    def settle(self, reply: Any, outcome: Outcome, **how: Any) -> None:
        self.shard.settle_lease(reply.nonce, Settling(outcome, **how))

    def find(self, task_id: str) -> TaskView | None:
        self.task_index.catch_up()
        return self.task_index.find(task_id)

    def task(self, task_id: str) -> TaskView:
        found = self.find(task_id)
        assert found is not None
        return found

    def state(self, task_id: str) -> str:
        found = self.find(task_id)
        return "gone" if found is None else found.state.value

    def purge(self, **wanted: Any) -> int:
        """Forget final tasks that match, a few at a time."""
        filter = msgspec.json.encode(TaskFilter(**wanted))
        name, _ = book.begin(
            self.shard,
            "",
            lambda now, name: book.draft(OperationAction.PURGE, filter, BulkOptions(), "local", now, name, 0),
        )
        phase = operations.Phase((), cancels=False, purges=True)
        count, cursor = 0, None
        while targets := self.task_index.targets(TaskFilter(**wanted), cursor, 7, self.clock.now()):
            cursor = targets[-1].submitted_at, targets[-1].number
            taken = operations.take_step(self.shard, name, phase, targets)
            assert taken is not None
            count += taken[0].purged
        return count

    def ids(self, **wanted: Any) -> list[str]:
        self.task_index.catch_up()
        return [task.task_id for task in self.task_index.page(TaskFilter(**wanted)).tasks]


def submission(task_id: str, **fields: Any) -> TaskSubmission:
    return TaskSubmission(**{"task_id": task_id, "task_type": "mail.send", "queue": "mail"} | fields)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_task_is_there_as_soon_as_it_is_submitted(scene):
    (task_id,) = scene.submit(args=b'["a@b.c",7]', kwargs=b'{"html":true}', priority=3, key="k", workflow="w")

    task = scene.task(task_id)

    assert (task.task_id, task.task_type, task.queue, task.state) == (task_id, "mail.send", "mail", "pending")
    assert (task.args, task.kwargs, task.priority, task.key) == (b'["a@b.c",7]', b'{"html":true}', 3, "k")
    assert (task.message_id, task.max_attempts, task.workflow) == ("mail/0/0", 5, "w")
    assert task.result is None
    assert not task.runs
    assert scene.find(new_task_id(1)) is None
    assert scene.find("no id at all") is None


def test_a_run_is_seen_and_its_end(scene):
    (task_id,) = scene.submit()
    reply = scene.lease(worker="w7")

    running = scene.task(task_id)
    assert (running.state, running.worker, running.attempt) == ("running", "w7", 1)
    assert [(run.attempt, run.worker, run.outcome, run.ended_at) for run in running.runs] == [(1, "w7", "", None)]

    scene.clock.advance(2)
    scene.settle(reply, Outcome.ACKED)
    done = scene.task(task_id)
    assert done.state is TaskState.COMPLETED
    assert (done.finished_at - done.started_at).total_seconds() == 2
    assert [(run.attempt, run.outcome, run.error) for run in done.runs] == [(1, "acked", "")]


def test_a_failure_waits_for_its_next_attempt_and_every_attempt_is_kept(scene):
    (task_id,) = scene.submit(max_attempts=2)
    scene.settle(scene.lease(), Outcome.RETRIED, delay_seconds=10, error="boom")
    failed = scene.task(task_id)
    assert (failed.state, failed.error) == ("failed", "boom")
    assert (failed.due_at - failed.submitted_at).total_seconds() == 10

    scene.clock.advance(11)
    assert scene.state(task_id) == "pending"

    scene.settle(scene.lease(worker="w2"), Outcome.RETRIED, error="bang")
    dead = scene.task(task_id)
    assert (dead.state, dead.error, dead.attempt) == ("dead", "bang", 2)
    assert [(run.attempt, run.worker, run.outcome, run.error) for run in dead.runs] == [
        (1, "w1", "retried", "boom"),
        (2, "w2", "dead", "bang"),
    ]
    assert scene.ids(queue="mail.dlq") == []  # a dead letter is no task of its own


def test_what_was_not_due_yet_is_scheduled_until_it_is(scene):
    (task_id,) = scene.submit(delay_seconds=60)
    assert scene.ids(states=("scheduled",)) == [task_id]
    assert scene.ids(states=("pending",)) == []

    scene.clock.advance(61)

    assert scene.ids(states=("scheduled",)) == []
    assert scene.ids(states=("pending",)) == [task_id]


@pytest.mark.parametrize(
    ("outcome", "how", "state"),
    [
        (Outcome.SNOOZED, {"delay_seconds": 5}, "scheduled"),
        (Outcome.RELEASED, {}, "pending"),
        (Outcome.REJECTED, {"error": "no"}, "dead"),
    ],
)
def test_each_end_of_a_run_has_its_state(scene, outcome, how, state):
    (task_id,) = scene.submit()
    scene.settle(scene.lease(), outcome, **how)

    assert scene.state(task_id) == state
    assert [run.outcome for run in scene.task(task_id).runs] == [outcome.name.lower()]


def test_a_lease_that_runs_out_is_a_failure(scene):
    (task_id,) = scene.submit()
    scene.lease()
    scene.clock.advance(31)

    assert scene.task(task_id).error == "the lease expired"
    assert [run.outcome for run in scene.task(task_id).runs] == ["timed_out"]


def test_expired_and_purged_tasks_are_cancelled_and_what_was_done_before_stays(scene):
    (done,) = scene.submit()
    scene.settle(scene.lease(), Outcome.ACKED)
    (expired,) = scene.submit(ttl_seconds=5)
    (waiting,) = scene.submit()
    (held,) = scene.submit(priority=200)
    scene.lease()
    scene.clock.advance(6)
    assert scene.state(expired) == "cancelled"
    scene.shard.change(lambda now: admin.decide_purge(scene.shard.core.by_name["mail"], now))

    assert scene.task(expired).error == "it expired before it was run"
    assert [scene.task(task_id).error for task_id in (waiting, held)] == ["its queue was purged"] * 2
    assert scene.state(done) == "completed"


def test_tasks_of_a_queue_that_is_deleted_are_cancelled(scene):
    (done,) = scene.submit()
    scene.settle(scene.lease(), Outcome.ACKED)
    (waiting,) = scene.submit()
    core = scene.shard.core
    scene.shard.change(lambda now: admin.decide_delete_queue(core, core.by_name["mail"]))
    (new,) = scene.submit()

    assert scene.task(waiting).error == "its queue was deleted"
    assert scene.state(done) == "completed"
    assert scene.ids(queue="mail") == [new, waiting, done]
    assert scene.ids(queue="mail", states=("pending",)) == [new]


def test_a_group_that_is_moved_brings_tasks_back_or_passes_them(scene):
    first, second, third = scene.submit(3)
    scene.settle(scene.lease(2), Outcome.ACKED)
    group = scene.shard.core.by_name["mail"].groups[0]

    scene.shard.change(lambda now: admin.decide_seek(group, {0: 1}, now))
    assert [scene.state(task_id) for task_id in (first, second, third)] == ["completed", "pending", "pending"]

    scene.shard.change(lambda now: admin.decide_seek(group, "latest", now))
    assert [scene.state(task_id) for task_id in (first, second, third)] == ["completed", "cancelled", "cancelled"]


def test_many_tasks_in_one_look_are_each_seen_as_they_ended(scene):
    ids = scene.submit(500)
    scene.settle(scene.lease(200), Outcome.ACKED)
    scene.lease(100, worker="w2")

    counts = {state: len(scene.ids(states=(state,), limit=1000)) for state in ("completed", "running", "pending")}

    assert counts == {"completed": 200, "running": 100, "pending": 200}
    assert scene.ids(limit=1000) == ids[::-1]


def test_messages_that_are_no_tasks_are_left_out_whatever_they_say(scene):
    texts = [b"", b"{}", b"no json", b'{"task_id":"7","task_type":"t"}', b'{"task_id":null,"task_type":"t"}', b"\xff"]
    batch = Batch.build([Message(payload=text, content_type=ContentType.TASK) for text in texts])
    scene.shard.push("mail", batch, None, None)
    scene.shard.push("mail", Batch.build([b"bytes", "text", {"json": 1}]), None, None)
    (task_id,) = scene.submit()
    scene.settle(scene.lease(20), Outcome.ACKED)

    assert scene.ids() == [task_id]
    assert scene.state(task_id) == "completed"


def test_an_id_that_is_used_again_is_the_newer_task(scene):
    task_id = new_task_id(1)
    for args in (b"[1]", b"[2]"):
        scene.shard.push("mail", tasks_batch([submission(task_id, args=args)]), None, None)
        assert scene.task(task_id).args == args

    scene.settle(scene.lease(), Outcome.ACKED)  # the first one's message
    assert scene.state(task_id) == "pending"


# Searching.


def test_pages_have_every_task_once_while_others_come(scene):
    ids = []
    for _ in range(7):
        ids += scene.submit(3)
        scene.clock.advance(0.001)
    seen, cursor = [], None
    while True:
        scene.task_index.catch_up()
        page = scene.task_index.page(TaskFilter(limit=4, cursor=cursor))
        seen += [task.task_id for task in page.tasks]
        scene.submit(5)
        cursor = page.cursor
        if cursor is None:
            break

    assert seen == ids[::-1]


def test_filters_are_met_together(scene):
    a, b = scene.submit(2, task_type="a", workflow="w1", args=b'[7,"x"]')
    (c,) = scene.submit(task_type="b", queue="other", kwargs=b'{"to":{"name":"Zo\\u00eb"},"n":[true,null]}')
    scene.settle(scene.lease(worker="w1"), Outcome.RETRIED, delay_seconds=60, error="Traceback: timeout at smtp")
    start = scene.clock.now()
    scene.clock.advance(10)
    (d,) = scene.submit(task_type="a", args=b'["7"]')

    assert scene.ids(task_type="a") == [d, b, a]
    assert scene.ids(task_type="a", states=("failed", "pending")) == [d, b, a]
    assert scene.ids(task_type="a", states=("failed",)) == [a]
    assert scene.ids(queue="other") == [c]
    assert scene.ids(worker="w1") == [a]
    assert scene.ids(workflow="w1", states=("pending",)) == [b]
    assert scene.ids(submitted_since=to_datetime(start + 1)) == [d]
    assert scene.ids(submitted_until=to_datetime(start + 1), task_type="a") == [b, a]
    assert scene.ids(error_contains="smtp") == [a]
    assert scene.ids(argument="7") == [d, b, a]
    assert scene.ids(argument="args.0=7") == [d, b, a]
    assert scene.ids(argument="args.1=x") == [b, a]
    assert scene.ids(argument="args.1=7") == []
    assert scene.ids(argument="Zoë") == [c]
    assert scene.ids(argument="kwargs.to.name=Zoë") == [c]
    assert scene.ids(argument="kwargs.n.0=true") == [c]
    assert scene.ids(argument="kwargs.n.1=null") == [c]
    assert scene.ids(argument="1") == []  # true is not 1
    for nobody in ({"task_type": "z"}, {"queue": "z"}, {"worker": "z"}, {"worker": ""}, {"schedule": "z"}):
        assert scene.ids(**nobody) == []


@pytest.mark.parametrize(
    ("kwargs", "argument"),
    [
        (b'{"a":{"7":"x"}}', "kwargs.a.7=x"),
        (b'{"a":[{"0":{"1":[5,"x"]}}]}', "kwargs.a.0.0.1.1=x"),
        (b'{"7":"x"}', "kwargs.7=x"),
        (b'{"a":"1\\u002B2"}', "1+2"),
        (b'{"a":"1\\u002B2"}', "kwargs.a=1+2"),
        (b'{"a":"\\u0061\\u0040b.c"}', "a@b.c"),
        (b'{"na\\u006De":"x"}', "kwargs.name=x"),
        (b'{"say \\"hi\\"":"x"}', 'kwargs.say "hi"=x'),
        (b'{"a":"a\\/b"}', "kwargs.a=a/b"),
        (b'{"a":"line\\nnext \\\\ \\"end\\""}', 'line\nnext \\ "end"'),
        ('{"caf\u00e9":"x"}'.encode(), "kwargs.caf\u00e9=x"),
        (b'{"caf\\u00e9":"x"}', "kwargs.caf\u00e9=x"),
    ],
)
def test_numeric_names_at_any_depth_and_escaped_characters_are_found(scene, kwargs, argument):
    scene.submit(kwargs=b'{"a":{"8":"x"},"b":"1-2"}')
    (wanted,) = scene.submit(kwargs=kwargs)

    assert scene.ids(argument=argument) == [wanted]


@pytest.mark.parametrize(
    "text",
    [
        "b.c",
        "a/b",
        "Zoë",
        "ë at first",
        "at last ë",
        "ë in ë between",
        '"',
        'x"y',
        "a\\",
        "a\nb",
        " ",
        "7",
        "1e5",
        "null",
    ],
)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_text_among_the_arguments_is_found_however_it_is_escaped(scene, text, is_ascii):
    kwargs = json.dumps({"to": [text]}, ensure_ascii=is_ascii).encode()
    longer = json.dumps({"to": [f"x{text}", f"{text}x", {text: "x"}]}, ensure_ascii=is_ascii).encode()
    (wanted,) = scene.submit(kwargs=kwargs)
    scene.submit(kwargs=longer)

    assert scene.ids(argument=text) == [wanted]
    assert scene.ids(argument=f"kwargs.to.0={text}") == [wanted]


def test_only_tasks_that_hold_the_whole_text_are_looked_into():
    glimpses = {text: argument_terms(text)[1]["glimpse"] for text in ("b.c", "at last ë", "ë at first", "7", "true")}

    assert glimpses == {"b.c": '"b.c"', "at last ë": '"at last ', "ë at first": ' at first"', "7": "7", "true": "true"}


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "1-zz"}, "cursor"),
        ({"limit": 0}, "limit"),
        ({"argument": ""}, "argument"),
    ],
)
def test_what_cannot_be_looked_for_is_refused_by_name(scene, wanted, field):
    with pytest.raises(InvalidField, match=f"^{field}: "):
        scene.ids(**wanted)


# Listening.


def test_listeners_are_notified_what_changed_and_only_what_they_want(scene):
    everything: list[TaskView] = []
    some: list[TaskView] = []
    wanted: set[bytes] = set()
    end = scene.task_index.on_change(everything.extend)
    scene.task_index.on_change(some.extend, lambda: wanted)
    first, second = scene.submit(2)
    wanted.add(id_bytes(second))
    scene.task_index.catch_up()
    scene.settle(scene.lease(2), Outcome.ACKED)
    scene.task_index.catch_up()

    assert [(view.task_id, view.state) for view in some] == [(second, "pending"), (second, "completed")]
    assert {view.task_id for view in everything} == {first, second}
    end()
    scene.submit()
    scene.task_index.catch_up()
    assert len(everything) == 4


# Forgetting.


def test_final_tasks_are_forgotten_after_their_time_and_others_are_not(scene):
    (old,) = scene.submit()
    (waiting,) = scene.submit(delay_seconds=30 * 86_400)
    scene.settle(scene.lease(), Outcome.ACKED)
    scene.clock.advance(6 * 86_400)
    (new,) = scene.submit()
    scene.settle(scene.lease(), Outcome.ACKED)
    scene.task_index.catch_up()
    assert scene.task_index.expire() == 0

    scene.clock.advance(2 * 86_400)

    assert scene.task_index.expire() == 1
    assert scene.find(old) is None
    assert scene.ids() == [new, waiting]


def test_a_parent_stays_while_a_child_is_not_final(scene):
    (parent,) = scene.submit()
    scene.settle(scene.lease(), Outcome.ACKED)
    (child,) = scene.submit(depends_on=(parent,))
    scene.clock.advance(8 * 86_400)
    scene.task_index.catch_up()
    assert scene.task_index.expire() == 0
    assert scene.purge() == 0

    scene.settle(scene.lease(), Outcome.ACKED)
    scene.task_index.catch_up()

    assert scene.task_index.expire() == 1
    assert scene.ids() == [child]


def test_forgetting_goes_by_the_filter_over_all_pages(scene):
    ids = scene.submit(30, task_type="a")
    other = scene.submit(3, task_type="b")
    scene.settle(scene.lease(33), Outcome.ACKED)
    (waiting,) = scene.submit(task_type="a")
    scene.task_index.catch_up()

    assert scene.purge(task_type="a") == len(ids)
    assert scene.ids() == [waiting, *other[::-1]]
