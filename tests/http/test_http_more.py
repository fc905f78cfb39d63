"""What a client in another program needs beyond the everyday routes: pages of dead letters, resending, upkeep."""

from __future__ import annotations

import pytest

from penstock.batch import encode_one_with
from penstock.model import ContentType
from penstock.version import VERSION
from tests.support.http import HttpThread

MAIL = "/api/v1/queues/mail"
PRODUCER = {"id": "00000000000000aa", "epoch": 1, "sequence": 1}


@pytest.fixture
def letters(server: HttpThread) -> list[str]:
    """Ids of three dead letters."""
    server.push("mail", "a", "b", "c")
    receipts = [message["receipt"] for message in server.lease("mail")]
    server.http.post("/api/v1/reject", json={"receipts": receipts})
    return [letter["id"] for letter in server.http.get(f"{MAIL}/dlq").json()["messages"]]


def test_dead_letters_are_found_by_id_and_in_pages(server, letters):
    by_id = server.http.post(f"{MAIL}/dlq/search", json={"ids": letters[1:2]}).json()["messages"]
    page = server.http.post(f"{MAIL}/dlq/search", json={"limit": 2}).json()["messages"]
    rest = server.http.get(f"{MAIL}/dlq", params={"from_offset": page[-1]["offset"] + 1}).json()["messages"]

    assert [letter["payload"] for letter in by_id] == ["b"]
    assert [letter["payload"] for letter in page] == ["a", "b"]
    assert [letter["payload"] for letter in rest] == ["c"]


def test_edited_messages_take_the_place_of_dead_letters_once(server, letters):
    body = {"ids": letters[:2], "messages": [{"payload": "A"}, {"payload": "B", "key": "k"}]}

    replaced = server.http.post(f"{MAIL}/dlq/replace", json=body)
    again = server.http.post(f"{MAIL}/dlq/replace", json=body)

    assert (replaced.status_code, again.status_code) == (204, 404)
    assert [message["payload"] for message in server.lease("mail")] == ["A", "B"]
    assert len(server.http.get(f"{MAIL}/dlq").json()["messages"]) == 1


def test_a_dead_letter_that_is_named_twice_is_replaced_once(server, letters):
    body = {"ids": [letters[0], letters[0]], "messages": [{"payload": "A"}]}

    assert server.http.post(f"{MAIL}/dlq/replace", json=body).status_code == 204
    assert server.stats("mail")["dead"] == 3
    account = server.http.get("/api/v1/queues/mail.dlq/account").json()
    assert account["is_balanced"]
    assert [(group["dropped"], group["open"]) for group in account["groups"]] == [(1, 2)]


@pytest.mark.parametrize("message", [{"payload": "a"}, {"payload_base64": "AAE="}])
def test_a_push_that_is_sent_again_is_stored_once(server, message):
    body = {"messages": [message, message], "producer": PRODUCER}

    first, second = (server.http.post(f"{MAIL}/messages", json=body) for _ in range(2))

    assert first.json() == second.json()
    assert server.stats("mail")["messages"] == 2


def test_a_transaction_that_is_sent_again_happens_once(server):
    server.push("mail", "a")
    operations = [
        {"type": "snooze", "receipts": [server.lease("mail")[0]["receipt"]], "delay_ms": 3_600_000},
        {"type": "push", "queue": "next", "messages": [{"payload": 1}]},
    ]
    body = {"operations": operations, "producer": PRODUCER}

    first, second = (server.http.post("/api/v1/transactions", json=body) for _ in range(2))

    assert first.json() == second.json() == {"results": [{"type": "snooze"}, {"type": "push", "ids": ["next/0/0"]}]}
    assert (server.stats("mail")["waiting"], server.stats("next")["messages"]) == (1, 1)


def test_a_delivery_has_its_dedup_key(server):
    server.http.post(f"{MAIL}/messages", json={"messages": [{"payload": 1, "dedup_key": "k"}, {"payload": 2}]})

    first, second = server.lease("mail")

    assert first["dedup_key"] == "k"
    assert "dedup_key" not in second


def test_json_with_space_around_it_comes_back_byte_for_byte(server):
    server.session.push_one("mail", encode_one_with(b' {"a": 1}\n', content_type=ContentType.JSON), None)

    message = server.lease("mail")[0]

    assert message["payload_base64"] == "IHsiYSI6IDF9Cg=="
    assert message["content_type"] == "application/json"


def test_a_broker_says_who_it_is_and_keeps_house_when_asked_to(server):
    server.push("mail", "a", "b")

    info = server.http.get("/api/v1/info").json()

    assert (info["version"], info["queues"]) == (VERSION, 1)
    assert server.http.post("/api/v1/seal").json() == {"sealed": 0}
    assert server.http.post("/api/v1/compact").json()["files_removed"] == 0


def test_a_push_that_is_paused_is_told_when_to_try_again(server):
    server.http.post(f"{MAIL}/messages", json={"messages": [{"payload": 1}]})
    server.http.post(f"{MAIL}/pause", json={"what": "push", "reason": "moving"})
    refused = server.http.post(f"{MAIL}/messages", json={"messages": [{"payload": 2}]})

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
    assert refused.json()["error"]["code"] == "push_paused"
    assert refused.json()["error"]["retry_after_ms"] == 10_000
    assert server.http.get(MAIL).json()["push_paused"]
    assert server.http.get("/api/v1/health").json()["pauses"][0]["reason"] == "moving"
    server.http.post(f"{MAIL}/resume")
    assert server.http.post(f"{MAIL}/messages", json={"messages": [{"payload": 2}]}).status_code == 201
