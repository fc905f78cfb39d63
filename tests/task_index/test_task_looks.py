"""Looking for many tasks at once: everybody is answered, by a look that began after the question."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.errors import Closed, Internal, TaskNotFound
from penstock.model_tasks import TaskState, TaskView
from penstock.shard.tasks.waits import Looks


def view(task_id: str) -> TaskView:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    return TaskView(task_id=task_id, task_type="send", queue="mail", state=TaskState.PENDING, submitted_at=at)


def test_those_who_ask_meanwhile_share_the_next_look():
    looks: Looks
    seen: list[list[str]] = []
    reported: list[str] = []

    def note(name):
        return lambda answer: reported.append(f"{name}: {getattr(answer, 'task_id', type(answer).__name__)}")

    def views(ids):
        if not seen:
            assert not looks.ask("b", note("second"))
            assert not looks.ask("b", note("third"))
            assert not looks.ask("lost", note("fourth"))
        seen.append(sorted(ids))
        return [view(task_id) for task_id in ids if task_id != "lost"]

    looks = Looks(views)
    assert looks.ask("a", note("first"))
    looks.lead()

    assert seen == [["a"], ["b", "lost"]]
    assert reported == ["first: a", "second: b", "third: b", "fourth: TaskNotFound"]
    assert looks.ask("a", note("again"))


def test_a_look_that_fails_answers_everybody_and_the_next_one_is_led_again():
    failures = [Closed("closed"), ZeroDivisionError()]
    answers: list[object] = []

    def views(ids):
        if failures:
            raise failures.pop(0)
        return []

    looks = Looks(views)
    for _ in range(3):
        assert looks.ask("a", answers.append)
        looks.lead()

    assert [type(answer) for answer in answers] == [Closed, Internal, TaskNotFound]


def test_whoever_cannot_be_reported_any_more_keeps_nobody_else_waiting():
    def gone(answer):
        raise RuntimeError("the loop is closed")

    answers: list[object] = []
    looks = Looks(lambda ids: map(view, ids))
    looks.ask("a", gone)
    looks.ask("a", answers.append)
    looks.lead()

    assert answers == [view("a")]
