"""`penstock enqueue`, `tasks`, `workers`, `schedules`."""

from __future__ import annotations

import re

import pytest

from penstock import operations as ops
from penstock.model import Receipt
from penstock.model_tasks import Finish, WorkerInfo, result_error_json, result_of_bytes
from penstock.requests import LeaseRequest
from penstock.shard.tasks import finish as task_finish
from penstock.worker.command import load_app
from tests.cli.test_cli_queues import lines
from tests.support.operations import confirm, run_operation

ID = "0199c0de-5a00-7c1e-8000-7a7e5f3b2a10"
OTHER = "0199c0de-5a00-7c1e-8000-7a7e5f3b2a11"


def leased(ps, queue="default"):
    """The next task in the hands of a worker: how to finish it."""
    reply = ps.session.lease(queue, "default", LeaseRequest(1, consumer="w-1"), 0.0)
    (piece,) = reply.pieces
    return Receipt(queue, piece.partition(0), piece.offsets[0], piece.attempt(0), reply.nonce)


def finished(ps, id, outcome, **how):
    accepted, _ = run_operation(
        ps.session, ops.FinishTasks([Finish(receipt=leased(ps), task_id=id, outcome=outcome, **how)])
    )
    assert accepted == [None]


def test_words_are_arguments(ps, run):
    done = run("enqueue", "shop.add", "1", "two", "[3]", "-a", "to=a@b.c", "-a", "n=4", "--task-id", ID)

    assert (done.code, done.out) == (0, ID + "\n")
    shown = run("tasks", "show", ID, "--json").json
    assert (shown["args"], shown["kwargs"]) == ([1, "two", [3]], {"to": "a@b.c", "n": 4})
    assert (shown["task_type"], shown["queue"], shown["state"]) == ("shop.add", "default", "pending")
    again = run("enqueue", "shop.add", "--task-id", ID)
    assert again.out == f"{ID} (already submitted: not stored again)\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--args", "{}"], "--args: '{}' is JSON, but not an array"),
        (["--kwargs", "{"], "--kwargs: '{' is not JSON"),
        (["1", "--args", "[]"], "arguments are given twice"),
        (["-a", "to"], "--arg: 'to' is not name=value"),
        (["--priority", "hihg"], "--priority: 'hihg' is not one of background, low, normal, high, critical"),
        (["--on-parent-failure", "weep"], "--on-parent-failure: 'weep' is not a policy"),
        (["--depends-on", OTHER], OTHER),
        (["--task-id", "seven"], "task_id"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_stored(ps, run, words, message):
    done = run("enqueue", "shop.add", *words)

    assert done.code == 1
    assert message in done.err
    assert run("tasks", "list")[:2] == (0, "")


def test_a_result_is_waited_for(ps, run):
    run("enqueue", "shop.add", "1", "--task-id", ID)
    unfinished = run("enqueue", "shop.add", "--task-id", ID, "--wait", "0")
    assert (unfinished.code, "is still pending" in unfinished.err) == (1, True)
    waited = run("enqueue", "shop.add", "--task-id", ID, "--wait", "1ms")
    assert f"task {ID} is still pending after 1ms" in waited.err

    finished(ps, ID, "completed", result=b'{"sum": 3}')
    assert run("enqueue", "shop.add", "--task-id", ID, "--wait", "5s").out == '{"sum": 3}\n'
    assert run("enqueue", "shop.add", "--task-id", ID, "--wait", "5s", "--json").json["result"] == {"sum": 3}


def test_a_file_is_an_argument_and_bytes_are_a_result(ps, run, tmp_path):
    content = bytes(range(32, 256))
    (tmp_path / "image").write_bytes(content)
    assert run("enqueue", "image", "7", "--file", str(tmp_path / "image"), "--task-id", ID).code == 0
    assert run("tasks", "show", ID, "--json").json["args"] == [{"penstock:bytes": 224}, 7]

    finished(ps, ID, "completed", result=result_of_bytes(b"hello"))
    assert run("tasks", "result", ID).out == "hello"
    shown = run("tasks", "show", ID, "--json").json
    assert (shown["result"], shown["result_base64"]) == (None, "aGVsbG8=")
    assert "5 bytes" in run("tasks", "show", ID).out

    missing = run("enqueue", "image", "--file", str(tmp_path / "none"))
    assert (missing.code, "--file" in missing.err) == (1, True)
    (tmp_path / "image").write_bytes(bytes((10 << 20) + 1))
    large = run("enqueue", "image", "--file", str(tmp_path / "image"))
    assert (large.code, "10,485,760 bytes" in large.err) == (1, True)


def test_a_death_is_reported(ps, run):
    run("enqueue", "shop.add", "--task-id", ID)
    finished(ps, ID, "dead", error="File shop.py, line 1\nValueError: price is None")

    done = run("enqueue", "shop.add", "--task-id", ID, "--wait", "5s")
    assert done.code == 2
    assert f"task {ID} is dead: ValueError: price is None" in done.err


def test_the_list_tells_the_most_telling_thing(ps, run, no_time_passes, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    run("enqueue", "a.done", "--task-id", ID)
    finished(ps, ID, "completed", result=b"[1,2]")
    run("enqueue", "b.dead", "--task-id", OTHER)
    finished(ps, OTHER, "dead", error="File shop.py, line 1\nValueError: price is None")

    assert lines(run("tasks", "list").out) == [
        "id                                    type    state      age  tries  what",
        f"{OTHER}  b.dead  dead       12s      1  ValueError: price is None",
        f"{ID}  a.done  completed  12s      1  [1,2]",
    ]
    assert [row["task_id"] for row in run("tasks", "list", "--status", "dead", "--json").json_lines] == [OTHER]
    assert run("tasks", "list", "--type", "c")[:2] == (0, "")
    wrong = run("tasks", "list", "--status", "ded")
    assert (wrong.code, "did you mean 'dead'?" in wrong.err) == (1, True)


def test_show_has_every_run_with_its_error(ps, run):
    run("enqueue", "shop.add", "1", "--task-id", ID, "--queue", "default", "--max-attempts", "3")
    finished(ps, ID, "failed", error="ValueError: first", delay_seconds=0)
    finished(ps, ID, "failed", error="ValueError: second", delay_seconds=60)

    out = run("tasks", "show", ID).out
    for text in ("shop.add", "failed", "2 of 3", "[1]", "ValueError: first", "ValueError: second", "w-1"):
        assert text in out
    missing = run("tasks", "show", OTHER)
    assert (missing.code, "penstock tasks list" in missing.err) == (4, True)


def test_one_task_that_is_refused_does_not_keep_back_the_others(ps, run):
    run("enqueue", "shop.add", "--task-id", ID)
    done = run("tasks", "cancel", OTHER, ID)

    assert (done.code, done.out) == (4, f"✓ {ID} is cancelled\n")
    assert f"there is no task {OTHER}" in done.err
    refused, retried = run("tasks", "retry", OTHER, ID, "--json").json_lines
    assert (refused["task_id"], refused["error"]["code"]) == (OTHER, "task_not_found")
    assert retried == {"task_id": ID, "state": "pending"}


def test_cancel_retry_and_purge(ps, run):
    run("enqueue", "shop.add", "--task-id", ID)

    assert run("tasks", "cancel", ID).out == f"✓ {ID} is cancelled\n"
    assert run("tasks", "show", ID, "--json").json["state"] == "cancelled"
    assert run("tasks", "retry", ID, "--json").json_lines == [{"task_id": ID, "state": "pending"}]
    conflict = run("tasks", "retry", ID)
    assert (conflict.code, "pending" in conflict.err) == (1, True)
    assert run("tasks", "purge").code == 1
    assert run("tasks", "purge", "--yes").out == "✓ forgot 1 task\n"
    assert run("tasks", "list")[:2] == (0, "")


def test_workers_are_listed(ps, run, no_time_passes):
    assert run("workers")[:2] == (0, "")
    info = WorkerInfo(worker_id="web-1", queues=("mail",), concurrency=16, running=3, completed=1204, memory_bytes=1)
    run_operation(ps.session, ops.HeartbeatWorker(info))

    assert lines(run("workers").out) == [
        "worker state queues running abandoned  done failed cpu   memory last seen",
        "web-1  alive mail      3/16         0 1,204      0 0 % 15.8 KiB   12s ago",
    ]
    assert run("workers", "--json").json[0]["worker_id"] == "web-1"


def test_operations_are_begun_and_seen(ps, run):
    for _ in range(3):
        run("enqueue", "send", "-q", "mail")

    begun = run("operations", "begin", "cancel", "--type", "send", "--yes", "--wait", "--json").json
    assert (begun["action"], begun["state"], begun["cancelled"]) == ("cancel", "done", 3)
    shown = run("operations", "show", begun["operation_id"])
    assert "3 items matched, 3 done, 0 failed" in shown.out
    assert begun["operation_id"] in run("operations", "list").out
    assert [each["operation_id"] for each in run("operations", "list", "--json").json] == [begun["operation_id"]]
    assert run("operations", "stop", begun["operation_id"]).code != 0
    assert run("operations", "show", "none").code == 4
    assert "action" in run("operations", "begin", "drop", "--yes").err


def test_schedules_are_kept(ps, run):
    assert run("schedules", "list")[:2] == (0, "")
    assert run("schedules", "set", "nightly", "0 3 * * *", "shop.report", "7", "-z", "Europe/Berlin").code == 0

    (listed,) = run("schedules", "list", "--json").json
    assert (listed["name"], listed["cron"], listed["timezone"], listed["args"]) == (
        "nightly", "0 3 * * *", "Europe/Berlin", [7],
    )  # fmt: skip
    assert run("schedules", "pause", "nightly").out == "✓ schedule nightly: paused\n"
    assert "paused" in run("schedules", "list").out
    assert run("schedules", "resume", "nightly", "--json").json["next_at"]
    assert run("schedules", "delete", "nightly", "--yes").code == 0
    gone = run("schedules", "pause", "nightly")
    assert (gone.code, "there is no schedule 'nightly'" in gone.err) == (4, True)


@pytest.mark.parametrize(
    ("cron", "more", "named"),
    [("* * *", [], "cron"), ("0 0 31 2 *", [], "cron"), ("@daily", ["-z", "Mars/Olympus"], "timezone")],
)
def test_a_schedule_that_cannot_be_is_refused(ps, run, cron, more, named):
    done = run("schedules", "set", "bad", cron, "shop.report", *more)

    assert (done.code, named in done.err) == (1, True)
    assert run("schedules", "list")[:2] == (0, "")


def test_schedules_that_code_declares_no_more_are_pruned(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pruned_shop.py").write_text("""
import penstock

old, new = penstock.App(), penstock.App()

@old.task(cron="@daily")
def nightly() -> None: ...

@new.task
def other() -> None: ...
""")
    where = ("--url", str(tmp_path / "data"))
    assert run("schedules", "set", "mine", "@daily", "nightly", *where).code == 0
    old = load_app("pruned_shop:old")
    old.move(tmp_path / "data")
    with old:
        old.declare()

    assert run("schedules", "prune", "pruned_shop:old", "--yes", *where).code == 4
    assert run("schedules", "prune", "pruned_shop:new", "--yes", *where).out == "✓ deleted: nightly\n"

    assert [each["name"] for each in run("schedules", "list", "--json", *where).json] == ["mine"]


def test_the_command_line_shows_the_reason(ps, run):
    why = 'TypeError: "object" is not JSON'
    task_id = run("enqueue", "send", "-q", "mail", "--json").json["task_id"]
    (delivery,) = ps.queue("mail").lease(1)
    finish = Finish(receipt=delivery.proof, task_id=task_id, outcome="completed", result=result_error_json(why))
    answers, ticket = run_operation(ps.session, ops.FinishTasks([finish]))
    confirm(ps.session, ticket)
    assert answers == [None]

    shown = run("tasks", "show", task_id, "--json").json
    assert (shown["state"], shown["result"], shown["result_error"]) == ("completed", None, why)
    text = run("tasks", "show", task_id).out
    assert "result error" in text
    assert "penstock:" not in text
    assert "no result" in run("tasks", "list").out


def test_the_command_line_shows_attempts_that_were_lost(ps, run):
    task_id = run("enqueue", "send", "-q", "mail", "--json").json["task_id"]
    assert "attempts lost" not in run("tasks", "show", task_id).out
    leased(ps, "mail")
    shard = ps.session.session.shard
    shard.confirm(task_finish.expire_consumer(shard, "w-1"))

    assert run("tasks", "show", task_id, "--json").json["attempts_lost"] == 1
    assert re.search(r"attempts lost +1 of 10", run("tasks", "show", task_id).out)
