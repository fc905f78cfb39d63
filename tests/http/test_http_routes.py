"""Every route that is not hot: what it answers, and what it does."""

from __future__ import annotations

import re

import pytest

from penstock.server.http.routes import ROUTES
from tests.support.http import HttpThread

QUEUES = "/api/v1/queues"
MAIL = f"{QUEUES}/mail"


@pytest.fixture
def mail(server: HttpThread) -> HttpThread:
    server.push("mail", "a", "b")
    return server


def test_a_queue_is_made_seen_changed_and_deleted(server):
    made = server.http.post(QUEUES, json={"name": "mail", "lease_ms": 1500, "partitions": 3, "ttl_ms": None})
    seen = server.http.get(MAIL).json()
    changed = server.http.patch(MAIL, json={"max_attempts": 9}).json()
    listed = server.http.get(QUEUES).json()
    deleted = server.http.delete(MAIL)

    assert made.status_code == 201
    assert made.json() == seen
    assert (seen["name"], seen["lease_ms"], seen["partitions"], seen["ttl_ms"]) == ("mail", 1500, 3, None)
    assert changed == {**seen, "max_attempts": 9}
    assert listed == {"queues": [{"name": "mail", "paused": False, "push_paused": False}]}
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert server.http.get(MAIL).status_code == 404


def test_a_queue_is_not_made_twice_unless_that_is_fine(server):
    first, second = (server.http.post(QUEUES, json={"name": "mail"}) for _ in range(2))
    fine = server.http.post(QUEUES, params={"exist_ok": "true"}, json={"name": "mail"})
    other = server.http.post(QUEUES, params={"exist_ok": "true"}, json={"name": "mail", "max_attempts": 3})

    assert [first.status_code, second.status_code, fine.status_code, other.status_code] == [201, 409, 201, 409]
    assert other.json()["error"]["code"] == "queue_exists"


def test_stats_of_one_queue_and_of_all(mail):
    one = mail.http.get(f"{MAIL}/stats").json()

    assert one["groups"]["default"]["ready"] == 2
    assert mail.http.get("/api/v1/stats").json() == {"queues": [one]}


def test_a_paused_queue_hands_nothing_out_until_it_is_resumed(mail):
    assert mail.http.post(f"{MAIL}/pause").status_code == 204
    assert mail.lease("mail") == []
    assert mail.http.post(f"{MAIL}/resume").status_code == 204
    assert len(mail.lease("mail")) == 2


def test_a_purged_queue_is_empty(mail):
    assert mail.http.post(f"{MAIL}/purge").status_code == 204
    assert mail.lease("mail") == []


def test_messages_are_browsed_by_offset_and_by_time(mail):
    everything = mail.http.get(f"{MAIL}/messages").json()["messages"]
    later = mail.http.get(f"{MAIL}/messages", params={"partition": "0", "offset": 1, "limit": 5}).json()["messages"]
    none = mail.http.get(f"{MAIL}/messages", params={"timestamp": "2999-01-01T00:00:00Z"}).json()["messages"]

    assert [message["payload"] for message in everything] == ["a", "b"]
    assert [message["id"] for message in later] == ["mail/0/1"]
    assert none == []


def test_one_message_is_seen_explained_and_taken_back(mail):
    where = f"{MAIL}/messages/0/1"

    assert mail.http.get(where).json()["payload"] == "b"
    assert mail.http.get(f"{where}/why").json()["reasons"][0]["code"] == "no_consumer"
    assert mail.http.delete(where).status_code == 204
    assert [message["payload"] for message in mail.lease("mail")] == ["a"]
    assert mail.http.get(f"{MAIL}/messages/0/9").json()["error"]["code"] == "message_not_found"


def test_peek_shows_the_next_and_delayed_those_that_wait(mail):
    mail.http.post(f"{MAIL}/messages", json={"messages": [{"payload": "later", "delay_ms": 3_600_000}]})

    assert [each["payload"] for each in mail.http.get(f"{MAIL}/peek").json()["messages"]] == ["a"]
    assert [each["payload"] for each in mail.http.get(f"{MAIL}/delayed").json()["messages"]] == ["later"]


def test_groups_are_made_moved_listed_and_forgotten(mail):
    made = mail.http.post(f"{MAIL}/groups", json={"name": "billing", "start": "latest"})
    at_end = mail.http.get(f"{MAIL}/groups").json()["groups"]
    moved = mail.http.post(f"{MAIL}/groups/billing/seek", json={"to": 1})
    leased = mail.lease("mail", group="billing")
    gone = mail.http.delete(f"{MAIL}/groups/billing")

    assert (made.status_code, made.json()) == (201, {"name": "billing"})
    assert {group["name"]: group["partitions"][0]["lag"] for group in at_end} == {"default": 2, "billing": 0}
    assert (moved.status_code, gone.status_code) == (204, 204)
    assert [message["payload"] for message in leased] == ["b"]


@pytest.mark.parametrize("to", ["earliest", "latest", 1, "2030-01-01T00:00:00Z", {"0": 1}])
def test_a_group_goes_to_every_kind_of_position(mail, to):
    assert mail.http.post(f"{MAIL}/groups/default/seek", json={"to": to, "partition": None}).status_code == 204


def test_a_dry_run_of_a_seek_answers_with_what_it_would_do_and_moves_nothing(mail):
    seek = f"{MAIL}/groups/default/seek"

    preview = mail.http.post(seek, json={"to": "latest", "dry_run": True})
    wrong = mail.http.post(seek, json={"to": "latest", "dry_run": "yes"})

    row = {"partition": "0", "from_offset": 0, "to_offset": 2, "redelivered": 0, "skipped": 2, "leased": 0}
    assert preview.status_code == 200
    assert preview.json()["partitions"] == [row]
    assert {name: preview.json()[name] for name in ("redelivered", "skipped", "leased")} == {
        "redelivered": 0, "skipped": 2, "leased": 0,
    }  # fmt: skip
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_field")
    assert len(mail.lease("mail", max=10)) == 2
    assert mail.http.post(seek, json={"to": "earliest", "dry_run": False}).status_code == 204


def test_members_join_stay_and_leave(mail):
    members = f"{MAIL}/groups/default/members"

    joined = mail.http.post(members, json={"member": "one"}).json()
    stayed = mail.http.post(
        f"{members}/one/heartbeat", json={"generation": joined["generation"], "held": joined["assigned"]}
    ).json()
    listed = mail.http.get(members).json()["members"]
    leased = mail.lease("mail", member="one", generation=joined["generation"])
    left = mail.http.delete(f"{members}/one", params={"generation": joined["generation"]})
    fenced = mail.http.post(f"{members}/one/heartbeat", json={"generation": joined["generation"]})

    assert joined["assigned"] == stayed["assigned"] == ["0"]
    assert joined["heartbeat_ms"] > 0
    assert [member["member"] for member in listed] == ["one"]
    assert len(leased) == 2
    assert left.status_code == 204
    assert (fenced.status_code, fenced.json()["error"]["code"]) == (409, "member_fenced")


def test_leases_that_are_held_are_listed_until_they_are_settled(mail):
    leased = mail.http.post(f"{MAIL}/lease", json={"max": 2, "consumer": "w-1"}).json()
    (held,) = mail.http.get(f"{MAIL}/leases").json()["leases"]
    receipts = [message["receipt"] for message in leased["messages"]]

    assert held["lease_id"] == leased["lease_id"]
    assert held["leased_at"] < held["expires_at"]
    assert (held["group"], held["consumer"], held["messages"]) == ("default", "w-1", 2)
    assert held["partitions"] == ["0"]
    mail.http.post("/api/v1/ack", json={"receipts": receipts[:1]})
    assert mail.http.get(f"{MAIL}/leases", params={"group": "default"}).json()["leases"][0]["messages"] == 1
    mail.http.post("/api/v1/ack", json={"receipts": receipts[1:]})
    assert mail.http.get(f"{MAIL}/leases").json() == {"leases": []}


@pytest.mark.parametrize(
    ("query", "code"),
    [("group=none", "group_not_found"), ("group=a/b", "invalid_name"), ("limit=0", "invalid_field")],
)
def test_leases_of_what_is_not_there_are_refused(mail, query, code):
    assert mail.http.get(f"{MAIL}/leases?{query}").json()["error"]["code"] == code


def test_dead_letters_are_listed_redriven_and_thrown_away(mail):
    receipts = [message["receipt"] for message in mail.lease("mail")]
    mail.http.post("/api/v1/reject", json={"receipts": receipts, "reason": "no good"})
    letters = f"{MAIL}/dlq"

    listed = mail.http.get(letters, params={"error_contains": "good"}).json()["messages"]
    none = mail.http.get(letters, params={"error_contains": "else"}).json()["messages"]
    redriven = mail.http.post(f"{letters}/redrive", json={"ids": [listed[0]["id"]]}).json()
    purged = mail.http.delete(letters)

    assert [letter["payload"] for letter in listed] == ["a", "b"]
    assert none == []
    assert (redriven["status"], redriven["done"]) == ("done", 1)
    assert purged.status_code == 204
    assert [message["payload"] for message in mail.lease("mail")] == ["a"]
    assert mail.http.post(f"{letters}/redrive").json()["done"] == 0


def test_a_transaction_happens_whole(mail):
    receipt = mail.lease("mail", max=1)[0]["receipt"]
    operations = [
        {"type": "ack", "receipts": [receipt]},
        {"type": "push", "queue": "next", "messages": [{"payload": {"n": 1}}, {"payload_base64": "AAE=", "key": "k"}]},
    ]

    done = mail.http.post("/api/v1/transactions", json={"operations": operations})
    again = mail.http.post("/api/v1/transactions", json={"operations": operations})

    assert done.json() == {"results": [{"type": "ack"}, {"type": "push", "ids": ["next/0/0", "next/0/1"]}]}
    assert (again.status_code, again.json()["error"]["code"]) == (409, "lease_lost")
    assert mail.stats("next")["messages"] == 2


def test_the_other_parts_of_a_transaction_settle_too(mail):
    first, second = (message["receipt"] for message in mail.lease("mail"))
    mail.push("mail", "c")
    third = mail.lease("mail")[0]["receipt"]
    operations = [
        {"type": "nack", "receipts": [first], "delay_ms": 3_600_000, "error": "later"},
        {"type": "reject", "receipts": [second], "reason": "no good"},
        {"type": "release", "receipts": [third]},
    ]

    assert mail.http.post("/api/v1/transactions", json={"operations": operations}).status_code == 200
    account = mail.stats("mail")
    assert (account["waiting"], account["dead"], account["ready"]) == (1, 1, 1)


def test_the_probes_say_that_all_is_well(mail):
    health = mail.http.get("/api/v1/health").json()

    assert mail.http.get("/livez").json() == {"status": "ok"}
    assert mail.http.get("/readyz").json() == {"status": "ok", "problems": []}
    assert (health["status"], health["queues"]) == ("ok", 1)
    assert health["uptime_ms"] >= 0


def test_metrics_count_what_came_by_http(mail):
    text = mail.http.get("/metrics")

    assert text.headers["content-type"].startswith("text/plain")
    assert 'penstock_pushed_messages_total{queue="mail",protocol="http"} 2\n' in text.text


def test_a_profile_is_taken_only_where_it_is_enabled(serve):
    assert serve().http.get("/debug/profile").status_code == 404

    enabled = serve(profile=True)
    assert enabled.http.get("/debug/profile", params={"seconds": 0.05}).status_code == 200
    assert enabled.http.get("/debug/profile", params={"seconds": 1000}).status_code == 400


def test_head_is_get_without_a_body_and_options_lists_the_methods(mail):
    head, get = mail.http.head(MAIL), mail.http.get(MAIL)
    options = mail.http.options(f"{MAIL}/messages")

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
def test_a_method_that_a_path_does_not_have_is_refused_with_those_it_has(server, path):
    methods = {route.method for route in ROUTES if route.path == path}
    names = dict.fromkeys(re.findall(r"{(\w+)}", path), "0")
    response = server.http.request("PATCH" if "PUT" in methods else "PUT", path.format(**names))

    assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")
    assert methods <= set(response.headers["allow"].split(", "))


def test_a_path_that_does_not_exist_is_refused_as_json(server):
    for path in ("/nope", "/api/v1/queues/", "/api/v1/queues//messages", "/api/v1/ack/"):
        response = server.http.post(path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
