"""The JSON protocol of tasks on TCP: types 1 to 9, as a client in any language would speak it."""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from penstock import operations as ops
from penstock.batch import Batch
from penstock.embedded.session import Session
from penstock.errors import NotAuthorised
from penstock.wire.frames import JsonType, Type, frame, json_frame
from penstock.wire.requests import Hello, encode
from tests.support.broker_loop import SOMEONE, on_uvloop, until
from tests.support.brokers import BrokerThread
from tests.support.tcp_peer import Serving, serving

PAGE = Path(__file__).parent.parent.parent / "docs" / "formats" / "tcp.md"
ID = "0190f3a2-7b1c-7c00-8000-0123456789ab"
ACK, NACK = JsonType.ACK, JsonType.NACK


class Plain:
    """A client that knows JSON and frames, and nothing else."""

    def __init__(self, place: Serving, peer: Any) -> None:
        self.broker = place.broker
        self.reader, self.writer = peer.reader, peer.writer

    def send(self, kind: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.writer.write(json_frame(kind, data))

    async def answer(self) -> tuple[int, Any]:
        length, kind = struct.unpack(">IB", await self.reader.readexactly(5))
        return kind, json.loads(await self.reader.readexactly(length - 1))

    async def ask(self, kind: int, **body: Any) -> Any:
        self.send(kind, body)
        answered, said = await self.answer()
        assert answered == ACK, said
        return said

    async def refusal(self, kind: int, body: Any) -> tuple[str, str]:
        self.send(kind, body)
        answered, said = await self.answer()
        assert answered == NACK, said
        return said["error"]["code"], said["error"]["message"]

    async def submit(self, **task: Any) -> str:
        found = await self.ask(JsonType.SUBMIT_TASK, **{"task_type": "add", "queue": "sums"} | task)
        task_id: str = found["tasks"][0]["task_id"]
        return task_id

    async def claim(self, *queues: str, **more: Any) -> list[dict[str, Any]]:
        said = await self.ask(JsonType.CLAIM_TASK, worker_id="w-1", queues=queues or ["sums"], **more)
        tasks: list[dict[str, Any]] = said["tasks"]
        return tasks

    async def finish(self, task: dict[str, Any], outcome: str = "completed", **more: Any) -> Any:
        proof = {"receipt": task["receipt"], "task_id": task["task_id"]}
        return await self.ask(JsonType.TASK_RESULT, **proof, outcome=outcome, **more)

    async def status(self, task_id: str, **more: Any) -> Any:
        return await self.ask(JsonType.QUERY_STATUS, task_id=task_id, **more)


@on_uvloop
async def test_bytes_come_in_and_go_out_in_base64():
    async with serving(None) as place:
        client = await plain(place)
        content = base64.b64encode(bytes(range(256))).decode()
        await client.submit(task_id=ID, payload_base64=content, args=[7])
        (task,) = await client.claim()
        assert (task["payload_base64"], task["args"]) == (content, [{"penstock:bytes": 256}, 7])
        code, message = await client.refusal(
            JsonType.TASK_RESULT,
            {"receipt": task["receipt"], "task_id": ID, "outcome": "completed", "result": 1, "result_base64": ""},
        )
        assert (code, message) == ("invalid_field", "result: result and result_base64 are both given")
        await client.finish(task, result_base64=content)
        seen = await client.status(ID)
        assert (seen["result_base64"], "result" in seen) == (content, False)

        await client.submit(depends_on=[ID], takes="one")
        (task,) = await client.claim()
        assert "payload_base64" not in task
        assert task["parents"] == [{"task_id": ID, "status": "completed", "result_base64": content}]


async def plain(place: Serving) -> Plain:
    return Plain(place, await place.peer(hello=False))


@on_uvloop
async def test_a_task_is_submitted_claimed_finished_and_seen_byte_for_byte():
    async with serving(None) as place:
        client = await plain(place)
        text = b'{"task_type":"add","queue":"sums","args":[1,  2.0, "\xc3\xa4"],"timeout_ms":1500,"key":"k"}'
        client.send(JsonType.SUBMIT_TASK, text)
        kind, submitted = await client.answer()
        assert kind == ACK, submitted
        (task,) = await client.claim()
        client.send(JsonType.TASK_RESULT, json.dumps({
            "receipt": task["receipt"], "task_id": task["task_id"], "outcome": "completed"
        }).encode()[:-1] + b',"result":{"sum" :  3}}')  # fmt: skip
        finished = await client.answer()
        seen = await client.status(task["task_id"])
        client.send(JsonType.QUERY_STATUS, {"task_id": task["task_id"]})
        length, _ = struct.unpack(">IB", await client.reader.readexactly(5))
        raw = await client.reader.readexactly(length - 1)

        assert submitted["tasks"][0]["is_new"] is True
        assert (task["task_type"], task["args"], task["attempt"]) == ("add", [1, 2.0, "ä"], 1)
        assert (task["timeout_ms"], task["key"], task["queue"]) == (1500, "k", "sums")
        assert finished == (ACK, {"results": [{"task_id": task["task_id"], "status": "ok"}]})
        assert (seen["status"], seen["result"], seen["worker"]) == ("completed", {"sum": 3}, "w-1")
        assert [run["outcome"] for run in seen["runs"]] == ["acked"]
        assert b'"args":[1,  2.0, "\xc3\xa4"]' in raw
        assert b'"result":{"sum" :  3}' in raw


@on_uvloop
async def test_many_are_submitted_claimed_and_finished_together():
    async with serving(None) as place:
        client = await plain(place)
        tasks = [{"task_type": "add", "queue": "sums", "args": [n, n]} for n in range(5)]
        submitted = (await client.ask(JsonType.SUBMIT_TASK, tasks=tasks))["tasks"]
        claimed = await client.claim(max=10)
        finishes = [
            {"receipt": each["receipt"], "task_id": each["task_id"], "outcome": "completed", "result": n}
            for n, each in enumerate(claimed)
        ]
        finishes[2]["receipt"] = "sums:0:2:1:00000000000000ff"
        results = (await client.ask(JsonType.TASK_RESULT, finishes=finishes))["results"]
        listed = await client.ask(JsonType.LIST_TASKS, status=["completed"], limit=3)
        rest = await client.ask(JsonType.LIST_TASKS, status=["completed"], limit=3, cursor=listed["cursor"])
        running = await client.ask(JsonType.LIST_TASKS, queue="sums", status=["running", "pending"])

        assert [each["task_id"] for each in submitted] == [each["task_id"] for each in claimed]
        assert [each["status"] for each in results] == ["ok", "ok", "error", "ok", "ok"]
        assert results[2]["error"]["code"] == "lease_lost"
        assert (len(listed["tasks"]), len(rest["tasks"]), rest["cursor"]) == (3, 1, None)
        assert [each["task_id"] for each in running["tasks"]] == [claimed[2]["task_id"]]


@on_uvloop
async def test_a_claim_waits_for_any_of_its_queues():
    async with serving(None) as place:
        client, other = await plain(place), await plain(place)
        for queue in ("a", "b", "c"):
            await other.finish((await _submitted(other, queue))[0])
        client.send(JsonType.CLAIM_TASK, {"worker_id": "w", "queues": ["a", "none", "b"], "wait_ms": 60_000})
        await until(lambda: len(place.broker.waiting) == 2)
        await other.submit(queue="c")
        task_id = await other.submit(queue="b")
        _, said = await client.answer()

        assert [each["task_id"] for each in said["tasks"]] == [task_id]
        await until(lambda: not place.broker.waiting)
        assert await client.claim("a") == []
        assert (await client.refusal(JsonType.CLAIM_TASK, {"worker_id": "w", "queues": ["x"]}))[0] == "queue_not_found"


async def _submitted(client: Plain, queue: str) -> list[dict[str, Any]]:
    await client.submit(queue=queue)
    return await client.claim(queue)


@on_uvloop
async def test_a_client_that_goes_while_it_waits_takes_nothing_with_it():
    async with serving(None) as place:
        client, other = await plain(place), await plain(place)
        await other.finish((await _submitted(other, "sums"))[0])
        client.send(JsonType.CLAIM_TASK, {"worker_id": "w", "queues": ["sums"], "wait_ms": 60_000})
        await until(lambda: place.broker.waiting)
        client.writer.close()
        await until(lambda: not place.broker.waiting)
        await other.submit()

        assert [each["attempt"] for each in await other.claim()] == [1]


@on_uvloop
async def test_parents_results_come_with_the_task_that_takes_them():
    async with serving(None) as place:
        client = await plain(place)
        parent = await client.submit(args=[1, 2])
        child = await client.submit(task_type="double", depends_on=[parent], takes="one")
        blocked = await client.status(child)
        (first,) = await client.claim(max=9)
        await client.finish(first, result=3)
        (second,) = await client.claim(max=9)

        assert blocked["status"] == "blocked"
        assert (second["task_id"], second["takes"]) == (child, "one")
        assert second["parents"] == [{"task_id": parent, "status": "completed", "result": 3}]


@on_uvloop
async def test_a_heartbeat_holds_leases_tells_progress_and_hears_of_cancellation():
    async with serving(None) as place:
        client, other = await plain(place), await plain(place)
        await client.submit()
        await client.submit()
        first, second = await client.claim(max=2, lease_ms=1000)
        progress = [{"receipt": first["receipt"], "task_id": first["task_id"], "progress": {"done": 0.5}}]
        beat = {"worker_id": "w-1", "receipts": [first["receipt"], "sums:0:0:1:ff"], "lease_ms": 60_000}
        reported = await client.ask(JsonType.HEARTBEAT, **beat, progress=progress, host="h", running=2)
        seen = await client.status(first["task_id"])
        cancelled = await other.ask(JsonType.CANCEL_TASK, task_id=second["task_id"])
        again = await client.ask(JsonType.HEARTBEAT, worker_id="w-1")
        client.send(JsonType.TASK_RESULT, {**_proof(second), "outcome": "completed"})
        refused = await client.answer()
        left = await client.ask(JsonType.HEARTBEAT, worker_id="w-1", is_leaving=True)

        assert [each["status"] for each in reported["leases"]] == ["ok", "error"]
        assert reported["leases"][0]["expires_at"] > first["expires_at"]
        assert reported["progress"] == [{"task_id": first["task_id"], "status": "ok"}]
        assert (seen["progress"], seen["status"]) == ({"done": 0.5}, "running")
        assert cancelled["status"] == "cancelled"
        assert again["cancelled"] == [second["task_id"]]
        assert (refused[0], refused[1]["error"]["code"]) == (NACK, "lease_lost")
        assert refused[1]["results"][0]["task_id"] == second["task_id"]
        assert left == {"cancelled": [], "leases": [], "progress": [], "requested": "", "grace_ms": None}
        assert [each["attempt"] for each in await other.claim()] == [1]  # it was released


def _proof(task: dict[str, Any]) -> dict[str, Any]:
    return {"receipt": task["receipt"], "task_id": task["task_id"]}


@on_uvloop
async def test_answers_come_in_the_order_of_the_requests():
    async with serving(None) as place:
        client = await plain(place)
        for n in range(50):
            client.send(JsonType.SUBMIT_TASK, {"task_type": "add", "queue": "sums", "args": [n]})
            client.send(JsonType.LIST_TASKS, b"")
            client.send(JsonType.QUERY_STATUS, b"{}")
        answers = [await client.answer() for _ in range(150)]

        assert [kind for kind, _ in answers] == [ACK, ACK, NACK] * 50
        assert [len(said["tasks"]) for _, said in answers[1::3]] == [*range(1, 51)]


@pytest.mark.parametrize(
    ("kind", "body", "code", "message"),
    [
        (1, b"", "bad_request", "body: "),
        (1, b'{"queue": "a"}', "invalid_field", "task_type: it is required"),
        (1, b'{"task_type": "a", "args": {}}', "invalid_field", "args: not an array"),
        (1, b'{"tasks": [{"task_type": "a"}, {"task_type": "a", "prio": 1}]}', "invalid_field", "tasks[1].prio: "),
        (1, b'{"task_type": "a", "depends_on": ["%b"]}' % ID.encode(), "invalid_field", "depends_on: "),
        (1, b'{"tasks": []}', "invalid_field", "tasks: "),
        (2, b'{"queues": ["a"]}', "invalid_field", "worker_id: it is required"),
        (2, b'{"worker_id": "w", "queues": []}', "invalid_field", "queues: "),
        (2, b'{"worker_id": "/", "queues": ["a"]}', "invalid_name", "worker_id: "),
        (3, b'{"receipt": "x", "task_id": "%b", "outcome": "dead"}' % ID.encode(), "bad_receipt", "receipt: "),
        (3, b'{"finishes": [{"receipt": "a:b:1:1:ff", "task_id": "%b"}]}' % ID.encode(), "invalid_field", "finishes["),
        (4, b"{}", "invalid_field", "worker_id: it is required"),
        (7, b'{"task_id": "x"}', "invalid_field", "task_id: "),
        (7, b'{"task_id": "%b"}' % ID.encode(), "task_not_found", ""),
        (8, b'{"task_id": "%b"}' % ID.encode(), "task_not_found", ""),
        (9, b'{"status": ["done"]}', "invalid_field", "status[0]: "),
        (9, b'{"cursor": "?"}', "invalid_field", "cursor: "),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_its_place_and_the_connection_goes_on(kind, body, code, message):
    @on_uvloop
    async def run() -> None:
        async with serving(None) as place:
            client = await plain(place)
            found = await client.refusal(kind, body)

            assert (found[0], found[1][: len(message)]) == (code, message)
            assert (await client.ask(JsonType.LIST_TASKS))["tasks"] == []

    run()


@on_uvloop
async def test_a_client_that_does_not_read_gets_no_more_answers_made_until_it_does():
    async with serving(None) as place:
        client = await plain(place)
        task_id = await client.submit(args=["x" * 1_000_000])
        for _ in range(100):
            client.send(JsonType.QUERY_STATUS, {"task_id": task_id})
        (connection,) = place.server._connections
        await until(lambda: connection._is_full)
        made = 100 - connection._unanswered

        assert made < 50
        assert {(await client.answer())[0] for _ in range(100)} == {ACK}


def test_the_frames_of_the_page_are_those_that_are_sent():
    found = re.findall(
        r"^[→←] ((?:[0-9a-f]{2} )+) ([0-9a-f]{2})   (\{.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )

    assert len(found) == 2
    for length, kind, body in found:
        assert json_frame(int(kind, 16), body.encode())[:5] == bytes.fromhex(length + kind)


@pytest.mark.parametrize("kind", [0, 5, 6, 10, 15])
def test_a_type_that_is_no_request_ends_the_connection_with_a_reason(kind):
    @on_uvloop
    async def run() -> None:
        async with serving(None) as place:
            client = await plain(place)
            await client.submit()
            code, _ = await client.refusal(kind, b"{}")

            assert code == "bad_request"
            assert await client.reader.read() == b""

    run()


@on_uvloop
async def test_what_is_no_task_is_not_claimed_but_goes_to_the_dead_letters():
    async with serving(None) as place:
        client = await plain(place)
        await place.broker.pushed(SOMEONE, "sums", Batch.build([b"hello"]))
        task_id = await client.submit()

        assert [each["task_id"] for each in await client.claim(max=5)] == [task_id]
        stats = await place.broker.execute(SOMEONE, ops.Stats("sums"))
        assert stats.groups["default"].dead == 1


@on_uvloop
async def test_who_may_not_is_refused():
    def nobody(principal, action, queue):
        if queue == "secret":
            raise NotAuthorised(f"{action} on {queue!r}")

    async with serving(None) as place:
        place.broker.authorise = nobody
        client = await plain(place)

        assert (await client.refusal(1, {"task_type": "a", "queue": "secret"}))[0] == "not_authorised"
        assert (await client.refusal(2, {"worker_id": "w", "queues": ["secret"]}))[0] == "not_authorised"


@on_uvloop
async def test_both_protocols_share_a_connection():
    async with serving(None) as place:
        peer = await place.peer(hello=False)
        client = Plain(place, peer)
        await client.submit()
        peer.writer.write(frame(Type.HELLO, 7, encode(Hello(2, "both"))))
        assert (await peer.next())[:2] == (Type.OK, 7)
        assert await peer.push_one(b"x") == ("0", 0)


@on_uvloop
async def test_a_broker_that_stops_refuses_new_tasks_and_still_takes_results():
    async with serving(None) as place:
        client = await plain(place)
        await client.submit()
        (task,) = await client.claim()
        place.server.stop_accepting()
        await place.broker.drain()

        assert (await client.refusal(JsonType.SUBMIT_TASK, {"task_type": "a"}))[0] == "unavailable"
        assert (await client.finish(task))["results"][0]["status"] == "ok"


def test_the_worker_of_the_page_works():
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "worker"}
    exec(compile(code, "tcp.md", "exec"), names)
    session = Session(None)
    broker = BrokerThread(session)
    try:
        submitter = names["Broker"]("127.0.0.1", broker.server.port)
        worker = names["Worker"](
            "adder-1", ["sums"], {"add": lambda a, b: a + b}, host="127.0.0.1", port=broker.server.port
        )
        tasks = [{"task_type": name, "queue": "sums", "args": [1, 2], "max_attempts": 1} for name in ("add", "no such")]
        tasks[1]["task_type"] = "unknown"
        ids = [each["task_id"] for each in submitter.ask(1, tasks=tasks)["tasks"]]
        reported = worker.heartbeat(concurrency=1)
        worked = [worker.work(wait_ms=0) for _ in range(3)]
        done, dead = (submitter.ask(7, task_id=each, wait_ms=20_000) for each in ids)

        assert reported["cancelled"] == []
        assert worked == [True, True, False]
        assert (done["status"], done["result"], done["worker"]) == ("completed", 3, "adder-1")
        assert (dead["status"], "KeyError" in dead["error"]) == ("dead", True)
        with pytest.raises(RuntimeError, match="task_not_found"):
            submitter.ask(7, task_id=ID)
        for each in (submitter, worker.claims, worker.beats):
            each.socket.close()
    finally:
        broker.stop()
        session.close()
