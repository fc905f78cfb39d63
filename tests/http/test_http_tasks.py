"""Tasks, workers and schedules over HTTP: every route, what it answers and what it refuses."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest

from tests.support.http import HttpThread, request
from tests.support.readable import check_error

TASKS = "/api/v1/tasks"
OPERATIONS = "/api/v1/operations"
ID = "0190f3a2-7b1c-7c00-8000-0123456789ab"
OTHER = "0190f3a2-7b1c-7c00-8000-0123456789ac"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def submit(server: HttpThread, **task: Any) -> str:
    response = server.http.post(TASKS, json={"task_type": "send", "queue": "mail"} | task)
    assert response.status_code == 201, response.text
    task_id: str = response.json()["tasks"][0]["task_id"]
    return task_id


def claim(server: HttpThread, **asked: Any) -> list[dict[str, Any]]:
    return server.lease("mail", consumer="w-1", **asked)


def finish(server: HttpThread, message: dict[str, Any], outcome: str = "completed", **more: Any) -> Any:
    proof = {"receipt": message["receipt"], "task_id": message["payload"]["task_id"]}
    return server.http.post(f"{TASKS}/finish", json={**proof, "outcome": outcome, **more})


def seen(server: HttpThread, task_id: str, **query: Any) -> dict[str, Any]:
    task: dict[str, Any] = server.http.get(f"{TASKS}/{task_id}", params=query).json()
    return task


def test_a_task_is_submitted_leased_finished_and_its_result_comes_back_byte_for_byte(server):
    body = f'{{"task_type":"send","queue":"mail","args":["ä",  1.0],"kwargs":{{"b" : 1}},"task_id":"{ID}"}}'
    made = server.http.post(TASKS, content=body.encode(), headers={"traceparent": PARENT})
    again = server.http.post(TASKS, content=body.encode())
    (message,) = claim(server)
    running = seen(server, ID)
    proof = {"receipt": message["receipt"], "task_id": ID, "outcome": "completed"}
    end = json.dumps(proof)[:-1].encode() + b',"result":{"sent" :  [1]}}'
    finished = server.http.post(f"{TASKS}/finish", content=end)
    shown = server.http.get(f"{TASKS}/{ID}").content
    result = server.http.get(f"{TASKS}/{ID}/result")

    assert (made.status_code, made.json()) == (201, {"tasks": [{"task_id": ID, "is_new": True}]})
    assert again.json() == {"tasks": [{"task_id": ID, "is_new": False}]}
    assert message["content_type"] == "application/vnd.penstock.task+json"
    assert (message["payload"]["args"], message["trace"]) == (["ä", 1.0], PARENT)
    assert (running["status"], running["worker"], "result" in running) == ("running", "w-1", False)
    assert finished.json() == {"results": [{"task_id": ID, "status": "ok"}]}
    assert '"args":["ä",  1.0],"kwargs":{"b" : 1},"result":{"sent" :  [1]}'.encode() in shown
    assert (result.status_code, result.content) == (200, b'{"sent" :  [1]}')


def test_many_tasks_are_stored_together_or_not_at_all(server):
    good = {"task_type": "a", "queue": "mail", "task_id": ID}
    child = {"task_type": "b", "queue": "mail", "depends_on": [ID], "task_id": OTHER}
    refused = server.http.post(TASKS, json={"tasks": [good, {"task_type": "b", "depends_on": [OTHER]}]})
    made = server.http.post(TASKS, json={"tasks": [child, good]})

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_field")
    assert refused.json()["error"]["message"].startswith("tasks[1].depends_on")
    assert [each["is_new"] for each in made.json()["tasks"]] == [True, True]
    assert seen(server, OTHER)["status"] == "blocked"
    finish(server, claim(server)[0], result=1)
    assert [each["payload"]["task_id"] for each in claim(server)] == [OTHER]


def test_a_unique_task_is_not_submitted_twice(server):
    first = submit(server, unique_key="report", unique_ms=60_000)
    again = server.http.post(TASKS, json={"task_type": "send", "queue": "mail", "unique_key": "report"}).json()

    assert again == {"tasks": [{"task_id": first, "is_new": False}]}


def test_whoever_waits_for_a_task_is_answered_when_it_ends(server):
    task_id = submit(server)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(seen(server, task_id, wait_ms=60_000)))
    waiting.start()
    server.until(lambda: server.broker.waits)
    finish(server, claim(server)[0], result={"n": 1})
    waiting.join(60)

    assert (found[0]["status"], found[0]["result"]) == ("completed", {"n": 1})
    assert seen(server, task_id, wait_ms=60_000)["status"] == "completed"


def test_a_task_without_a_result_says_why(server):
    waiting, dead, cancelled = (submit(server, priority=n, max_attempts=1) for n in (1, 250, 251))
    server.http.delete(f"{TASKS}/{cancelled}")
    finish(server, claim(server, max=1)[0], "failed", error="Traceback: boom")
    answers = {id: server.http.get(f"{TASKS}/{id}/result") for id in (waiting, dead, cancelled)}

    codes = [(answer.status_code, answer.json()["error"]["code"]) for answer in answers.values()]
    assert codes == [(409, "task_unfinished"), (409, "task_died"), (409, "task_cancelled")]
    assert "Traceback: boom" in answers[dead].json()["error"]["message"]
    assert server.http.get(f"{TASKS}/{ID}/result").status_code == 404


def test_tasks_are_listed_searched_and_paged(server):
    ids = [submit(server, task_type=name, args=[n], workflow="w") for n, name in enumerate("aabba")]
    finish(server, claim(server, max=1)[0])

    def listed(**query: Any) -> list[str]:
        response = server.http.get(TASKS, params=query)
        assert response.status_code == 200, response.text
        return [task["task_id"] for task in response.json()["tasks"]]

    first = server.http.get(TASKS, params={"limit": 3}).json()
    assert [task["task_id"] for task in first["tasks"]] == ids[:1:-1]
    assert "runs" not in first["tasks"][0]
    assert listed(limit=3, cursor=first["cursor"]) == ids[1::-1]
    assert listed(status="completed") == [ids[0]]
    assert listed(status="completed,pending", task_type="b") == [ids[3], ids[2]]
    assert listed(argument="args.0=4") == [ids[4]]
    assert listed(queue="other") == []
    assert listed(workflow="w", until="2020-01-01T00:00:00Z") == []
    assert listed(since="2020-01-01T00:00:00+02:00", worker="w-1") == [ids[0]]


def test_a_page_ends_where_an_answer_would_be_too_large(server):
    ids = [submit(server, args=["x" * 7_000_000]) for _ in range(3)]
    first = server.http.get(TASKS).json()
    second = server.http.get(TASKS, params={"cursor": first["cursor"]}).json()

    assert [task["task_id"] for task in first["tasks"] + second["tasks"]] == ids[::-1]
    assert (len(first["tasks"]), second["cursor"]) == (2, None)


def test_whoever_goes_while_waiting_leaves_nothing_behind(server):
    task_id = submit(server)
    for path in (f"{TASKS}/{task_id}", f"{TASKS}/{task_id}/result", "/api/v1/workers/w-1/news"):
        with server.connect() as client:
            client.send(request("GET", f"{path}?wait_ms=60000"))
            server.until(lambda: server.broker.waits)
        server.until(lambda: not server.broker.waits)


def test_a_dead_task_is_run_again_and_a_pending_one_is_not(server):
    task_id = submit(server, max_attempts=1)
    conflict = server.http.post(f"{TASKS}/{task_id}/retry")
    finish(server, claim(server)[0], "failed", error="boom")
    dead = seen(server, task_id)
    retried = server.http.post(f"{TASKS}/{task_id}/retry")

    assert (conflict.status_code, conflict.json()["error"]["code"]) == (409, "task_conflict")
    assert (dead["status"], dead["error"], dead["runs"][0]["error"]) == ("dead", "boom", "boom")
    assert (retried.status_code, retried.json()["status"]) == (200, "pending")
    assert [each["payload"]["task_id"] for each in claim(server)] == [task_id]


def test_a_running_task_is_cancelled_and_its_worker_notified(server):
    task_id = submit(server)
    (message,) = claim(server)
    heartbeat = server.http.post("/api/v1/workers/w-1/heartbeat", json={"host": "h", "queues": ["mail"], "running": 1})
    found: list[Any] = []
    url = "/api/v1/workers/w-1/news"
    waiting = threading.Thread(target=lambda: found.append(server.http.get(url, params={"wait_ms": 60_000}).json()))
    waiting.start()
    server.until(lambda: server.broker.waits)
    cancelled = server.http.delete(f"{TASKS}/{task_id}")
    waiting.join(60)
    late = finish(server, message, result=1)
    progress = {"receipt": message["receipt"], "task_id": task_id, "progress": 1}

    assert heartbeat.json() == {"cancelled": [], "requested": "", "grace_ms": None}
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert found == [{"cancelled": [task_id], "requested": "", "grace_ms": None}]
    assert (late.status_code, late.json()["error"]["code"]) == (409, "lease_lost")
    assert late.json()["results"][0]["task_id"] == task_id
    assert server.http.post(f"{TASKS}/progress", json=progress).status_code == 409


def test_progress_is_kept_and_workers_are_shown_until_they_leave(server):
    task_id = submit(server)
    (message,) = claim(server)
    server.http.post("/api/v1/workers/w-1/heartbeat", json={"host": "h", "pid": 7, "cpu_percent": 1.5})
    progress = {"receipt": message["receipt"], "task_id": task_id, "progress": {"done": 0.5}}
    noted = server.http.post(f"{TASKS}/progress", json=progress)
    (worker,) = server.http.get("/api/v1/workers").json()["workers"]
    left = server.http.delete("/api/v1/workers/w-1")

    assert (noted.status_code, seen(server, task_id)["progress"]) == (204, {"done": 0.5})
    assert (worker["worker_id"], worker["status"], worker["host"], worker["pid"]) == ("w-1", "alive", "h", 7)
    assert left.status_code == 204
    assert server.http.get("/api/v1/workers").json() == {"workers": []}
    assert [each["attempt"] for each in claim(server)] == [1]  # it was released


def test_finishes_are_accepted_each_by_itself_and_may_be_sent_again(server):
    for _ in range(2):
        submit(server)
    first, second = claim(server)
    runs = [
        {"receipt": each["receipt"], "task_id": each["payload"]["task_id"], "outcome": "completed"}
        for each in (first, second)
    ]
    stale = {**runs[0], "receipt": "mail:0:0:1:00000000000000ff"}
    mixed = server.http.post(f"{TASKS}/finish", json={"finishes": [stale, runs[1]]})
    again = server.http.post(f"{TASKS}/finish", json={"finishes": [runs[1]], "is_again": True})

    assert (mixed.status_code, [each["status"] for each in mixed.json()["results"]]) == (200, ["error", "ok"])
    assert again.json()["results"] == [{"task_id": runs[1]["task_id"], "status": "ok"}]


def test_a_result_that_is_too_large_is_refused_and_the_run_goes_on(server):
    submit(server)
    (message,) = claim(server)
    refused = finish(server, message, result="x" * (1 << 20))

    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
    assert finish(server, message, "failed", error="too large").status_code == 200


def test_tasks_are_purged_by_choice(server):
    done, waiting = submit(server, priority=250), submit(server)
    finish(server, claim(server, max=1)[0])

    first = server.http.post(f"{TASKS}/purge", json={"status": ["completed"]}).json()
    assert (first["purged"], first["status"]) == (1, "done")
    assert server.http.get(f"{TASKS}/{done}").status_code == 404
    assert server.http.post(f"{TASKS}/purge", json={}).json()["purged"] == 1
    assert server.http.get(f"{TASKS}/{waiting}").status_code == 404
    assert server.http.post(f"{TASKS}/purge", content=b"").status_code == 400  # not by accident


def test_operations_are_begun_watched_and_stopped(server):
    for _ in range(3):
        submit(server)
    begun = server.http.post(OPERATIONS, json={"action": "cancel", "queue": "mail", "operation_id": "mine"})
    assert (begun.status_code, begun.json()["operation_id"]) == (202, "mine")
    assert server.http.post(OPERATIONS, json={"action": "cancel", "queue": "mail", "operation_id": "mine"}).is_success

    while (view := server.http.get(f"{OPERATIONS}/mine").json())["status"] == "running":
        pass

    assert (view["action"], view["status"], view["cancelled"], view["purged"]) == ("cancel", "done", 3, 0)
    assert view["filter"] == {"queue": "mail"}
    assert server.http.get(OPERATIONS).json() == {"operations": [view]}
    over = server.http.delete(f"{OPERATIONS}/mine")
    assert (over.status_code, over.json()["error"]["code"]) == (409, "task_conflict")
    assert server.http.get(f"{OPERATIONS}/none").status_code == 404
    refused = server.http.post(OPERATIONS, json={"action": "drop"})
    assert (refused.status_code, "action" in refused.json()["error"]["message"]) == (400, True)


def test_schedules_are_made_seen_changed_and_deleted(server):
    where = "/api/v1/schedules/nightly"
    body = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "task_type": "report", "args": [1], "timeout_ms": 1500}
    made = server.http.put(where, json=body)
    paused = server.http.put(where, json={**body, "is_paused": True})
    listed = server.http.get("/api/v1/schedules").json()["schedules"]
    one = server.http.get(where).json()

    assert (made.status_code, made.json()["cron"], made.json()["args"]) == (200, "0 3 * * *", [1])
    assert made.json()["next_at"].endswith("Z")
    assert (paused.json()["next_at"], paused.json()["is_paused"]) == (None, True)
    assert listed == [one]
    assert (one["name"], one["queue"], one["timeout_ms"]) == ("nightly", "default", 1500)
    assert server.http.delete(where).status_code == 204
    assert server.http.delete(where).json()["error"]["code"] == "schedule_not_found"
    assert server.http.get(where).status_code == 404


BAD = [
    ("POST", TASKS, {}, 400, "invalid_field", "task_type: it is required"),
    ("POST", TASKS, {"tasks": []}, 400, "invalid_field", "tasks: "),
    ("POST", TASKS, {"tasks": [{"task_type": "a"}], "queue": "b"}, 400, "invalid_field", "queue: there is no such"),
    ("POST", TASKS, {"task_type": "a b"}, 400, "invalid_field", "task_type: "),
    ("POST", TASKS, {"task_type": "a", "args": {}}, 400, "invalid_field", "args: not an array"),
    ("POST", TASKS, {"task_type": "a", "kwargs": []}, 400, "invalid_field", "kwargs: not an object"),
    ("POST", TASKS, {"task_type": "a", "task_id": "7"}, 400, "invalid_field", "task_id: "),
    ("POST", TASKS, {"task_type": "a", "priority": "top"}, 400, "invalid_field", "priority: "),
    ("POST", TASKS, {"task_type": "a", "timeout_seconds": 5}, 400, "invalid_field", "timeout_seconds: there is no"),
    ("POST", TASKS, {"task_type": "a", "queue": "a/b"}, 400, "invalid_name", "queue: "),
    ("POST", TASKS, {"task_type": "a", "depends_on": [OTHER]}, 400, "invalid_field", "depends_on"),
    ("POST", TASKS, {"task_type": "a", "task_id": ID, "depends_on": [ID]}, 400, "invalid_field", "depends_on"),
    ("POST", TASKS, {"task_type": "a", "on_parent_failure": "x"}, 400, "invalid_field", "on_parent_failure: "),
    ("POST", TASKS, {"task_type": "a", "key": "k" * 70_000}, 413, "too_large", "key: "),
    ("POST", TASKS, {"task_type": "a", "args": ["x" * 11_000_000]}, 413, "too_large", "payload: "),
    ("POST", TASKS, {"tasks": [{"task_type": "a"}, {"task_type": "a", "args": 1}]}, 400, "invalid_field", "tasks[1]."),
    ("GET", f"{TASKS}?status=done", None, 400, "invalid_field", "status: "),
    ("GET", f"{TASKS}?limit=0", None, 400, "invalid_field", "limit: "),
    ("GET", f"{TASKS}?cursor=nonsense", None, 400, "invalid_field", "cursor: "),
    ("GET", f"{TASKS}?since=yesterday", None, 400, "invalid_field", "since: "),
    ("GET", f"{TASKS}/{ID}", None, 404, "task_not_found", ""),
    ("GET", f"{TASKS}/nonsense", None, 400, "invalid_field", "task_id: "),
    ("GET", f"{TASKS}/{ID}?wait_ms=61000", None, 400, "invalid_field", "wait_ms: "),
    ("DELETE", f"{TASKS}/{ID}", None, 404, "task_not_found", ""),
    ("POST", f"{TASKS}/{ID}/retry", None, 404, "task_not_found", ""),
    ("POST", f"{TASKS}/purge", {"states": []}, 400, "invalid_field", "states: "),
    ("POST", f"{TASKS}/finish", {"receipt": "x", "task_id": ID, "outcome": "dead"}, 400, "bad_receipt", "receipt: "),
    ("POST", f"{TASKS}/finish", {"receipt": "a:b:1:1:ff", "task_id": ID, "outcome": "x"}, 400, "invalid_field", "outc"),
    ("POST", f"{TASKS}/finish", {"receipt": "a:b:1:1:ff", "task_id": ID, "outcome": "dead"}, 409, "lease_lost", ""),
    ("POST", f"{TASKS}/progress", {"receipt": "a:b:1:1:ff", "task_id": ID}, 400, "invalid_field", "progress: "),
    ("POST", "/api/v1/workers/a%20b/heartbeat", {}, 400, "invalid_name", "worker"),
    ("POST", "/api/v1/workers/w/heartbeat", {"pid": -1}, 400, "invalid_field", "pid: "),
    ("PUT", "/api/v1/schedules/s", {"cron": "often", "task_type": "a"}, 400, "invalid_field", "cron: "),
    ("PUT", "/api/v1/schedules/s", {"cron": "0 0 30 2 *", "task_type": "a"}, 400, "invalid_field", "cron: "),
    ("PUT", "/api/v1/schedules/s", {"cron": "@daily", "task_type": "a", "timezone": "M"}, 400, "invalid_field", "time"),
]  # fmt: skip


@pytest.fixture(scope="module")
def quiet():
    server = HttpThread()
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "message"),
    BAD,
    ids=[f"{method}-{path.removeprefix('/api/v1/')[:50]}-{str(body)[:50]}" for method, path, body, *_ in BAD],
)
def test_bad_input_gets_an_error_that_names_the_field(quiet, method, path, body, status, code, message):
    response = quiet.http.request(method, path, json=body)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    assert response.json()["error"]["message"].startswith(message), response.text
    check_error(response.json())
    assert quiet.http.get(TASKS).json()["tasks"] == []


def test_counts_and_health_are_found_and_no_task_is_called_counts(server):
    server.http.post("/api/v1/tasks", json={"task_type": "send", "queue": "mail"})
    counts = server.http.get("/api/v1/tasks/counts").json()["counts"]
    health = server.http.get("/health").json()

    assert [(each["queue"], each["pending"]) for each in counts] == [("mail", 1)]
    assert health["workers"] == {"alive": 0, "stuck": 0, "stopping": 0, "dead": 0}
    assert health.keys() == server.http.get("/api/v1/health").json().keys()


def test_bytes_come_in_and_go_out(server):
    content = bytes(range(256))
    encoded = base64.b64encode(content).decode()
    submit(server, task_id=ID, payload_base64=encoded)
    (message,) = claim(server)
    envelope = base64.b64decode(message["payload_base64"])
    assert envelope[:1] == b"\x01"
    assert envelope.endswith(content)

    proof = {"receipt": message["receipt"], "task_id": ID, "outcome": "completed"}
    assert server.http.post(f"{TASKS}/finish", json={**proof, "result_base64": encoded}).status_code == 200
    shown = seen(server, ID)
    assert (shown["result_base64"], "result" in shown) == (encoded, False)
    (listed,) = server.http.get(TASKS).json()["tasks"]
    assert (listed["result_base64"], listed["args"]) == (encoded, [{"penstock:bytes": 256}])
    result = server.http.get(f"{TASKS}/{ID}/result")
    assert (result.content, result.headers["content-type"]) == (content, "application/octet-stream")


@pytest.mark.parametrize("text", ["***", "A", 7])
def test_bytes_that_are_not_base64_are_refused(server, text):
    response = server.http.post(TASKS, json={"task_type": "send", "payload_base64": text})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_field")
    assert "payload_base64" in response.json()["error"]["message"]


def test_the_tasks_of_a_workflow_are_cancelled_and_retried_over_http(server):
    tasks = [{"task_type": "t", "queue": "mail", "workflow": name} for name in ("w", "w", "other")]
    assert server.http.post("/api/v1/tasks", json={"tasks": tasks}).status_code == 201

    counted = server.http.post("/api/v1/workflows/w/cancel", json={"dry_run": True})
    assert (counted.status_code, counted.json()["status"], counted.json()["matched"]) == (202, "counted", 2)
    cancelled = server.http.post("/api/v1/workflows/w/cancel").json()
    assert (cancelled["status"], cancelled["cancelled"], cancelled["filter"]["workflow"]) == ("done", 2, "w")
    assert server.http.get("/api/v1/workflows/w").json()["status"] == "cancelled"
    retried = server.http.post("/api/v1/workflows/w/retry", json={"queue": "mail"}).json()
    assert (retried["status"], retried["done"]) == ("done", 2)

    view = server.http.get("/api/v1/workflows/w").json()
    assert (view["status"], view["counts"]["pending"], view["tasks_total"]) == ("running", 2, 2)
    assert [task["workflow"] for task in view["tasks"]] == ["w", "w"]
    listed = server.http.get("/api/v1/workflows").json()
    assert {each["workflow"]: each["tasks"] for each in listed["workflows"]} == {"w": None, "other": None}
    assert server.http.post("/api/v1/workflows/w/retry", json={"status": ["dead"]}).status_code == 400
    assert server.http.get("/api/v1/workflows/none").status_code == 404
