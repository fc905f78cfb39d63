"""Names in paths: whatever one holds, it stays a name, and reaches no other route."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from penstock import connect
from penstock import operations as ops
from penstock.errors import InvalidField, InvalidName, PenstockError
from penstock.model import MessageId
from penstock.model_tasks import ScheduleSpec, WorkerInfo
from penstock.server.http.openapi import PARAMETERS
from penstock.wire.json_operations import json_of
from tests.support.http import request
from tests.support.operations import run_operation

NAMES = ["..", ".", "", "a/b", "mail/groups/g1", "../mail", "g1/..", "g1/../..", "mail/dlq", "%2E%2E", "a%2Fb", "a\\b",
         "a?exist_ok=1", "a#b", "a b", "a\n", "a;b", "ä", "\x00"]  # fmt: skip


def picture(server):
    """Everything that a wrong route could change."""
    names = run_operation(server.session, ops.Queues())[0]
    return [
        (name, run_operation(server.session, ops.Stats(name))[0], run_operation(server.session, ops.Groups(name))[0])
        for name in names
    ]


@pytest.fixture
def queue(server):
    """A queue with a group and messages; and what there was before the test is there after it."""
    with connect(f"http://127.0.0.1:{server.port}") as ps:
        queue = ps.create_queue("mail")
        queue.create_group("g1")
        queue.push_many([b"a", b"b"])
        queue.lease(1)[0].reject()
        yield queue


def calls_of(queue, name):
    """Every call of a client that makes a path of a name."""
    session = queue._session
    return {
        "update_queue": lambda: run_operation(session, ops.UpdateQueue(name, {"max_attempts": 3})),
        "delete_queue": lambda: run_operation(session, ops.DeleteQueue(name)),
        "options": lambda: run_operation(session, ops.GetOptions(name)),
        "stats": lambda: run_operation(session, ops.Stats(name)),
        "pause": lambda: run_operation(session, ops.Pause(name)),
        "purge": lambda: run_operation(session, ops.Purge(name)),
        "push_bytes": lambda: session.push_bytes(name, b"x"),
        "peek": lambda: run_operation(session, ops.Peek(name, 1)),
        "cancel": lambda: run_operation(session, ops.Cancel(MessageId(name, "0", 0))),
        "cancel in a partition": lambda: run_operation(session, ops.Cancel(MessageId("mail", name, 0))),
        "why": lambda: run_operation(session, ops.Why(MessageId(name, "0", 0))),
        "delete_group": lambda: run_operation(session, ops.DeleteGroup("mail", name)),
        "seek": lambda: run_operation(session, ops.Seek("mail", name, "latest", None)),
        "members": lambda: run_operation(session, ops.Members("mail", name)),
        "join": lambda: run_operation(session, ops.Join("mail", name, "me", 10.0)),
        "heartbeat": lambda: run_operation(session, ops.Heartbeat("mail", "g1", name, 1, [])),
        "leave": lambda: run_operation(session, ops.Leave("mail", "g1", name, 1)),
        "purge_dead_letters": lambda: run_operation(session, ops.PurgeDeadLetters(name)),
        "task": lambda: run_operation(session, ops.FindTask(name)),
        "cancel_task": lambda: run_operation(session, ops.CancelTask(name)),
        "forget_worker": lambda: run_operation(session, ops.ForgetWorker(name)),
        "heartbeat_worker": lambda: run_operation(session, ops.HeartbeatWorker(WorkerInfo(worker_id=name))),
        "delete_schedule": lambda: run_operation(session, ops.DeleteSchedule(name)),
        "set_schedule": lambda: run_operation(
            session, ops.SetSchedule(ScheduleSpec(name=name, cron="* * * * *", task_type="t", queue="mail"))
        ),
    }


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_client_makes_no_path_of_what_is_no_name(server, queue, name):
    before = picture(server)

    for call in calls_of(queue, name).values():
        with pytest.raises((InvalidName, InvalidField)):
            call()

    assert picture(server) == before


CUSTOM: dict[Any, dict[str, Any]] = {ops.UpdateQueue: {"changes": {}}, ops.ReplaceLetters: {"ids": [], "batch": b""}}
PATHS = [operation for operation in ops.TABLE.values() if "{" in operation.spec.path]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("operation", PATHS, ids=lambda operation: operation.spec.name)
def test_no_operation_is_made_of_a_path_with_what_is_no_name(operation, name):
    """Each part of the path holds it in turn, and the others are sound."""
    custom = CUSTOM.get(operation)
    json = json_of(operation)
    kind = json.query or json.body
    arguments = None if kind is None or custom else msgspec.convert(operation.spec.example, kind)
    sound = {part: PARAMETERS[part][2] for part in re.findall(r"{(\w+)}", operation.spec.path)}

    for part in sound:
        path = sound | {part: name}
        with pytest.raises((InvalidName, InvalidField)):
            operation(**path, **custom) if custom else json.read(path, arguments)


ROUTES = [
    ("DELETE", "/api/v1/queues/{}"),
    ("PATCH", "/api/v1/queues/{}"),
    ("POST", "/api/v1/queues/{}/purge"),
    ("POST", "/api/v1/queues/{}/pause"),
    ("POST", "/api/v1/queues/{}/lease"),
    ("POST", "/api/v1/queues/{}/messages"),
    ("DELETE", "/api/v1/queues/{}/dlq"),
    ("DELETE", "/api/v1/queues/mail/groups/{}"),
    ("DELETE", "/api/v1/queues/mail/messages/{}/0"),
    ("DELETE", "/api/v1/queues/mail/messages/0/{}"),
    ("DELETE", "/api/v1/queues/mail/groups/g1/members/{}?generation=1"),
    ("DELETE", "/api/v1/workers/{}"),
    ("DELETE", "/api/v1/schedules/{}"),
    ("DELETE", "/api/v1/tasks/{}"),
    ("POST", "/api/v1/tasks/{}/retry"),
    ("GET", "/api/v1/operations/{}"),
    ("DELETE", "/api/v1/operations/{}"),
    ("POST", "/api/v1/queues/{}/dlq/redrive"),
    ("POST", "/api/v1/queues/{}/groups/g1/seek"),
]


@pytest.mark.parametrize("name", [name for name in NAMES if name], ids=ascii)
@pytest.mark.usefixtures("queue")
def test_a_name_that_is_decoded_at_the_server_stays_one(server, name):
    before = picture(server)
    with server.connect() as raw:
        for method, path in ROUTES:
            body = b'{"messages":[{"payload":1}]}' if path.endswith("/messages") else b"{}"
            raw.send(request(method, path.format(quote(name, safe="")), body))
            answer = raw.answer()
            assert answer.status == 400, (path, answer.body)
            assert answer.code in ("invalid_name", "invalid_field"), path

    assert picture(server) == before


@pytest.mark.parametrize("path", ["/api/v1/queues/mail/groups/..", "/api/v1/queues/mail/groups/%2e%2e"])
@pytest.mark.usefixtures("queue")
def test_dots_lead_nowhere(server, path):
    before = picture(server)
    with server.connect() as raw:
        raw.send(request("DELETE", path))
        assert raw.answer().code == "invalid_name"

    assert picture(server) == before


def test_a_path_may_be_encoded_as_it_likes(server, queue):
    assert server.http.get("/api/v1/%71ueues/%6dail/groups").status_code == 200
    assert server.http.delete("/api/v1/queues/mail/groups/%67%31").status_code == 204
    with pytest.raises(PenstockError, match="no group 'g1'"):
        queue.delete_group("g1")


def test_a_path_that_is_not_utf_8_is_refused(server):
    with server.connect() as raw:
        raw.send(request("GET", "/api/v1/queues/%ff"))
        assert raw.answer().code == "bad_request"
