"""Signed tasks: what nobody with the key has submitted is not run."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from penstock.batch import Batch
from penstock.envelopes import new_task_id, tasks_batch
from penstock.errors import InvalidField
from penstock.model_tasks import TaskState, TaskSubmission
from penstock.tasks.local import LocalApp
from penstock.tasks.signing import HEADER, Signer

KEY, OTHER = b"k" * 32, b"o" * 32
ran: list[Any] = []


def app_with(*keys: bytes) -> LocalApp:
    app = LocalApp(sign=list(keys))

    @app.task(name="work", max_attempts=3)
    def work(number: int) -> int:
        ran.append(number)
        return number

    return app


@pytest.fixture(autouse=True)
def nothing_ran():
    ran.clear()


def forged(app: LocalApp, **fields: Any) -> str:
    """A task that somebody pushes to the queue of the app."""
    task = TaskSubmission(**{"task_id": new_task_id(app.clock.now()), "task_type": "work", "queue": "default"} | fields)
    app.open_session().push(task.queue, tasks_batch([task]), None, None)
    return task.task_id


def test_signed_tasks_run():
    app = app_with(KEY)
    work = app.tasks["work"]
    jobs = [work.enqueue(1), *work.enqueue_many([2, 3])]
    app.run_pending()
    assert [job.result() for job in jobs] == [1, 2, 3]
    assert asyncio.run(_async_run(app)) == 4


async def _async_run(app: LocalApp) -> Any:
    job = await app.tasks["work"].aenqueue(4)
    await app.arun_pending()
    return await job.aresult()


def test_a_task_that_is_not_signed_is_a_dead_letter_with_the_reason():
    app = app_with(KEY)
    id = forged(app, args=b"[5]")
    app.run_pending()
    view = app.job(id).info()
    assert (ran, view.state, view.error) == ([], TaskState.DEAD, "the task is not signed")


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": "01a00000-0000-7000-8000-000000000000"},
        {"args": b"[6]"},
        {"kwargs": b'{"number":6}'},
        {"task_type": "other"},
        {"payload": b"6"},
    ],
    ids=["id", "args", "kwargs", "type", "bytes"],
)
def test_a_signature_is_for_one_task_only(change):
    app = app_with(KEY)
    signer = app.signer
    assert signer is not None
    task = TaskSubmission(task_id=new_task_id(1), task_type="work", queue="default", args=b"[5]")
    signed = signer.signed(task, app.clock.now())
    app.open_session().push("default", tasks_batch([msgspec.structs.replace(signed, **change)]), None, None)
    app.run_pending()
    assert ran == []
    app.open_session().push("default", tasks_batch([signed]), None, None)
    app.run_pending()
    assert ran == [5]


def test_another_queue_is_another_task():
    signer = Signer(KEY)
    task = signer.signed(TaskSubmission(task_id=new_task_id(1), task_type="work", queue="a"), 0)
    from penstock.envelopes import encode_envelope, parse_envelope

    envelope = parse_envelope(encode_envelope(task))
    assert signer.problem(envelope, "a", task.headers, 0) == ""
    assert signer.problem(envelope, "b", task.headers, 0) == "the signature of the task does not match it"
    assert signer.problem(envelope, "a", {HEADER: "x.y"}, 0) == "the signature of the task is malformed"


def test_a_signature_ends_with_the_time_to_live():
    from penstock.envelopes import encode_envelope, parse_envelope

    signer = Signer(KEY)
    task = signer.signed(TaskSubmission(task_id=new_task_id(1), task_type="work", queue="a", ttl_seconds=10), 1_000_000)
    envelope = parse_envelope(encode_envelope(task))
    assert signer.problem(envelope, "a", task.headers, 10_999_999) == ""
    assert signer.problem(envelope, "a", task.headers, 11_000_000) == "the signature of the task has expired"
    later = {HEADER: (task.headers or {})[HEADER].replace("11000000.", "99000000.")}
    assert signer.problem(envelope, "a", later, 12_000_000) == "the signature of the task does not match it"


def test_keys_are_replaced_one_after_the_other():
    from penstock.envelopes import encode_envelope, parse_envelope

    task = Signer(KEY).signed(TaskSubmission(task_id=new_task_id(1), task_type="work", queue="a"), 0)
    envelope = parse_envelope(encode_envelope(task))
    assert Signer([OTHER, KEY]).problem(envelope, "a", task.headers, 0) == ""
    assert Signer([OTHER]).problem(envelope, "a", task.headers, 0) != ""


def test_keys_come_from_files_and_bad_ones_are_refused(tmp_path):
    file = tmp_path / "sign.key"
    file.write_bytes(KEY + b"\n")
    task = Signer(file).signed(TaskSubmission(task_id=new_task_id(1), task_type="work", queue="a"), 0)
    assert task.headers == Signer(KEY).signed(task, 0).headers
    bad: Any
    for bad in (b"short", tmp_path / "missing", []):
        with pytest.raises(InvalidField, match="sign:"):
            Signer(bad)
    assert KEY.decode() not in repr(Signer(KEY))


def test_a_schedule_cannot_be_signed():
    app = app_with(KEY)
    with pytest.raises(InvalidField, match="cannot sign"):
        app.schedule("often", "* * * * *", app.tasks["work"].s(1))


def test_an_app_without_a_key_runs_everything():
    app = LocalApp()

    @app.task(name="work")
    def work(number: int) -> None:
        ran.append(number)

    forged(app, args=b"[7]")
    app.open_session().push("default", Batch.build([b"junk"]), None, None)
    app.run_pending()
    assert 7 in ran


def test_the_signature_covers_the_bytes_among_the_arguments():
    app = LocalApp(sign=KEY)

    @app.task(name="work")
    def work(data: bytes) -> bytes:
        ran.append(data)
        return data

    job = work.enqueue(b"\x00\x01")
    app.run_pending()
    assert job.result() == b"\x00\x01"

    assert app.signer is not None
    task = TaskSubmission(
        task_id=new_task_id(1), task_type="work", queue="default", args=b'[{"penstock:bytes":1}]', payload=b"a"
    )
    forged = msgspec.structs.replace(app.signer.signed(task, app.clock.now()), payload=b"b")
    app.open_session().push("default", tasks_batch([forged]), None, None)
    app.run_pending()
    assert ran == [b"\x00\x01"]
