"""gRPC: every method of the service of tasks, over a real socket."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.errors import NotAuthorised
from penstock.server.grpc.generated import tasks_pb2
from tests.server.test_grpc import refused, serving
from tests.support.broker_loop import on_uvloop, until
from tests.support.grpc_stub import Stub

pb: Any = tasks_pb2
ID = "0190f3a2-7b1c-7c00-8000-0123456789ab"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@asynccontextmanager
async def tasking(**options):
    async with serving(**options) as queues:
        stub: Any = Stub(queues.channel, "Tasks")
        stub.broker = queues.broker
        yield stub


async def claim(stub, *queues, **more):
    return (await stub.ClaimTasks(pb.ClaimTasksRequest(worker_id="w-1", queues=queues or ["mail"], **more))).tasks


async def finish(stub, task, outcome="completed", **more):
    run = pb.FinishedRun(receipt=task.receipt, task_id=task.task_id, outcome=outcome, **more)
    return (await stub.FinishTasks(pb.FinishTasksRequest(finishes=[run]))).results[0]


async def status(stub, task_id, **more):
    return await stub.GetTaskStatus(pb.GetTaskStatusRequest(task_id=task_id, **more))


@on_uvloop
async def test_a_task_is_submitted_claimed_finished_and_seen_with_all_its_fields():
    async with tasking() as stub:
        new = pb.NewTask(
            task_type="send",
            queue="mail",
            args='["ä",  1]',
            kwargs='{"a" : 1}',
            task_id=ID,
            priority=200,
            timeout_ms=1500,
            max_attempts=3,
            key="k",
            workflow="w",
            headers={"h": "1"},
        )
        submitted = await stub.SubmitTask(new, metadata=(("traceparent", PARENT),))
        again = await stub.SubmitTask(new)
        (task,) = await claim(stub, max=5, lease_ms=60_000)
        finished = await finish(stub, task, result='{"sent" :  1}')
        seen = await status(stub, ID, wait_ms=20_000)

        assert (submitted.task_id, submitted.is_new, again.is_new) == (ID, True, False)
        assert (task.args, task.kwargs, task.priority, task.key) == ('["ä",  1]', '{"a" : 1}', 200, "k")
        assert (task.timeout_ms, task.trace, dict(task.headers), task.attempt) == (1500, PARENT, {"h": "1"}, 1)
        assert (finished.task_id, finished.error_code) == (ID, "")
        assert (seen.state, seen.result, seen.worker) == (pb.TASK_STATE_COMPLETED, '{"sent" :  1}', "w-1")
        assert (seen.args, seen.kwargs, seen.workflow, seen.max_attempts) == ('["ä",  1]', '{"a" : 1}', "w", 3)
        assert [(run.attempt, run.outcome) for run in seen.runs] == [(1, "acked")]
        assert seen.finished_at.seconds >= seen.submitted_at.seconds > 1_700_000_000


@on_uvloop
async def test_dead_letters_are_not_counted_as_tasks_that_wait():
    async with tasking() as stub:
        await stub.SubmitTask(pb.NewTask(task_type="a", queue="mail"))
        (task,) = await claim(stub)
        await finish(stub, task, "dead", error="no such address")

        (queue,) = (await stub.GetStats(pb.GetTaskStatsRequest())).queues
        assert (queue.queue, queue.pending, queue.dead) == ("mail", 0, 1)


@on_uvloop
async def test_tasks_are_listed_in_pages_counted_and_purged():
    async with tasking() as stub:
        tasks = [pb.NewTask(task_type="a" if n % 2 else "b", queue="mail", args=f"[{n}]") for n in range(5)]
        submitted = await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=tasks))
        (first,) = await claim(stub)
        await finish(stub, first)
        waiting = pb.TaskFilter(states=[pb.TASK_STATE_PENDING], queue="mail")
        page = await stub.ListTasks(pb.ListTasksRequest(filter=waiting, limit=3))
        rest = await stub.ListTasks(pb.ListTasksRequest(filter=waiting, limit=3, cursor=page.cursor))
        found = await stub.ListTasks(pb.ListTasksRequest(filter=pb.TaskFilter(argument="args.0=3", task_type="a")))
        await stub.HeartbeatWorker(pb.HeartbeatWorkerRequest(info=pb.WorkerInfo(worker_id="w-1")))
        stats = await stub.GetStats(pb.GetTaskStatsRequest())
        purged = await stub.PurgeTasks(pb.PurgeTasksRequest(filter=waiting))

        assert [each.is_new for each in submitted.tasks] == [True] * 5
        assert (len(page.tasks), len(rest.tasks), rest.cursor) == (3, 1, "")
        assert page.tasks[0].task_id == submitted.tasks[4].task_id
        assert [each.task_id for each in found.tasks] == [submitted.tasks[3].task_id]
        (queue,) = stats.queues
        assert (queue.queue, queue.pending, queue.running, queue.completed) == ("mail", 4, 0, 1)
        assert (stats.workers_alive, stats.workers_dead) == (1, 0)
        assert (purged.count, purged.is_done) == (4, True)


@on_uvloop
async def test_operations_are_begun_watched_and_stopped():
    async with tasking() as stub:
        tasks = [pb.NewTask(task_type="a", queue="mail") for _ in range(5)]
        await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=tasks))
        wanted = pb.TaskFilter(task_type="a", states=[pb.TASK_STATE_PENDING])
        view = await stub.BeginOperation(pb.BeginOperationRequest(action="cancel", filter=wanted, operation_id="mine"))
        while view.state == "running":
            view = await stub.GetOperation(pb.GetOperationRequest(operation_id="mine"))
        listed = (await stub.ListOperations(pb.ListOperationsRequest())).operations

        assert (view.operation_id, view.action, view.state, view.matched) == ("mine", "cancel", "done", 5)
        assert (view.cancelled, view.purged, view.error) == (5, 0, "")
        assert view.filter == wanted
        assert list(listed) == [view]
        with pytest.raises(grpc.aio.AioRpcError) as over:
            await stub.StopOperation(pb.StopOperationRequest(operation_id="mine"))
        assert over.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.GetOperation(pb.GetOperationRequest(operation_id="none"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


@on_uvloop
async def test_a_task_is_cancelled_its_worker_notified_and_retried():
    async with tasking() as stub:
        await stub.SubmitTask(pb.NewTask(task_type="send", queue="mail", task_id=ID))
        (task,) = await claim(stub)
        info = pb.WorkerInfo(worker_id="w-1", host="h", queues=["mail"], running=1)
        progress = [pb.RunProgress(receipt=task.receipt, task_id=ID, progress='{"done":0.5}')]
        held = await stub.HeartbeatWorker(
            pb.HeartbeatWorkerRequest(info=info, receipts=[task.receipt, "x"], lease_ms=90_000, progress=progress)
        )
        running = await status(stub, ID)
        cancelled = await stub.CancelTask(pb.CancelTaskRequest(task_id=ID))
        reported = await stub.HeartbeatWorker(pb.HeartbeatWorkerRequest(info=info))
        late = await finish(stub, task)
        again = await stub.RetryTask(pb.RetryTaskRequest(task_id=ID))
        workers = await stub.ListWorkers(pb.ListWorkersRequest())
        await stub.ForgetWorker(pb.ForgetWorkerRequest(worker_id="w-1"))

        assert (list(held.cancelled), list(held.lost)) == ([], ["x"])
        assert (running.state, running.progress) == (pb.TASK_STATE_RUNNING, '{"done":0.5}')
        assert cancelled.state == pb.TASK_STATE_CANCELLED
        assert list(reported.cancelled) == [ID]
        assert late.error_code == "lease_lost"
        assert again.state == pb.TASK_STATE_PENDING
        assert [(each.info.worker_id, each.info.host, each.state) for each in workers.workers] == [
            ("w-1", "h", "alive")
        ]
        assert not (await stub.ListWorkers(pb.ListWorkersRequest())).workers


@on_uvloop
async def test_a_child_takes_the_results_of_its_parents():
    async with tasking() as stub:
        parent = pb.NewTask(task_type="a", queue="mail", task_id=ID)
        child = pb.NewTask(task_type="b", queue="mail", depends_on=[ID], takes=pb.TAKES_ONE)
        await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=[child, parent]))
        (first,) = await claim(stub, max=9)
        await finish(stub, first, result="null")
        (second,) = await claim(stub, max=9, wait_ms=20_000)

        assert (second.takes, list(second.depends_on)) == (pb.TAKES_ONE, [ID])
        (result,) = second.parents
        assert (result.task_id, result.state, result.result) == (ID, pb.TASK_STATE_COMPLETED, "null")
        assert result.HasField("result")


@on_uvloop
async def test_updates_come_as_tasks_change_and_end_when_those_named_are_final():
    async with tasking() as stub:
        await stub.SubmitTask(pb.NewTask(task_type="send", queue="mail", task_id=ID, args='["secret"]'))
        call = stub.StreamTaskUpdates(pb.StreamTaskUpdatesRequest(task_ids=[ID]))
        present = await call.read()
        (task,) = await claim(stub)
        running = await call.read()
        await stub.SubmitTask(pb.NewTask(task_type="send", queue="mail"))
        await finish(stub, task, result='{"sent":1}')
        done = await call.read()
        end = await call.read()

        states = [update.task.state for update in (present, running, done)]
        assert states == [pb.TASK_STATE_PENDING, pb.TASK_STATE_RUNNING, pb.TASK_STATE_COMPLETED]
        assert (done.task.task_id, done.task.args, done.task.HasField("result")) == (ID, "", False)
        assert end is grpc.aio.EOF
        await until(lambda: stub.broker.events._tasks._following is None)


@on_uvloop
async def test_updates_are_chosen_by_type_queue_and_workflow():
    async with tasking() as stub:
        wanted = pb.StreamTaskUpdatesRequest(task_types=["send"], queues=["mail"], workflow="w")
        call = stub.StreamTaskUpdates(wanted)
        await until(lambda: stub.broker.events._tasks._is_following)
        others = [("read", "mail", "w"), ("send", "other", "w"), ("send", "mail", "x"), ("send", "mail", "w")]
        tasks = [pb.NewTask(task_type=name, queue=queue, workflow=flow) for name, queue, flow in others]
        submitted = await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=tasks))
        update = await call.read()
        call.cancel()

        assert update.task.task_id == submitted.tasks[3].task_id
        await until(lambda: stub.broker.events._tasks._following is None)


@on_uvloop
async def test_schedules_are_made_listed_changed_and_deleted():
    async with tasking() as stub:
        given = {
            "name": "nightly",
            "cron": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "missed": pb.MISSED_CATCH_UP,
            "task_type": "report",
            "queue": "mail",
            "args": "[ 1]",
            "kwargs": '{"a":  2}',
            "timeout_ms": 1500,
            "max_attempts": 2,
            "priority": 0,
            "key": "k",
            "is_declared": True,
        }
        made = await stub.SetSchedule(pb.NewSchedule(**given))
        paused = await stub.SetSchedule(pb.NewSchedule(**given, is_paused=True))
        plain = await stub.SetSchedule(pb.NewSchedule(name="a", cron="@hourly", task_type="b"))
        listed = (await stub.ListSchedules(pb.ListSchedulesRequest())).schedules
        await stub.DeleteSchedule(pb.DeleteScheduleRequest(name="nightly"))
        left = (await stub.ListSchedules(pb.ListSchedulesRequest())).schedules

        assert (made.spec, made.HasField("next_at"), made.last_task_id) == (pb.NewSchedule(**given), True, "")
        assert (paused.spec.is_paused, paused.HasField("next_at")) == (True, False)
        spec = plain.spec
        assert (spec.timezone, spec.missed, spec.queue) == ("UTC", pb.MISSED_SKIP, "default")
        assert (spec.args, spec.kwargs, spec.priority) == ("[]", "{}", 128)
        assert list(listed) == [plain, paused]
        assert list(left) == [plain]
        gone = stub.DeleteSchedule(pb.DeleteScheduleRequest(name="nightly"))
        assert await refused(gone) == ("NOT_FOUND", "schedule_not_found")


@on_uvloop
async def test_refusals_name_the_field_and_have_a_status():
    async with tasking() as stub:
        one = pb.NewTask(task_type="a", queue="mail")
        asked = {
            "SubmitTask": [
                (pb.NewTask(queue="mail"), "invalid_field"),
                (pb.NewTask(task_type="a", args="{}"), "invalid_field"),
                (pb.NewTask(task_type="a", args="[1"), "invalid_field"),
                (pb.NewTask(task_type="a", task_id="x"), "invalid_field"),
                (pb.NewTask(task_type="a", takes=9), "invalid_field"),
                (pb.NewTask(task_type="a", depends_on=[ID]), "invalid_field"),
                (pb.NewTask(task_type="a", queue="a/b"), "invalid_name"),
            ],
            "SubmitTasks": [(pb.SubmitTasksRequest(tasks=[one, pb.NewTask()]), "invalid_field")],
            "ClaimTasks": [(pb.ClaimTasksRequest(worker_id="w"), "invalid_field")],
            "FinishTasks": [
                (pb.FinishTasksRequest(finishes=[pb.FinishedRun(receipt="x", outcome="dead")]), "bad_receipt"),
                (pb.FinishTasksRequest(finishes=[pb.FinishedRun(receipt="a:b:1:1:ff")]), "invalid_field"),
            ],
            "SetSchedule": [
                (pb.NewSchedule(name="s", cron="often", task_type="a"), "invalid_field"),
                (pb.NewSchedule(name="s", cron="@daily", task_type="a", missed=9), "invalid_field"),
                (pb.NewSchedule(name="s", cron="@daily"), "invalid_field"),
            ],
            "ListTasks": [(pb.ListTasksRequest(filter=pb.TaskFilter(states=[99])), "invalid_field")],
        }
        for method, requests in asked.items():
            for request, code in requests:
                assert await refused(getattr(stub, method)(request)) == ("INVALID_ARGUMENT", code), request
        missing = pb.GetTaskStatusRequest(task_id=ID)
        assert await refused(stub.GetTaskStatus(missing)) == ("NOT_FOUND", "task_not_found")
        assert await refused(stub.RetryTask(pb.RetryTaskRequest(task_id=ID))) == ("NOT_FOUND", "task_not_found")
        await stub.SubmitTask(pb.NewTask(task_type="a", task_id=ID))
        retry = stub.RetryTask(pb.RetryTaskRequest(task_id=ID))
        assert await refused(retry) == ("FAILED_PRECONDITION", "task_conflict")
        with pytest.raises(grpc.aio.AioRpcError, match=r"tasks\[1\]\.task_type: "):
            await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=[one, pb.NewTask()]))


@on_uvloop
async def test_who_may_not_is_refused():
    def nobody(principal, action, queue):
        if action in ("push", "read"):
            raise NotAuthorised("no")

    async with tasking(authorise=nobody) as stub:
        submit = stub.SubmitTask(pb.NewTask(task_type="a"))
        assert await refused(submit) == ("PERMISSION_DENIED", "not_authorised")
        updates = stub.StreamTaskUpdates(pb.StreamTaskUpdatesRequest())
        assert await refused(updates.read()) == ("PERMISSION_DENIED", "not_authorised")


@on_uvloop
async def test_bytes_come_in_and_go_out_as_they_are():
    async with tasking() as stub:
        content = bytes(range(256))
        await stub.SubmitTask(pb.NewTask(task_type="image", queue="mail", task_id=ID, args="[7]", payload=content))
        (task,) = await claim(stub)
        assert (task.payload, task.args) == (content, '[{"penstock:bytes":256},7]')

        refused_both = await finish_error(stub, task, result="1", result_bytes=b"1")
        assert "result and result_bytes are both given" in refused_both
        assert (await finish(stub, task, result_bytes=content)).error_code == ""
        seen = await status(stub, ID)
        assert (seen.result_bytes, seen.HasField("result")) == (content, False)

        child = pb.NewTask(task_type="next", queue="mail", depends_on=[ID], takes=pb.TAKES_ONE, payload=b"")
        await stub.SubmitTask(child)
        (task,) = await claim(stub)
        assert (task.HasField("payload"), task.payload) == (True, b"")
        assert (task.parents[0].result_bytes, task.parents[0].HasField("result")) == (content, False)


async def finish_error(stub, task, **more):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await finish(stub, task, **more)
    return caught.value.details()
