"""Bad input over HTTP: a clear error that names the field, nothing changed, others undisturbed."""

from __future__ import annotations

import pytest

from penstock import limits
from tests.support.http import request
from tests.support.readable import check_error

PUSH = "/api/v1/queues/mail/messages"
LEASE = "/api/v1/queues/mail/lease"
DEEP = b"[" * 100_000

# (path, body, status, code, what the message begins with)
BAD = [
    (PUSH, b"", 400, "bad_request", "body: empty"),
    (PUSH, b"{", 400, "bad_request", "body: "),
    (PUSH, b'{"messages":[{"payload":01}]}', 400, "bad_request", "body: JSON is malformed"),
    (PUSH, b'{"messages":[{"payload":"\xff"}]}', 400, "bad_request", "body: byte 25 is not UTF-8"),
    (PUSH, b'{"messages":[{"payload":' + DEEP, 400, "bad_request", "body: the JSON is nested too deeply"),
    (PUSH, b"[]", 400, "invalid_field", "body: "),
    (PUSH, b'{"messages":{}}', 400, "invalid_field", "messages: "),
    (PUSH, b'{"message":[]}', 400, "invalid_field", "message: there is no such field"),
    (PUSH, b'{"messages":[{"payload":1},{"payload":1,"prio":1}]}', 400, "invalid_field", "messages[1].prio: "),
    (PUSH, b'{"messages":[{"payload":1},{}]}', 400, "invalid_field", "messages[1].payload: neither is given"),
    (PUSH, b'{"messages":[{"payload":1,"payload_base64":""}]}', 400, "invalid_field", "messages[0].payload: both"),
    (PUSH, b'{"messages":[{"payload_base64":"%%%"}]}', 400, "invalid_field", "messages[0].payload_base64: "),
    (PUSH, b'{"messages":[{"payload":1,"priority":300}]}', 400, "invalid_field", "messages[0].priority: "),
    (PUSH, b'{"messages":[{"payload":1,"priority":"top"}]}', 400, "invalid_field", "messages[0].priority: "),
    (PUSH, b'{"messages":[{"payload":1,"key":5}]}', 400, "invalid_field", "messages[0].key: "),
    (PUSH, b'{"messages":[{"payload":1,"delay_ms":-1}]}', 400, "invalid_field", "messages[0].delay_ms: "),
    (PUSH, b'{"messages":[{"payload":1,"ttl_ms":0}]}', 400, "invalid_field", "messages[0].ttl_ms: "),
    (PUSH, b'{"messages":[{"payload":1,"deliver_at":"soon"}]}', 400, "invalid_field", "messages[0].deliver_at: "),
    (PUSH, b'{"messages":[{"payload":1,"deliver_at":"1969-01-01T00:00:00Z"}]}', 400, "invalid_field", "messages[0]."),
    (PUSH, b'{"messages":[{"payload":1,"deliver_at":"9999-12-31T23:59:59-12:00"}]}', 400, "invalid_field", "messages"),
    (PUSH, b'{"messages":[{"payload":1,"headers":{"a":1}}]}', 400, "invalid_field", "messages[0].headers"),
    (PUSH, b'{"messages":[{"payload":1,"partition":"/"}]}', 400, "invalid_name", "messages[0].partition: "),
    (PUSH, b'{"messages":[{"payload":1,"partition":9}]}', 400, "invalid_field", "partition: "),
    (PUSH, b'{"messages":[{"payload":1,"content_type":"text/plain"}]}', 400, "invalid_field", "messages[0].payload: w"),
    (PUSH, b'{"messages":[{"payload":1,"key":"' + b"k" * 70_000 + b'"}]}', 413, "too_large", "messages[0].key: "),
    (PUSH, b'{"messages":[{"payload":"' + b"p" * 11_000_000 + b'"}]}', 413, "too_large", "messages[0].payload: "),
    (PUSH, b'{"messages":[{"payload":1}],"durability":"maybe"}', 400, "invalid_field", "durability: "),
    ("/api/v1/queues/%2Fbad/messages", b'{"messages":[{"payload":1}]}', 400, "invalid_name", "queue: "),
    ("/api/v1/queues/mail.dlq/messages", b'{"messages":[{"payload":1}]}', 400, "invalid_name", ""),
    ("/api/v1/queues", b'{"name":"x","lease_seconds":5}', 400, "unknown_option", "'lease_seconds' is not a queue opt"),
    ("/api/v1/queues/mail/messages/search", b'{"from":"0001-01-01T00:00:00+14:00"}', 400, "invalid_field", "since: "),
    ("/api/v1/queues/mail/dlq/search", b'{"until":"9999-12-31T23:59:59-14:00"}', 400, "invalid_field", "until: "),
    ("/api/v1/tasks/cancel", b'{"as_of":"0001-01-01T00:00:00+14:00"}', 400, "invalid_field", "as_of: "),
    ("/api/v1/queues/mail/purge", b'{"dry_run":true}', 400, "invalid_field", "dry_run: there is no such field"),
    ("/api/v1/queues/mail/purge", b"{", 400, "bad_request", "body: "),
    (LEASE, b'{"max":0}', 400, "invalid_field", "max: "),
    (LEASE, b'{"wait_ms":61000}', 400, "invalid_field", "wait_ms: "),
    (LEASE, b'{"lease_seconds":5}', 400, "invalid_field", "lease_seconds: there is no such field"),
    (LEASE, b'{"group":"/"}', 400, "invalid_name", "group: "),
    (LEASE, b'{"consumer":"/"}', 400, "invalid_name", "consumer: "),
    (LEASE, b'{"partitions":[true]}', 400, "invalid_field", "partitions[0]: "),
    ("/api/v1/queues/nowhere/lease", b"{}", 404, "queue_not_found", ""),
    ("/api/v1/ack", b"{}", 400, "invalid_field", "receipts: neither is given"),
    ("/api/v1/ack", b'{"receipts":[]}', 400, "invalid_field", "receipts: "),
    ("/api/v1/ack", b'{"receipts":["a:b:1:1:ff","x"]}', 400, "bad_receipt", "receipts[1]: "),
    ("/api/v1/ack", b'{"receipts":["a:b:1:1:ff"],"lease_id":"00000000000000ff"}', 400, "invalid_field", "receipts: "),
    ("/api/v1/ack", b'{"receipts":["mail:0:0:1:00000000000000ff"]}', 409, "lease_lost", ""),
    ("/api/v1/ack", b'{"lease_id":"zz"}', 400, "invalid_field", "lease_id: "),
    ("/api/v1/ack", b'{"receipts":["a:b:1:1:ff"],"delay_ms":1}', 400, "invalid_field", "delay_ms: "),
    ("/api/v1/extend", b'{"receipts":["a:b:1:1:ff"]}', 400, "invalid_field", "lease_ms: it is required"),
    ("/api/v1/queues", b'{"name":"a/b"}', 400, "invalid_name", "queue: "),
    ("/api/v1/queues", b'{"name":"a","lease_ms":0}', 400, "invalid_field", "lease_ms: "),
    ("/api/v1/queues", b'{"name":"a","leese_ms":1}', 400, "unknown_option", "'leese_ms' is not"),
    ("/api/v1/queues?exist_ok=perhaps", b'{"name":"a"}', 400, "invalid_field", "exist_ok: "),
    ("/api/v1/queues?nonsense=1", b'{"name":"a"}', 400, "invalid_field", "nonsense: "),
    ("/api/v1/queues?exist_ok=1&exist_ok=0", b'{"name":"a"}', 400, "invalid_field", "query: "),
    ("/api/v1/queues?exist_ok=%ff", b'{"name":"a"}', 400, "bad_request", "query: "),
    ("/api/v1/queues/mail/groups/none/seek", b'{"to":0}', 404, "group_not_found", ""),
    ("/api/v1/queues/mail/groups/default/seek", b'{"to":"soon"}', 400, "invalid_field", "to: "),
    ("/api/v1/transactions", b'{"operations":[{"type":"dance"}]}', 400, "invalid_field", "operations[0].type: "),
    ("/api/v1/transactions", b'{"operations":[{"type":"ack","receipts":["x"]}]}', 400, "bad_receipt", "operations[0]."),
    (
        *("/api/v1/transactions", b'{"operations":[{"type":"push","queue":"q","messages":[{}]}]}'),
        *(400, "invalid_field", "operations[0].messages[0].payload: "),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "message"),
    BAD,
    ids=[f"{path.rpartition('/')[2]}-{body[:60]!r}" for path, body, *_ in BAD],
)
def test_bad_input_gets_an_error_that_names_the_field(server, path, body, status, code, message):
    server.push("mail", 1)

    response = server.http.post(path, content=body)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"]["message"].startswith(message)
    check_error(response.json())
    assert server.stats("mail")["ready"] == 1


@pytest.mark.parametrize("end", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00"])
def test_a_series_whose_steps_would_be_no_times_is_refused(server, end):
    response = server.http.get("/api/v1/history/series", params={"metric": "lag", "to": end, "compare": 604_800})

    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_field")
    check_error(response.json())


def test_a_body_where_none_is_taken_is_refused_unless_it_is_empty(server):
    server.push("mail", 1)

    response = server.http.request("DELETE", "/api/v1/queues/mail", content=b'{"dry_run":true}')

    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_field")
    assert server.stats("mail")["ready"] == 1
    assert server.http.post("/api/v1/queues/mail/purge", content=b"{}").status_code == 204


def test_a_misspelt_field_gets_the_right_one_as_a_hint(server):
    response = server.http.post(LEASE, json={"lease_seconds": 5})

    assert response.json()["error"]["hint"] == "did you mean 'lease_ms'?"


@pytest.mark.parametrize(
    "garbage",
    [b"hello there\r\n\r\n", b"\x00\x00\x00\x05\x10", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"],
    ids=repr,
)
def test_what_is_not_http_is_answered_as_far_as_possible_and_closed(server, garbage):
    with server.connect() as client:
        client.send(garbage)
        answer = client.answer()

        assert (answer.status, answer.code) == (400, "bad_request")
        assert answer.headers["connection"] == "close"
        assert client.rest() == b""
    server.push("mail", 1)


def test_a_compressed_body_is_refused(server):
    response = server.http.post(PUSH, content=b"x", headers={"content-encoding": "gzip"})

    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("content-encoding: ")


def test_headers_that_never_end_are_refused(server):
    with server.connect() as client:
        client.send(b"GET /livez HTTP/1.1\r\nx: " + b"y" * 200_000)

        assert client.answer().status == 400


@pytest.mark.parametrize("path", [PUSH, "/api/v1/queues"])
def test_a_body_that_is_too_large_is_refused_before_it_is_read(serve, path):
    server = serve(request_bytes_max=1024)
    with server.connect() as client:
        client.send(request("POST", path, content_length="1000000000000"))
        answer = client.answer()

    assert (answer.status, answer.code, answer.headers["connection"]) == (413, "too_large", "close")


@pytest.mark.parametrize("path", [PUSH, "/api/v1/queues"])
def test_a_body_in_chunks_is_refused_when_it_grows_too_large(serve, path):
    server = serve(request_bytes_max=1024)
    with server.connect() as client:
        client.send(request("POST", path, transfer_encoding="chunked") + b"400\r\n" + b" " * 1024 + b"\r\n1\r\n \r\n")
        answer = client.answer()

    assert (answer.status, answer.code) == (413, "too_large")
    assert serve(request_bytes_max=1024).http.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "change",
    ["{}:{}: {}:{}:{}", "{}:{}:+{}:{}:{}", "{}:{}:{}:\n{}:{}", "{}:{}:{}:{}:{}\n", "{}:{}:0_{}:{}:{}"],
)
def test_a_receipt_is_taken_as_it_was_given_or_not_at_all(server, change):
    server.push("mail", 1)
    (message,) = server.lease("mail")

    spoilt = change.format(*message["receipt"].split(":"))
    refused = server.http.post("/api/v1/ack", json={"receipts": [spoilt]}).json()
    taken = server.http.post("/api/v1/ack", json={"receipts": [message["receipt"]]}).json()

    assert refused["error"]["code"] == "bad_receipt"
    assert taken["results"][0]["status"] == "ok"


@pytest.mark.parametrize("message", [b'{"payload":1}', b'{"payload":1,"key":""}'], ids=["plain", "with a key"])
@pytest.mark.parametrize("path", [PUSH, "/api/v1/transactions"])
def test_a_push_heeds_the_limit_of_messages_in_a_batch(server, path, message):
    server.push("mail", 1)
    many = b"[%b]" % b",".join([message] * (limits.batch_messages_max + 1))
    body = b'{"messages":%b}' % many
    if path != PUSH:
        body = b'{"operations":[{"type":"push","queue":"mail","messages":%b}]}' % many

    response = server.http.post(path, content=body, timeout=120)

    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_field")
    assert "messages: " in response.json()["error"]["message"]
    assert server.stats("mail")["ready"] == 1
