"""The table of the access matrix, written by hand: what each request needs, and how it is asked by each protocol.

Nothing here is taken from the code under test but the values that travel: a request that the code forgets to check, or
checks for another action, disagrees with this table.
"""

# ruff: noqa: E501 - each row of a table is one line

from __future__ import annotations

import base64
from typing import Any, Final, NamedTuple

from penstock import operations as ops
from penstock.batch import Batch
from penstock.model import MessageId, Outcome, Receipt
from penstock.model_letters import LetterFilter
from penstock.model_tasks import BulkOptions, Finish, ScheduleSpec, TaskFilter, TaskSubmission, WorkerInfo
from penstock.wire import requests
from penstock.wire.frames import JsonType, Type

Q: Final = "shop.orders"
MAIL: Final = "mail"
AUDIT: Final = "penstock.audit"
STAGED: Final = f"{0:016x}-1-{0:032x}"

# Where an action is needed.
ORDERS: Final = "orders"  # in the queue Q, and so in its dead letters
NAMESPACE: Final = "namespace"  # in all queues of the namespace that Q is in
OTHER: Final = "mail"  # in the queue MAIL
BROKER: Final = "broker"  # on the broker as a whole
SOME: Final = "some"  # in any queue, whichever it is
RESERVED: Final = "reserved"  # in a queue of the broker's own
NOBODY: Final = "nobody"  # nobody may, not even an owner
ANYBODY: Final = ("", "")  # who is logged in may ask

Need = tuple[str, str]  # an action, and where


class World(NamedTuple):
    """What there is to ask for."""

    receipt: str
    lease: int
    task: str
    new_task: str
    operation: str


class Row(NamedTuple):
    """A request: what it needs, and how each protocol says it; None: the protocol does not have it."""

    name: str
    needs: tuple[Need, ...]
    frame: tuple[int, bytes] | None = None  # TCP, and frames over HTTP
    http: tuple[str, str, Any] | None = None  # method, path below /api/v1, body
    json: tuple[int, Any] | None = None  # the JSON protocol of TCP
    websocket: dict[str, Any] | None = None
    grpc: tuple[str, Any] | None = None  # service and method, fields


def call(operation: Any) -> tuple[int, bytes]:
    """An operation as a frame."""
    arguments = requests.encode(operation)
    return Type.CALL, b"\x92" + requests.encode(operation.spec.name) + arguments


def looks(action: str, where: str = ORDERS) -> tuple[Need, ...]:
    return ((action, where),)


PUSH: Final = ("push", ORDERS)
CONSUME: Final = ("consume", ORDERS)
READ: Final = ("read", ORDERS)
MONITOR: Final = ("monitor", ORDERS)
MANAGE: Final = ("manage", ORDERS)
ONE: Final = {"messages": [{"payload": 1}]}
ONE_BYTES: Final = {"messages": [{"payload": base64.b64encode(b"1").decode()}]}
BATCH: Final = bytes(Batch.build([b"one", b"two"]).data)


def push_rows() -> list[Row]:
    """Pushes."""
    head = requests.encode_push(requests.PushHead(Q))
    several = {"messages": [{"payload": 1}, {"payload": 2, "key": "k"}]}
    return [
        Row("push_one", (PUSH,), (Type.PUSH_ONE, requests.encode_push_one(Q.encode(), 0, b"1")), ("POST", f"/queues/{Q}/messages", ONE), websocket={"type": "push", "queue": Q, **ONE}, grpc=("Queues.Push", {"queue": Q, **ONE_BYTES})),
        Row("push_typed", (PUSH,), (Type.PUSH_TYPED, requests.encode_push_typed(1, Q.encode(), 0, b"1"))),
        Row("push", (PUSH,), (Type.PUSH, head + BATCH), ("POST", f"/queues/{Q}/messages", several), grpc=("Queues.Push", {"queue": Q, "messages": ONE_BYTES["messages"] * 2})),
        Row("push_elsewhere", looks("push", OTHER), (Type.PUSH_ONE, requests.encode_push_one(MAIL.encode(), 0, b"1")), ("POST", f"/queues/{MAIL}/messages", ONE), websocket={"type": "push", "queue": MAIL, **ONE}, grpc=("Queues.Push", {"queue": MAIL, **ONE_BYTES})),
        Row("ping", (ANYBODY,), (Type.PING, b""), websocket={"type": "ping"}),
    ]  # fmt: skip


def lease_rows(world: World) -> list[Row]:
    """Leasing, settling and extending."""
    receipt, lease = world.receipt, f"{world.lease:016x}"
    settled = requests.Settle(int(Outcome.RELEASED), receipts=[Receipt.parse(receipt)])
    settled_lease = requests.Settle(int(Outcome.RELEASED), lease=world.lease)
    hold = {"lease_id": lease, "lease_ms": 600_000}
    hold_receipt = {"receipts": [receipt], "lease_ms": 600_000}
    rows = [
        Row("lease", (CONSUME,), (Type.LEASE, requests.encode(requests.Lease(Q))), ("POST", f"/queues/{Q}/lease", {}), websocket={"type": "subscribe", "subscription": "s", "queue": Q, "credit": 1}, grpc=("Queues.Lease", {"queue": Q, "max": 1})),
        Row("lease_queues", (CONSUME,), (Type.LEASE_QUEUES, requests.encode(requests.LeaseQueues([Q]))), ("POST", "/lease", {"queues": [Q]}), websocket={"type": "subscribe", "subscription": "s", "queues": [Q], "credit": 1}, grpc=("Queues.LeaseQueues", {"queues": [Q], "max": 1})),
        Row("settle", (CONSUME,), (Type.SETTLE, requests.encode(settled)), ("POST", "/release", {"receipts": [receipt]}), websocket={"type": "release", "receipts": [receipt]}, grpc=("Queues.Settle", {"settlements": [{"receipts": [receipt], "release": {}}]})),
        Row("settle_lease", (CONSUME,), (Type.SETTLE, requests.encode(settled_lease)), ("POST", "/release", {"lease_id": lease}), websocket={"type": "release", "lease_id": lease}, grpc=("Queues.Settle", {"settlements": [{"lease_id": lease, "release": {}}]})),
        Row("extend", (CONSUME,), (Type.EXTEND, requests.encode(requests.Extend(world.lease, 600.0))), ("POST", "/extend", hold), websocket={"type": "extend", **hold}, grpc=("Queues.Extend", {"lease_ids": [lease], "lease_ms": 600_000})),
        Row("extend_receipt", (CONSUME,), http=("POST", "/extend", hold_receipt), websocket={"type": "extend", **hold_receipt}, grpc=("Queues.Extend", hold_receipt)),
        Row("consume", (CONSUME,), grpc=("Queues.Consume", {"queue": Q, "credit": 1})),
        Row("stream", (CONSUME,), grpc=("Queues.Stream", {"open": {"queue": Q, "credit": 1}})),
    ]  # fmt: skip
    for how, more in (("ack", {}), ("nack", {}), ("reject", {}), ("snooze", {"delay_ms": 1000})):
        one = {"receipts": [receipt], **more}
        rows.append(Row(how, (CONSUME,), http=("POST", f"/{how}", one), websocket={"type": how, **one}, grpc=("Queues.Settle", {"settlements": [{"receipts": [receipt], how: more}]})))  # fmt: skip
    return rows


def transaction_rows(world: World) -> list[Row]:
    """Transactions and live events."""
    receipt = world.receipt
    push, settle = requests.PushStep(Q, BATCH), requests.SettleStep(receipt, int(Outcome.RELEASED))
    elsewhere = requests.PushStep(MAIL, BATCH)
    push_json, settle_json = {"type": "push", "queue": Q, **ONE}, {"type": "release", "receipts": [receipt]}
    push_proto, settle_proto = {"push": {"queue": Q, **ONE_BYTES}}, {"settle": {"receipts": [receipt], "release": {}}}
    both_json = [{**push_json, "queue": MAIL}, settle_json]
    both_proto = [{"push": {"queue": MAIL, **ONE_BYTES}}, settle_proto]
    return [
        Row("transact_push", (PUSH,), transact(push), ("POST", "/transactions", {"operations": [push_json]}), grpc=("Queues.Transact", {"operations": [push_proto]})),
        Row("transact_settle", (CONSUME,), transact(settle), ("POST", "/transactions", {"operations": [settle_json]}), grpc=("Queues.Transact", {"operations": [settle_proto]})),
        Row("transact_both", (("push", OTHER), CONSUME), transact(elsewhere, settle), ("POST", "/transactions", {"operations": both_json}), grpc=("Queues.Transact", {"operations": both_proto})),
        Row("events", (MONITOR,), websocket={"type": "events", "subscription": "s", "queues": [Q]}, grpc=("Queues.WatchEvents", {"queues": [Q]})),
        Row("task_events", (READ,), websocket={"type": "events", "subscription": "s", "queues": [Q], "topics": ["tasks"]}, grpc=("Tasks.StreamTaskUpdates", {"queues": [Q], "task_ids": [world.task]})),
    ]  # fmt: skip


def transact(*steps: requests.PushStep | requests.SettleStep) -> tuple[int, bytes]:
    """A transaction as a frame."""
    return Type.CALL, b"\x92" + requests.encode("transact") + requests.encode(requests.Transact([*steps]))


def queue_rows() -> list[Row]:
    """Queues, their messages, dead letters and groups."""
    at = f"/queues/{Q}"
    dead, first = MessageId(f"{Q}.dlq", "0", 0), MessageId(Q, "0", 0)
    letters = {"ids": [str(dead)], "messages": [{"payload": 1}]}
    group = {"queue": Q, "group": "g"}
    member = {**group, "member": "m", "generation": 1}
    return [
        Row("queues", (ANYBODY,), call(ops.Queues()), ("GET", "/queues", None), grpc=("Queues.ListQueues", {})),
        Row("create_queue", (MANAGE,), call(ops.CreateQueue(Q)), ("POST", "/queues", {"name": Q}), grpc=("Queues.CreateQueue", {"queue": Q})),
        Row("update_queue", (MANAGE,), call(ops.UpdateQueue(Q, {"max_attempts": 9})), ("PATCH", at, {"max_attempts": 9}), grpc=("Queues.UpdateQueue", {"queue": Q, "options": {"max_attempts": 9}})),
        Row("get_options", (MONITOR,), call(ops.GetOptions(Q)), ("GET", at, None), grpc=("Queues.GetQueue", {"queue": Q})),
        Row("stats", (MONITOR,), call(ops.Stats(Q)), ("GET", f"{at}/stats", None), grpc=("Queues.GetStats", {"queue": Q})),
        Row("leases", (MONITOR,), call(ops.Leases(Q)), ("GET", f"{at}/leases", None), grpc=("Queues.ListLeases", {"queue": Q})),
        Row("pause", (MANAGE,), call(ops.Pause(Q)), ("POST", f"{at}/pause", None), grpc=("Queues.Pause", {"queue": Q})),
        Row("pause_namespace", looks("manage", NAMESPACE), call(ops.PauseNamespace("shop", "push")), ("POST", "/namespaces/shop/pause", {"what": "push"}), grpc=("Queues.PauseNamespace", {"namespace": "shop", "what": "push"})),
        Row("resume_namespace", looks("manage", NAMESPACE), call(ops.ResumeNamespace("shop")), ("POST", "/namespaces/shop/resume", {}), grpc=("Queues.ResumeNamespace", {"namespace": "shop"})),
        Row("resume", (MANAGE,), call(ops.Resume(Q)), ("POST", f"{at}/resume", None), grpc=("Queues.Resume", {"queue": Q})),
        Row("dead_letters", (READ,), call(ops.DeadLetters(Q)), ("GET", f"{at}/dlq", None), grpc=("Queues.ListDeadLetters", {"queue": Q})),
        Row("search_dead_letters", (READ,), http=("POST", f"{at}/dlq/search", {})),
        Row("letter_signatures", (READ,), call(ops.LetterSignatures(Q)), ("GET", f"{at}/dlq/signatures", None)),
        Row("all_signatures", (ANYBODY,), call(ops.AllSignatures()), ("GET", "/dlq/signatures", None)),
        Row("replay_messages", (MANAGE, READ, ("push", OTHER)), call(ops.ReplayMessages(Q, target=MAIL)), ("POST", f"{at}/replay", {"target": MAIL}), grpc=("Tasks.ReplayMessages", {"queue": Q, "target": MAIL})),
        Row("replace_letters", (MANAGE, PUSH), call(ops.ReplaceLetters(Q, [dead], BATCH)), ("POST", f"{at}/dlq/replace", letters), grpc=("Queues.ReplaceDeadLetters", {"queue": Q, "ids": [str(dead)], **ONE_BYTES})),
        Row("purge_dead_letters", (MANAGE,), call(ops.PurgeDeadLetters(Q)), ("DELETE", f"{at}/dlq", None), grpc=("Queues.PurgeDeadLetters", {"queue": Q})),
        Row("read", (READ,), call(ops.Read(Q)), ("GET", f"{at}/messages", None), grpc=("Queues.Read", {"queue": Q})),
        Row("get_message", (READ,), call(ops.GetMessage(first)), ("GET", f"{at}/messages/0/0", None), grpc=("Queues.GetMessage", {"id": str(first)})),
        Row("message_events", (READ,), call(ops.Events(first)), ("GET", f"{at}/messages/0/0/events", None), grpc=("Queues.ListMessageEvents", {"id": str(first)})),
        Row("find_messages", (READ,), call(ops.FindMessages(Q, "k")), ("GET", f"{at}/events?key=k", None), grpc=("Queues.FindMessages", {"queue": Q, "key": "k"})),
        Row("latest", (READ,), call(ops.Latest(Q, "k")), ("GET", f"{at}/latest?key=k", None), grpc=("Queues.GetLatest", {"queue": Q, "key": "k"})),
        Row("peek", (READ,), call(ops.Peek(Q)), ("GET", f"{at}/peek", None), grpc=("Queues.Peek", {"queue": Q})),
        Row("peek_at_dead_letters", (READ,), call(ops.Peek(f"{Q}.dlq")), ("GET", f"{at}.dlq/peek", None), grpc=("Queues.Peek", {"queue": f"{Q}.dlq"})),
        Row("peek_elsewhere", looks("read", OTHER), call(ops.Peek(MAIL)), ("GET", f"/queues/{MAIL}/peek", None), grpc=("Queues.Peek", {"queue": MAIL})),
        Row("peek_at_the_audit", looks("read", RESERVED), call(ops.Peek(AUDIT)), ("GET", f"/queues/{AUDIT}/peek", None), grpc=("Queues.Peek", {"queue": AUDIT})),
        Row("push_to_the_audit", looks("push", NOBODY), (Type.PUSH_ONE, requests.encode_push_one(AUDIT.encode(), 0, b"1")), ("POST", f"/queues/{AUDIT}/messages", ONE), grpc=("Queues.Push", {"queue": AUDIT, **ONE_BYTES})),
        Row("delayed", (READ,), call(ops.Delayed(Q)), ("GET", f"{at}/delayed", None), grpc=("Queues.ListDelayed", {"queue": Q})),
        Row("why", (READ,), call(ops.Why(first)), ("GET", f"{at}/messages/0/0/why", None), grpc=("Queues.Why", {"id": str(first)})),
        Row("why_queue", (MONITOR,), call(ops.WhyQueue(Q)), ("GET", f"{at}/why", None), grpc=("Queues.WhyQueue", {"queue": Q})),
        Row("message_keys", (READ,), call(ops.MessageKeys(Q)), ("GET", f"{at}/keys", None), grpc=("Queues.ListKeys", {"queue": Q})),
        Row("account", (MONITOR,), call(ops.Account(Q)), ("GET", f"{at}/account", None), grpc=("Queues.GetAccount", {"queue": Q})),
        Row("cancel", (MANAGE,), call(ops.Cancel(first)), ("DELETE", f"{at}/messages/0/0", None), grpc=("Queues.Cancel", {"id": str(first)})),
        Row("groups", (MONITOR,), call(ops.Groups(Q)), ("GET", f"{at}/groups", None), grpc=("Queues.ListGroups", {"queue": Q})),
        Row("create_group", (MANAGE,), call(ops.CreateGroup(Q, "g")), ("POST", f"{at}/groups", {"name": "g"}), grpc=("Queues.CreateGroup", group)),
        Row("seek", (MANAGE,), call(ops.Seek(Q, "g", "latest")), ("POST", f"{at}/groups/g/seek", {"to": "latest"}), grpc=("Queues.Seek", {**group, "to": {"latest": True}})),
        Row("members", (MONITOR,), call(ops.Members(Q, "g")), ("GET", f"{at}/groups/g/members", None), grpc=("Queues.ListMembers", group)),
        Row("join", (CONSUME,), call(ops.Join(Q, "g", "m")), ("POST", f"{at}/groups/g/members", {"member": "m"}), grpc=("Queues.Join", {**group, "member": "m"})),
        Row("heartbeat", (CONSUME,), call(ops.Heartbeat(Q, "g", "m", 1)), ("POST", f"{at}/groups/g/members/m/heartbeat", {"generation": 1}), grpc=("Queues.Heartbeat", member)),
        Row("leave", (CONSUME,), call(ops.Leave(Q, "g", "m", 1)), ("DELETE", f"{at}/groups/g/members/m?generation=1", None), grpc=("Queues.Leave", member)),
        Row("delete_group", (MANAGE,), call(ops.DeleteGroup(Q, "g")), ("DELETE", f"{at}/groups/g", None), grpc=("Queues.DeleteGroup", group)),
        Row("get_data_keys", (READ,), call(ops.GetDataKeys(Q))),
        Row("rotate_data_key", (MANAGE,), call(ops.RotateDataKey(Q)), ("POST", f"{at}/encryption/rotate", None)),
        Row("erase_data_keys", (MANAGE,), call(ops.EraseDataKeys(Q, Q)), ("POST", f"{at}/encryption/erase", {"confirm": Q})),
    ]  # fmt: skip


def letter_rows() -> list[Row]:
    """Operations on dead letters. A count of those that match a filter tells what is stored."""
    at = f"/queues/{Q}"
    return [
        Row("redrive", (MANAGE,), call(ops.Redrive(Q)), grpc=("Queues.Redrive", {"queue": Q})),
        Row("redrive_at_once_by_key", (MANAGE, READ), call(ops.Redrive(Q, LetterFilter(key="x")))),
        Row("redrive_at_once_by_error", (MANAGE, READ), call(ops.Redrive(Q, LetterFilter(error_contains="x")))),
        Row("redrive_by_key", (MANAGE, READ), call(ops.RedriveLetters(Q, LetterFilter(key="x"))), ("POST", f"{at}/dlq/redrive", {"key": "x"}), grpc=("Tasks.RedriveLetters", {"queue": Q, "filter": {"key": "x"}})),
        Row("count_by_key", (MANAGE, READ), call(ops.DiscardLetters(Q, LetterFilter(key="x"), options=BulkOptions(dry_run=True))), ("POST", f"{at}/dlq/purge", {"key": "x", "dry_run": True}), grpc=("Tasks.DiscardLetters", {"queue": Q, "filter": {"key": "x"}, "options": {"dry_run": True}})),
        Row("redrive_by_group", (MANAGE,), call(ops.RedriveLetters(Q, LetterFilter(group="default", reason="rejected"))), ("POST", f"{at}/dlq/redrive", {"group": "default", "reason": "rejected"}), grpc=("Tasks.RedriveLetters", {"queue": Q, "filter": {"group": "default", "reason": "rejected"}})),
        Row("redrive_letters", (MANAGE,), call(ops.RedriveLetters(Q)), ("POST", f"{at}/dlq/redrive", {}), grpc=("Tasks.RedriveLetters", {"queue": Q})),
        Row("redrive_edited_letters", (MANAGE, PUSH), call(ops.RedriveLetters(Q, edit=b'{"a": 1}')), ("POST", f"{at}/dlq/redrive", {"edit": {"a": 1}}), grpc=("Tasks.RedriveLetters", {"queue": Q, "edit": '{"a": 1}'})),
        Row("redrive_a_signature", (MANAGE, READ), call(ops.RedriveLetters(Q, LetterFilter(signature="01234567"))), ("POST", f"{at}/dlq/redrive", {"signature": "01234567"}), grpc=("Tasks.RedriveLetters", {"queue": Q, "filter": {"signature": "01234567"}})),
        Row("count_letters", (MANAGE,), call(ops.RedriveLetters(Q, options=BulkOptions(dry_run=True))), ("POST", f"{at}/dlq/redrive", {"dry_run": True}), grpc=("Tasks.RedriveLetters", {"queue": Q, "options": {"dry_run": True}})),
        Row("discard_letters", (MANAGE,), call(ops.DiscardLetters(Q)), ("POST", f"{at}/dlq/purge", {}), grpc=("Tasks.DiscardLetters", {"queue": Q})),
        Row("discard_by_error", (MANAGE, READ), call(ops.DiscardLetters(Q, LetterFilter(error_contains="x"))), ("POST", f"{at}/dlq/purge", {"error_contains": "x"}), grpc=("Tasks.DiscardLetters", {"queue": Q, "filter": {"error_contains": "x"}})),
    ]  # fmt: skip


def task_rows(world: World) -> list[Row]:
    """Tasks, operations on many of them, workers and schedules."""
    receipt, task = world.receipt, world.task
    new = TaskSubmission(task_id=world.new_task, task_type="t", queue=Q)
    finish = Finish(receipt=Receipt.parse(receipt), task_id=task, outcome="completed")
    finished = {"receipt": receipt, "task_id": task, "outcome": "completed"}
    progress = {"receipt": receipt, "task_id": task, "progress": {"done": 1}}
    mine = TaskFilter(queue=Q)
    worker = {"worker_id": "w", "queues": [Q]}
    at, every = f"/tasks/{task}", {"cron": "0 3 * * *", "task_type": "t", "queue": Q}
    schedule = ScheduleSpec(name="nightly", task_type="t", queue=Q, cron="0 3 * * *")
    operation = f"/operations/{world.operation}"
    return [
        Row("submit_tasks", (PUSH,), call(ops.SubmitTasks([new])), ("POST", "/tasks", {"task_type": "t", "queue": Q}), (JsonType.SUBMIT_TASK, {"task_type": "t", "queue": Q}), grpc=("Tasks.SubmitTasks", {"tasks": [{"task_type": "t", "queue": Q}]})),
        Row("submit_task", (PUSH,), grpc=("Tasks.SubmitTask", {"task_type": "t", "queue": Q})),
        Row("claim_tasks", (CONSUME,), json=(JsonType.CLAIM_TASK, worker), grpc=("Tasks.ClaimTasks", worker)),
        Row("claim_from_several", (CONSUME, ("consume", OTHER)), json=(JsonType.CLAIM_TASK, {"worker_id": "w", "queues": [Q, MAIL], "max": 1}), grpc=("Tasks.ClaimTasks", {"worker_id": "w", "queues": [Q, MAIL]})),
        Row("finish_tasks", (CONSUME,), call(ops.FinishTasks([finish])), ("POST", "/tasks/finish", finished), (JsonType.TASK_RESULT, finished), grpc=("Tasks.FinishTasks", {"finishes": [finished]})),
        Row("note_progress", (CONSUME,), call(ops.NoteProgress(Receipt.parse(receipt), task, b"1")), ("POST", "/tasks/progress", progress)),
        Row("find_task", (READ,), call(ops.FindTask(task)), ("GET", at, None), (JsonType.QUERY_STATUS, {"task_id": task}), grpc=("Tasks.GetTaskStatus", {"task_id": task})),
        Row("why_task", (READ,), call(ops.WhyTask(task)), ("GET", f"{at}/why", None), grpc=("Tasks.WhyTask", {"task_id": task})),
        Row("task_result", (READ,), http=("GET", f"{at}/result", None)),
        Row("wait_task", (READ,), call(ops.WaitTask(task, 0.001)), ("GET", f"{at}?wait_ms=1", None), (JsonType.QUERY_STATUS, {"task_id": task, "wait_ms": 1}), grpc=("Tasks.GetTaskStatus", {"task_id": task, "wait_ms": 1})),
        Row("list_tasks", (ANYBODY,), call(ops.ListTasks()), ("GET", "/tasks", None), (JsonType.LIST_TASKS, {}), grpc=("Tasks.ListTasks", {})),
        Row("list_tasks_of_a_queue", (READ,), call(ops.ListTasks(mine)), ("GET", f"/tasks?queue={Q}", None), (JsonType.LIST_TASKS, {"queue": Q}), grpc=("Tasks.ListTasks", {"filter": {"queue": Q}})),
        Row("task_stats", (MONITOR,), grpc=("Tasks.GetStats", {"queues": [Q]})),
        Row("heartbeat_worker", (CONSUME,), call(ops.HeartbeatWorker(WorkerInfo(worker_id="w", queues=(Q,)))), ("POST", "/workers/w/heartbeat", {"queues": [Q]}), (JsonType.HEARTBEAT, worker), grpc=("Tasks.HeartbeatWorker", {"info": worker})),
        Row("await_news", looks("consume", SOME), call(ops.AwaitNews("w")), ("GET", "/workers/w/news", None)),
        Row("forget_worker", looks("consume", SOME), call(ops.ForgetWorker("w")), ("DELETE", "/workers/w", None), (JsonType.HEARTBEAT, {**worker, "is_leaving": True}), grpc=("Tasks.ForgetWorker", {"worker_id": "w"})),
        Row("count_tasks", (ANYBODY,), call(ops.CountTasks()), ("GET", "/tasks/counts", None), grpc=("Tasks.CountTasks", {})),
        Row("list_workflows", (ANYBODY,), call(ops.ListWorkflows()), ("GET", "/workflows", None)),
        Row("find_workflow", (ANYBODY,), call(ops.FindWorkflow("none")), ("GET", "/workflows/none", None)),
        Row("cancel_workflow", looks("manage", BROKER), http=("POST", "/workflows/none/cancel", {})),
        Row("retry_workflow_in_a_queue", (MANAGE,), http=("POST", "/workflows/none/retry", {"queue": Q})),
        Row("suggest_tasks", (ANYBODY,), call(ops.SuggestTasks("kwargs")), ("GET", "/tasks/suggest?field=kwargs", None)),
        Row("quiet_worker", (MANAGE,), call(ops.QuietWorker("w")), ("POST", "/workers/w/quiet", {}), grpc=("Tasks.QuietWorker", {"worker_id": "w"})),
        Row("resume_worker", (MANAGE,), call(ops.ResumeWorker("w")), ("POST", "/workers/w/resume", {}), grpc=("Tasks.ResumeWorker", {"worker_id": "w"})),
        Row("stop_worker", (MANAGE,), call(ops.StopWorker("w")), ("POST", "/workers/w/stop", {}), grpc=("Tasks.StopWorker", {"worker_id": "w"})),
        Row("run_schedule", (MANAGE, PUSH), call(ops.RunSchedule("nightly")), ("POST", "/schedules/nightly/run", None), grpc=("Tasks.RunSchedule", {"name": "nightly"})),
        Row("ticks", (MONITOR,), call(ops.Ticks("nightly")), ("GET", "/schedules/nightly/ticks", None), grpc=("Tasks.ListTicks", {"name": "nightly"})),
        Row("workers", (ANYBODY,), call(ops.Workers()), ("GET", "/workers", None), grpc=("Tasks.ListWorkers", {})),
        Row("set_schedule", (MANAGE, PUSH), call(ops.SetSchedule(schedule)), ("PUT", "/schedules/nightly", every), grpc=("Tasks.SetSchedule", {"name": "nightly", **every})),
        Row("schedules", (ANYBODY,), call(ops.Schedules()), ("GET", "/schedules", None), grpc=("Tasks.ListSchedules", {})),
        Row("get_schedule", (ANYBODY,), http=("GET", "/schedules/nightly", None)),
        Row("delete_schedule", (MANAGE,), call(ops.DeleteSchedule("nightly")), ("DELETE", "/schedules/nightly", None), grpc=("Tasks.DeleteSchedule", {"name": "nightly"})),
        Row("find_operation", (MONITOR,), call(ops.FindOperation(world.operation)), ("GET", operation, None), grpc=("Tasks.GetOperation", {"operation_id": world.operation})),
        Row("list_operations", (ANYBODY,), call(ops.ListOperations()), ("GET", "/operations", None), grpc=("Tasks.ListOperations", {})),
        Row("continue_operation", (MANAGE,), call(ops.ContinueOperation(world.operation)), ("POST", f"{operation}/continue", None), grpc=("Tasks.ContinueOperation", {"operation_id": world.operation})),
        Row("stop_operation", (MANAGE,), call(ops.StopOperation(world.operation)), ("DELETE", operation, None), grpc=("Tasks.StopOperation", {"operation_id": world.operation})),
        Row("cancel_task", (MANAGE,), call(ops.CancelTask(task)), ("DELETE", at, None), (JsonType.CANCEL_TASK, {"task_id": task}), grpc=("Tasks.CancelTask", {"task_id": task})),
        Row("retry_task", (MANAGE,), call(ops.RetryTask(task)), ("POST", f"{at}/retry", None), grpc=("Tasks.RetryTask", {"task_id": task})),
    ]  # fmt: skip


def look_rows() -> list[Row]:
    """Connections, nodes, traces, pipelines and the past."""
    every, operate = (("monitor", BROKER),), (("operate", BROKER),)
    return [
        Row("preview_seek", (MANAGE,), call(ops.PreviewSeek(Q, "g", "latest")), grpc=("Queues.PreviewSeek", {"queue": Q, "group": "g", "to": {"latest": True}})),
        Row("search_messages", (READ,), call(ops.SearchMessages(Q)), ("POST", f"/queues/{Q}/messages/search", {"key": "k"}), grpc=("Queues.SearchMessages", {"queue": Q})),
        Row("pipelines", every, call(ops.Pipelines()), ("GET", "/pipelines", None)),
        Row("get_pipeline_run", every, call(ops.GetPipelineRun("rollup", "r1")), ("GET", "/pipelines/rollup/runs/r1", None)),
        Row("get_pipeline_report", every, call(ops.GetPipelineReport("rollup", "r1")), ("GET", "/pipelines/rollup/runs/r1/report", None)),
        Row("put_pipeline_run", operate, call(ops.PutPipelineRun("rollup", "r1", "done")), ("PUT", "/pipelines/rollup/runs/r1", {"status": "done"})),
        Row("past_state", looks("monitor", SOME), http=("GET", "/history/state?at=2020-01-31T12:00:00Z", None)),
        Row("cluster", every, call(ops.Cluster()), ("GET", "/cluster", None)),
        Row("list_connections", operate, call(ops.ListConnections()), ("GET", "/connections", None)),
        Row("end_connection", operate, call(ops.EndConnection("0")), ("DELETE", "/connections/0", None)),
        Row("get_trace", (ANYBODY,), call(ops.GetTrace("4bf9")), ("GET", "/traces/4bf9", None)),
    ]  # fmt: skip


def broker_rows() -> list[Row]:
    """The broker itself, its files, its keys and its users."""
    every, operate, export = (("monitor", BROKER),), (("operate", BROKER),), (("export", BROKER),)
    return [
        Row("info", (ANYBODY,), call(ops.Info()), ("GET", "/info", None)),
        Row("me", (ANYBODY,), call(ops.Me()), ("GET", "/me", None)),
        Row("list_data_keys", (ANYBODY,), call(ops.ListDataKeys()), ("GET", "/encryption", None)),
        Row("link", (ANYBODY,), http=("POST", "/sessions/links", {})),  # for a browser, as who asks for it
        Row("all_stats", (ANYBODY,), http=("GET", "/stats", None)),
        Row("health", every, http=("GET", "/health", None)),
        Row("get_metrics", every, call(ops.GetMetrics()), ("GET", "/metrics", None)),
        Row("get_metrics_of_queue", (MONITOR,), call(ops.GetMetrics(Q)), ("GET", f"/metrics?queue={Q}", None)),
        Row("get_series", every, call(ops.GetSeries()), ("GET", "/history/series", None)),
        Row("get_series_of_queue", (MONITOR,), call(ops.GetSeries(Q)), ("GET", f"/history/series?queue={Q}", None)),
        Row("metrics", every, http=("GET", "//metrics", None)),
        Row("query_history", looks("read", SOME), http=("POST", "/history/query", {"query": "select 1"})),
        Row("init_producer", looks("push", SOME), call(ops.InitProducer("p")), ("POST", "/producers", {"name": "p"})),
        Row("stage", (PUSH,), call(ops.Stage(Q, STAGED, 0, b"1"))),
        Row("commit_sink", (PUSH,), call(ops.CommitSink(Q, "sink", 0))),
        Row("get_sink_state", (PUSH,), call(ops.GetSinkState(Q, "sink"))),
        Row("discard_staged", (PUSH,), call(ops.DiscardStaged(Q, [STAGED]))),
        Row("history", export, call(ops.History())),
        Row("list_files", export, call(ops.ListFiles("segments"))),
        Row("fetch", export, call(ops.Fetch("segments/none", 0, 1))),
        Row("pin", export, call(ops.Pin("p", []))),
        Row("unpin", export, call(ops.Unpin("p"))),
        Row("pauses", (ANYBODY,), call(ops.Pauses()), ("GET", "/pauses", None), grpc=("Queues.ListPauses", {})),
        Row("pause_broker", operate, call(ops.PauseBroker("push")), ("POST", "/pause", {"what": "push"}), grpc=("Queues.PauseBroker", {"what": "push"})),
        Row("resume_broker", operate, call(ops.ResumeBroker()), ("POST", "/resume", {}), grpc=("Queues.ResumeBroker", {})),
        Row("seal", operate, call(ops.Seal()), ("POST", "/seal", None)),
        Row("sync", operate, call(ops.Sync()), ("POST", "/sync", None)),
        Row("take_profile", operate, call(ops.TakeProfile("threads")), ("POST", "/profiles", {"what": "threads"})),
        Row("compact", operate, call(ops.Compact()), ("POST", "/compact", None)),
        Row("start_backup", operate, call(ops.StartBackup("none")), ("POST", "/backups", {"destination": "none"})),
        Row("get_backup", operate, call(ops.GetBackup()), ("GET", "/backups", None)),
        Row("list_audit", operate, call(ops.ListAudit()), ("GET", "/audit", None)),
        Row("verify_audit", operate, call(ops.VerifyAudit()), ("GET", "/audit/verify", None)),
        Row("rewrap_data_keys", operate, call(ops.RewrapDataKeys("none")), ("POST", "/encryption/rewrap", {"master_key": "none"})),
        Row("create_key", operate, call(ops.CreateKey("new", ["push:mail"])), ("POST", "/keys", {"name": "new", "grants": ["push:mail"]})),
        Row("list_keys", operate, call(ops.ListKeys()), ("GET", "/keys", None)),
        Row("rotate_key", operate, call(ops.RotateKey("none")), ("POST", "/keys/none/rotate", {})),
        Row("revoke_key", operate, call(ops.RevokeKey("none")), ("DELETE", "/keys/none", None)),
        Row("set_user", operate, call(ops.SetUser("new", ["push:mail"])), ("PUT", "/users/new", {"grants": ["push:mail"]})),
        Row("list_users", operate, call(ops.ListUsers()), ("GET", "/users", None)),
        Row("delete_user", operate, call(ops.DeleteUser("new")), ("DELETE", "/users/new", None)),
        Row("set_role", operate, call(ops.SetRole("clerk", ["push:mail"])), ("PUT", "/roles/clerk", {"grants": ["push:mail"]})),
        Row("list_roles", operate, call(ops.ListRoles()), ("GET", "/roles", None)),
        Row("delete_role", operate, call(ops.DeleteRole("clerk")), ("DELETE", "/roles/clerk", None)),
        Row("set_namespace", operate, call(ops.SetNamespace("team-b")), ("PUT", "/namespaces/team-b", {})),
        Row("list_namespaces", operate, call(ops.ListNamespaces()), ("GET", "/namespaces", None)),
        Row("delete_namespace", operate, call(ops.DeleteNamespace("team-b")), ("DELETE", "/namespaces/team-b", None)),
    ]  # fmt: skip


def last_rows() -> list[Row]:
    """What removes what others ask for: it comes last."""
    mine, purge = TaskFilter(queue=Q, workflow="none"), {"queue": Q, "workflow": "none"}
    begin = {"action": "purge", **purge}
    return [
        Row("begin_operation", (MANAGE,), call(ops.BeginOperation("purge", mine)), ("POST", "/operations", begin), grpc=("Tasks.BeginOperation", {"action": "purge", "filter": purge})),
        Row("begin_operation_everywhere", looks("manage", BROKER), call(ops.BeginOperation("purge", TaskFilter(workflow="none"))), ("POST", "/operations", {"action": "purge", "workflow": "none"}), grpc=("Tasks.BeginOperation", {"action": "purge", "filter": {"workflow": "none"}})),
        Row("purge_tasks", (MANAGE,), http=("POST", "/tasks/purge", purge), grpc=("Tasks.PurgeTasks", {"filter": purge})),
        Row("retry_tasks", (MANAGE,), http=("POST", "/tasks/retry", purge)),
        Row("cancel_tasks", (MANAGE,), http=("POST", "/tasks/cancel", purge)),
        Row("compact_queue", (MANAGE,), call(ops.CompactQueue(Q)), ("POST", f"/queues/{Q}/compact", None), grpc=("Queues.CompactQueue", {"queue": Q})),
        Row("purge", (MANAGE,), call(ops.Purge(Q)), ("POST", f"/queues/{Q}/purge", None), grpc=("Queues.Purge", {"queue": Q})),
        Row("delete_queue", (MANAGE,), call(ops.DeleteQueue(Q)), ("DELETE", f"/queues/{Q}", None), grpc=("Queues.DeleteQueue", {"queue": Q})),
    ]  # fmt: skip


def rows(world: World) -> list[Row]:
    """Every request."""
    return [
        *(*push_rows(), *lease_rows(world), *transaction_rows(world), *queue_rows(), *letter_rows()),
        *(*task_rows(world), *broker_rows(), *look_rows(), *last_rows()),
    ]


# Routes that are no request of the matrix, and why.
OPEN_ROUTES: Final = {
    ("GET", "/health"): "the action of /api/v1/health; tests/access/test_strangers.py",
    ("GET", "/livez"): "for load balancers",
    ("GET", "/readyz"): "for load balancers",
    ("POST", "/api/v1/sessions"): "signing in; tests/access/test_sign_in.py",
    ("DELETE", "/api/v1/sessions/current"): "ends the session that asks",
    ("POST", "/api/v1/sessions/links"): "for everybody who is somebody; tests/access/test_canaries.py",
}
