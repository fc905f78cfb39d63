"""Pushing, leasing and settling over HTTP: the hot routes."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from penstock.batch import Batch
from penstock.model import ContentType, Message
from tests.support.http import HttpThread, request

PUSH = "/api/v1/queues/mail/messages"


def push_raw(server: HttpThread, body: bytes, **headers: str):
    return server.http.post(PUSH, content=body, headers=headers)


def lease_raw(server: HttpThread, queue: str = "mail") -> bytes:
    return server.http.post(f"/api/v1/queues/{queue}/lease", json={"max": 1000}).content


def test_a_push_answers_201_with_an_id_for_each_message(server):
    response = server.http.post(PUSH, json={"messages": [{"payload": 1}, {"payload": 2}]})

    assert response.status_code == 201
    assert response.json() == {
        "results": [{"id": "mail/0/0", "status": "queued"}, {"id": "mail/0/1", "status": "queued"}]
    }


@pytest.mark.parametrize(
    "payload",
    [b'{"a" :  1.50,"b":[1, 2]}', b'"\\u00e9\xc3\xa9"', b"null", b"0", b"1e999", b'{"a":1,"a":2}', b'""'],
    ids=repr,
)
def test_a_payload_of_json_comes_back_byte_for_byte(server, payload):
    push_raw(server, b'{"messages":[{"payload": ' + payload + b" }]}")
    push_raw(server, b'{"messages":[{"payload":' + payload + b',"key":"k"},{"payload":' + payload + b"}]}")

    assert lease_raw(server).count(b'"payload":' + payload + b",") == 3


def test_bytes_travel_in_base64(server):
    content = bytes(range(256))
    server.http.post(PUSH, json={"messages": [{"payload_base64": base64.b64encode(content).decode()}]})

    (message,) = server.lease("mail")

    assert base64.b64decode(message["payload_base64"]) == content
    assert "payload" not in message


def test_text_and_json_that_python_pushed_keep_their_kind(server):
    server.session.push("mail", Batch.build(["text", {"a": 1}, b"bytes"]), None, None)

    text, json, binary = server.lease("mail")

    assert text["payload"] == "text"
    assert text["content_type"] == "text/plain"
    assert json["payload"] == {"a": 1}
    assert base64.b64decode(binary["payload_base64"]) == b"bytes"


@pytest.mark.parametrize("content", [b"", b'{"a":', b'1},{"id":"forged"', b'"\xff"', b"[" * 100_000])
def test_bytes_that_only_claim_to_be_json_cannot_break_a_response(server, content):
    claims = Message(payload=content, content_type=ContentType.JSON)
    server.session.push("mail", Batch.build([claims, {"a": 1}]), None, None)

    first, second = msgspec.json.decode(lease_raw(server))["messages"]

    assert base64.b64decode(first["payload_base64"]) == content
    assert second["payload"] == {"a": 1}


def test_every_field_of_a_message_arrives(server):
    soon = datetime.now(UTC) - timedelta(hours=1)
    server.http.post("/api/v1/queues", json={"name": "mail", "partitions": 4})
    message = {
        "payload": {"n": 1},
        "key": 'k"é',
        "priority": "high",
        "deliver_at": soon.isoformat(),
        "ttl_ms": 60_000,
        "headers": {"h": "v"},
        "dedup_key": "once",
        "partition": 2,
        "max_attempts": 7,
        "trace": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    }
    server.http.post(PUSH, json={"messages": [message, {"payload": 2, "delay_ms": 3_600_000}]})

    (delivery,) = server.lease("mail")
    stored = server.http.get(f"{PUSH}/2/0").json()

    assert {name: delivery[name] for name in ("id", "payload", "key", "priority", "headers", "attempt", "trace")} == {
        "id": "mail/2/0",
        "payload": {"n": 1},
        "key": 'k"é',
        "priority": 192,
        "headers": {"h": "v"},
        "attempt": 1,
        "trace": message["trace"],
    }
    assert (stored["dedup_key"], stored["max_attempts"], stored["partition"], stored["offset"]) == ("once", 7, "2", 0)
    assert stored["expires_at"] > stored["pushed_at"]
    assert server.stats("mail")["waiting"] == 1


def test_a_duplicate_has_the_id_of_the_message_that_came_first(server):
    body = {"messages": [{"payload": 1, "dedup_key": "a"}, {"payload": 2, "dedup_key": "b"}]}
    server.http.post(PUSH, json={"messages": body["messages"][:1]})

    response = server.http.post(PUSH, json=body)

    assert [result["status"] for result in response.json()["results"]] == ["duplicate", "queued"]
    assert response.json()["results"][0]["id"] == "mail/0/0"


def test_a_push_sent_again_by_the_same_producer_is_not_stored_again(server):
    producer = server.http.post("/api/v1/producers", json={"name": "billing"}).json()
    body = {"messages": [{"payload": 1}], "producer": {**producer, "sequence": 1}}

    first, again = (server.http.post(PUSH, json=body) for _ in range(2))

    assert first.json()["results"][0]["id"] == again.json()["results"][0]["id"] == "mail/0/0"
    assert server.stats("mail")["messages"] == 1


def test_an_older_epoch_of_a_producer_is_fenced(server):
    old = server.http.post("/api/v1/producers", json={"name": "billing"}).json()
    server.http.post("/api/v1/producers", json={"name": "billing"})

    response = server.http.post(PUSH, json={"messages": [{"payload": 1}], "producer": {**old, "sequence": 1}})

    assert (response.status_code, response.json()["error"]["code"]) == (409, "producer_fenced")


def test_a_traceparent_reaches_messages_that_have_no_trace_of_their_own(server):
    given, own = (f"00-{digit * 32}-{digit * 16}-01" for digit in "ab")
    body = b'{"messages":[{"payload":1},{"payload":2,"trace":"' + own.encode() + b'"}]}'

    push_raw(server, body, traceparent=given)
    push_raw(server, b'{"messages":[{"payload":3}]}', traceparent="nonsense")

    assert [message.get("trace") for message in server.lease("mail")] == [given, own, None]


def test_an_empty_lease_is_no_error(server):
    server.http.post("/api/v1/queues", json={"name": "mail"})

    assert msgspec.json.decode(lease_raw(server)) == {"lease_id": None, "expires_at": None, "messages": []}


def test_a_lease_without_a_body_asks_for_one_message(server):
    server.push("mail", 1, 2)

    assert len(server.http.post("/api/v1/queues/mail/lease").json()["messages"]) == 1


def test_thousands_of_messages_go_in_and_come_out(server):
    server.push("mail", *range(5_000))

    messages = server.lease("mail", max=10_000)

    assert [message["payload"] for message in messages] == list(range(5_000))
    assert len({message["receipt"] for message in messages}) == 5_000


def test_each_way_to_settle_has_its_outcome(server):
    server.push("mail", *range(6))
    receipts = [message["receipt"] for message in server.lease("mail")]

    def settle(how, receipt, **more):
        return server.http.post(f"/api/v1/{how}", json={"receipts": [receipt], **more}).status_code

    statuses = [
        settle("ack", receipts[0]),
        settle("nack", receipts[1], delay_ms=3_600_000, error="try later"),
        settle("reject", receipts[2], reason="no good"),
        settle("release", receipts[3]),
        settle("snooze", receipts[4], delay_ms=3_600_000),
        settle("extend", receipts[5], lease_ms=60_000),
    ]
    account = server.stats("mail")
    (dead,) = server.http.get("/api/v1/queues/mail/dlq").json()["messages"]

    assert statuses == [200] * 6
    assert {name: account[name] for name in ("acked", "waiting", "dead", "ready", "leased")} == {
        "acked": 1, "waiting": 2, "dead": 1, "ready": 1, "leased": 1,
    }  # fmt: skip
    assert dead["headers"]["penstock-error"] == "no good"


def test_receipts_are_settled_one_by_one_when_some_are_stale(server):
    server.push("mail", 1, 2)
    receipts = [message["receipt"] for message in server.lease("mail")]
    server.http.post("/api/v1/ack", json={"receipts": receipts[:1]})

    response = server.http.post("/api/v1/ack", json={"receipts": receipts})

    assert response.status_code == 200
    assert [(result["receipt"], result["status"]) for result in response.json()["results"]] == [
        (receipts[0], "error"),
        (receipts[1], "ok"),
    ]


def test_when_nothing_can_be_settled_the_status_says_so(server):
    server.push("mail", 1)
    receipts = [message["receipt"] for message in server.lease("mail")]
    server.http.post("/api/v1/ack", json={"receipts": receipts})

    for path, more in (("ack", {}), ("nack", {}), ("extend", {"lease_ms": 1000})):
        response = server.http.post(f"/api/v1/{path}", json={"receipts": receipts, **more})
        assert response.status_code == 409
        assert response.json()["error"]["code"] == "lease_lost"
        assert response.json()["results"][0]["status"] == "error"


def test_a_whole_lease_is_settled_and_extended_by_its_id(server):
    server.push("mail", 1, 2)
    lease_id = msgspec.json.decode(lease_raw(server))["lease_id"]

    extended = server.http.post("/api/v1/extend", json={"lease_id": lease_id, "lease_ms": 5000}).json()["results"][0]
    acked = server.http.post("/api/v1/ack", json={"lease_id": lease_id})
    again = server.http.post("/api/v1/ack", json={"lease_id": lease_id})

    assert (extended["lease_id"], extended["status"]) == (lease_id, "ok")
    assert datetime.fromisoformat(extended["expires_at"]) > datetime.now(UTC)
    assert acked.json() == {"results": [{"lease_id": lease_id, "status": "ok"}]}
    assert again.status_code == 409
    assert server.stats("mail")["acked"] == 2


def test_auto_ack_leaves_nothing_to_settle(server):
    server.push("mail", 1)

    assert len(server.lease("mail", auto_ack=True)) == 1
    assert server.stats("mail")["acked"] == 1


def test_two_groups_lease_the_same_messages(server):
    server.push("mail", 1)

    first = server.lease("mail", group="a", start="earliest")
    assert len(first) == len(server.lease("mail", group="b", start=0, consumer="me")) == 1


def test_a_group_that_is_not_there_is_404_with_a_suggestion(server):
    server.push("mail", 1)
    server.lease("mail", group="billing", start="latest")

    for path, body in (("lease", {"group": "biling"}), ("groups/biling/members", {"member": "m"})):
        refused = server.http.post(f"/api/v1/queues/mail/{path}", json=body)
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "group_not_found"
        assert "billing" in refused.json()["error"]["hint"]


def test_a_lease_that_is_too_large_for_one_response_gives_the_rest_back(serve):
    server = serve(request_bytes_max=100_000)
    for _ in range(5):
        server.push("mail", "x" * 30_000)

    first, second = server.lease("mail"), server.lease("mail")

    assert [message["id"] for message in first + second] == [f"mail/0/{offset}" for offset in range(5)]
    assert {message["attempt"] for message in first + second} == {1}


def test_single_messages_of_both_kinds_that_come_together_keep_their_kind(server):
    with server.connect() as one, server.connect() as two:
        for client, content in ((one, b'"payload":1'), (two, b'"payload_base64":"AAE="')):
            client.send(request("POST", PUSH, b'{"messages":[{' + content + b"}]}"))
        assert {one.answer().status, two.answer().status} == {201}

    contents = {message.get("payload") or message.get("payload_base64") for message in server.lease("mail")}
    assert contents == {1, "AAE="}


def test_a_push_that_skips_says_of_each_message_what_became_of_it(server):
    messages = [
        {"payload": 1},
        {"payload": 2, "priority": "urgent"},
        {"payload_base64": "###"},
        {"payload": 3, "dedup_key": "k"},
        {"payload": 4, "dedup_key": "k"},
        {"payload": 5, "unknown": True},
        "no object",
        {"key": "no payload"},
        {"payload": 6, "partition": 9},
    ]
    response = server.http.post(PUSH, json={"messages": messages, "on_error": "skip"})
    results = response.json()["results"]

    assert response.status_code == 201
    assert [result["status"] for result in results] == [
        *("queued", "failed", "failed", "queued", "duplicate", "failed", "failed", "failed", "failed"),
    ]
    assert [results[row]["id"] for row in (0, 3, 4)] == ["mail/0/0", "mail/0/1", "mail/0/1"]
    assert all(result["error"]["code"] and result["error"]["message"] for result in results if "error" in result)
    assert "priority" in results[1]["error"]["message"]
    assert "messages" not in results[1]["error"]["message"]
    assert server.http.post(PUSH, json={"messages": messages}).status_code == 400
    assert server.http.post(PUSH, json={"messages": messages, "on_error": "fail"}).status_code == 400
    assert server.http.post(PUSH, json={"messages": messages, "on_error": "later"}).status_code == 400
    assert len(server.lease("mail")) == 2
