"""What mypy must know about tasks, jobs and workflows.

A line that must be refused carries an ignore with the very error; strict mode complains about one that is not needed.
Nothing here is run: tests/tasks/test_app_typing.py has it checked.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from penstock import App, Job, Snooze, Task, TaskState, TaskView, Workflow, chain, current_task, group

app = App("penstock://localhost:7710")


@app.task
def bare(count: int, name: str = "") -> list[str]:
    return [name] * count


@app.task(queue="mail", max_attempts=5, timeout=30, unique=60, key="to", fatal=ValueError)
async def send(to: str, *, loud: bool = False) -> int:
    if loud:
        raise Snooze(60)
    return len(to)


@app.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


def functions_stay_functions() -> None:
    assert_type(bare(1, "x"), list[str])
    running = [assert_type(send("x", loud=True), Coroutine[Any, Any, int])]
    bare("1")  # type: ignore[arg-type]
    running += [send("x", True)]  # type: ignore[call-arg]


def enqueueing_takes_what_the_function_takes() -> None:
    assert_type(bare.enqueue(1, name="x"), Job[list[str]])
    assert_type(send.enqueue("x"), Job[int])
    assert_type(send.options(delay=60, priority="high").enqueue("x", loud=True), Job[int])
    assert_type(send.enqueue_many([("x",), ("y",)]), list[Job[int]])
    with app.penstock.transaction() as tx:
        assert_type(send.enqueue_in(tx, "x"), Job[int])
        send.enqueue_in(tx, 1)  # type: ignore[arg-type]
    send.enqueue(1)  # type: ignore[arg-type]
    send.enqueue()  # type: ignore[call-arg]
    send.enqueue("x", quiet=True)  # type: ignore[call-arg]
    send.options(delay=60).enqueue(1)  # type: ignore[arg-type]
    send.options(dealy=60)  # type: ignore[call-arg]
    send.options(delay="60")  # type: ignore[arg-type]


def results_are_those_of_the_function(job: Job[int]) -> None:
    assert_type(bare.enqueue(1).result(), list[str])
    assert_type(send.enqueue("x").result(timeout=5), int)
    assert_type(job.status(), TaskState)
    assert_type(job.info(), TaskView)
    assert_type(current_task().attempt, int)
    if job.status() == "completed" or job.status() is TaskState.DEAD:
        text: str = job.result()  # type: ignore[assignment]
        assert text


async def and_so_they_are_on_a_loop() -> None:
    assert_type(await send("x"), int)
    assert_type(await send.aenqueue("x"), Job[int])
    assert_type(await (await send.aenqueue("x")).aresult(), int)
    assert_type(await send.aenqueue_many(["x"]), list[Job[int]])
    await send.aenqueue(1)  # type: ignore[arg-type]


def workflows_know_what_comes_out_of_them() -> None:
    assert_type(chain(send.s("x"), bare.s()).enqueue(), Workflow[list[str]])
    assert_type(chain(send.s("x"), bare.s(), send.s()).enqueue().result(), int)
    assert_type(group(send.s(to) for to in ["x", "y"]).enqueue().result(), list[int])
    assert_type(group(send.s("x"), send.s("y")).then(total.s()).enqueue().result(), int)
    assert_type((send.s("x") | bare.s()).enqueue().result(), list[str])
    chain(send)  # type: ignore[call-overload]


def declarations_are_checked(known: Task[[int], int, int]) -> None:
    @app.task(quue="mail")  # type: ignore[call-overload]
    def wrong() -> None: ...

    @app.task(max_attempts="5")  # type: ignore[call-overload]
    def wrong_too() -> None: ...

    assert_type(known(1), int)
    app.schedule("nightly", "0 3 * * *", bare.s(1))
    app.jobs(status="dead", task_type=send)
    app.jobs(state="dead")  # type: ignore[call-arg]
