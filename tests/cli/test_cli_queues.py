"""`penstock queues`, `groups`, `seek`, `dlq`, `stats`, `peek`, `delayed`, `cancel`, `why`."""

from __future__ import annotations

import pytest
import typer

from penstock import operations as ops
from penstock.cli.options import DEFAULTS, flag
from tests.support.operations import run_operation


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture
def shop(ps):
    """Two queues with something in every column, and one that is empty."""
    orders = ps.create_queue("orders", max_attempts=1, partitions=1)
    orders.push_many([f"order {number}" for number in range(1234)])
    orders.lease(10).ack()
    orders.lease(2).nack(error="card\ndeclined")
    orders.lease(3)
    orders.push("later", delay=3600)
    ps.create_queue("quiet").pause()
    return orders


def test_a_queue_says_what_its_messages_wait_for(shop, run, no_time_passes):
    text = run("why", "orders").out
    assert "default:" in text
    assert "not_due" in text
    found = run("why", "orders", "--group", "default", "--json").json
    assert [group["group"] for group in found["groups"]] == ["default"]
    assert {reason["code"] for reason in found["groups"][0]["reasons"]} >= {"not_due"}
    assert run("why", "nothing-here").code == 4
    assert run("why", "0190f3a2-7b1c-7c00-8000-0123456789ab").code == 4
    assert run("why", "orders", "--limit", "0").code == 1

    assert run("queues", "keys", "orders", "--json").json["queue"] == "orders"
    assert "no key" in run("queues", "keys", "orders", "--key", "nobody").out
    account = run("queues", "account", "orders", "--json").json
    assert account["is_balanced"]
    assert account["groups"][0]["difference"] == 0
    assert "accepted" in run("queues", "account", "orders").out


@pytest.mark.parametrize("width", ["80", "120"])
def test_queues_are_a_table(width, shop, run, no_time_passes, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    assert lines(run("queues").out) == [
        "queue  groups ready leased waiting dead   lag oldest   stored  state",
        "orders      1 1,219      3       1    2 1,223    12s 15.8 KiB      ·",
        "quiet       1     0      0       0    0     0      ·      0 B paused",
    ]
    assert run("queues", "list").out == run("queues").out
    assert "orders.dlq" in run("queues", "--all").out


def test_a_long_name_is_reported_whole_on_a_narrow_screen(ps, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ps.create_queue("a" * 60)
    out = run("queues").out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("a") - out.splitlines()[0].count("a") >= 60


def test_queues_in_json_have_names_that_stay(shop, run):
    orders, quiet = run("queues", "--json").json
    assert set(orders) == {"name", "messages", "partitions", "bytes_stored", "paused", "push_paused", "groups"}
    assert set(orders["groups"][0]) == {
        "name", "messages", "ready", "leased", "waiting", "acked", "dead", "dropped", "dropped_by", "lag",
        "oldest_unsettled_at", "paused",
    }  # fmt: skip
    assert quiet["paused"] is True


def test_leases_say_who_holds_what(shop, run):
    (held,) = run("queues", "leases", "orders", "--json").json
    table = lines(run("queues", "leases", "orders", "--group", "default").out)

    assert (held["group"], held["consumer"], held["messages"], held["partitions"]) == ("default", "", 3, ["0"])
    assert table[0].split() == ["lease", "group", "consumer", "messages", "held", "for", "expires", "in", "partitions"]
    assert table[1].split()[:4] == [held["lease_id"], "default", "·", "3"]
    empty = run("queues", "leases", "quiet")
    assert empty[:2] == (0, "")
    assert "no leases in 'quiet'" in empty.err


def test_without_queues_there_is_a_hint(ps, run):
    assert "a push creates one" in run("queues").err
    assert run("queues", "--json").json == []


def test_a_queue_is_made_with_any_option_and_changed(ps, run):
    words = ["--partitions", "8", "--ordering", "key", "--lease-seconds", "5m", "--retention-bytes", "1GiB"]
    assert run("queues", "create", "orders", *words, "--dead-letter", "false", "--max-length", "none").code == 0
    options = ps.queue("orders").options()
    assert (options.partitions, options.ordering, options.lease_seconds) == (8, "key", 300.0)
    assert (options.retention_bytes, options.dead_letter, options.max_length) == (2**30, False, None)

    assert run("queues", "update", "orders", "--ttl-seconds", "2d", "--json").json["options"]["ttl_seconds"] == 172_800
    assert ps.queue("orders").options().partitions == 8
    shown = run("queues", "show", "orders").out
    assert "lease_seconds    5m00s" in shown
    assert "8 partitions" in shown
    assert set(run("queues", "show", "orders", "--json").json["options"]) == set(DEFAULTS)


def test_none_is_a_word_where_it_is_a_choice_and_nothing_elsewhere(ps, run):
    assert run("queues", "create", "orders", "--ordering", "none", "--durability", "none").code == 0
    assert run("queues", "update", "orders", "--retention-bytes", "none").code == 0
    options = ps.queue("orders").options()
    assert (options.ordering, options.durability, options.retention_bytes) == ("none", None, None)


def test_every_option_has_a_flag(run):
    shown = run("queues", "create", "--help").out
    assert [name for name in DEFAULTS if flag(name)[:20] not in shown] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["create", "orders"], 1),
        (["create", "new", "--ordering", "sideways"], 1),
        (["create", "new", "--partitions", "0"], 1),
        (["create", "new", "--dead-letter", "perhaps"], 1),
        (["create", "new", "--lease-seconds", "soon"], 1),
        (["create", "new", "--retention-bytes", "10 parsecs"], 1),
        (["create", "bad/name"], 1),
        (["create", "new", "--colour", "red"], 1),
        (["update", "none", "--partitions", "2"], 4),
        (["show", "none"], 4),
        (["delete", "none", "--yes"], 4),
        (["pause", "none"], 4),
        (["purge", "none", "--yes"], 4),
    ],
)
def test_what_cannot_be_done_to_queues_is_one_line(words, code, shop, run):
    result = run("queues", *words)
    assert result.code == code
    assert result.out == ""
    assert len(result.err.splitlines()) <= 2


def test_a_queue_is_paused_resumed_purged_and_deleted(shop, run):
    assert run("queues", "pause", "orders").out == "✓ queue orders is paused\n"
    assert shop.stats().paused
    assert run("queues", "resume", "orders", "--json").json == {"name": "orders", "status": "resumed"}
    assert run("queues", "purge", "orders", "--yes").code == 0
    assert shop.stats().ready == 0
    assert run("queues", "delete", "orders", "--yes").out == "✓ queue orders is deleted\n"
    assert run("queues", "show", "orders").code == 4


@pytest.mark.parametrize(
    "words",
    [
        ["queues", "delete", "orders"],
        ["queues", "purge", "orders"],
        ["dlq", "purge", "orders"],
        ["groups", "delete", "orders", "default"],
    ],
)
def test_what_cannot_be_undone_needs_a_yes(words, shop, run):
    before = shop.stats()
    result = run(*words)
    assert result.code == 1
    assert "confirm with --yes" in result.err
    assert shop.stats() == before


def test_a_terminal_is_asked_and_no_means_no(shop, run, monkeypatch):
    asked = []

    def answer_no(question: str, **how: bool) -> None:
        asked.append(question)
        raise typer.Abort

    monkeypatch.setattr("penstock.cli.output.has_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", answer_no)
    assert run("queues", "delete", "orders").code == 130
    assert asked == ["Delete queue orders with 1,235 messages?"]
    assert shop.stats().messages == 1235


def test_groups_are_made_listed_moved_and_deleted(shop, run, no_time_passes):
    assert run("groups", "create", "orders", "audit", "--start", "latest").code == 0
    assert lines(run("groups", "list", "orders").out) == [
        "group      lag  ready  leased  waiting  dead  oldest",
        "default  1,223  1,219       3        1     2     12s",
        "audit        0      0       0        0     0       ·",
    ]
    assert run("seek", "orders", "audit", "1000").out == "✓ group audit of orders has 235 messages ahead of it\n"
    assert run("seek", "orders", "audit", "--", "-1h").out == "✓ group audit of orders has 1,235 messages ahead of it\n"
    assert lines(run("groups", "list", "orders", "--partitions").out)[2].split() == [
        "audit",
        "0",
        "0",
        "0",
        "1,235",
        "1,235",
    ]
    assert run("groups", "list", "orders", "--json").json[1]["partitions"][0]["end_offset"] == 1235
    assert run("groups", "create", "orders", "audit").code == 1
    assert run("groups", "members", "orders", "audit")[:2] == (0, "")
    assert run("groups", "delete", "orders", "audit", "--yes").code == 0
    assert run("seek", "orders", "audit", "latest").code == 4
    assert run("seek", "orders", "default", "sometime").code == 1


def test_members_of_a_group_are_listed(ps, run, no_time_passes):
    queue = ps.create_queue("orders", partitions=2)
    run_operation(ps._session, ops.Join("orders", "workers", "w1", 30, "earliest"))
    assert lines(run("groups", "members", "orders", "workers").out)[1].split() == ["w1", "12s", "0,", "1"]
    (member,) = run("groups", "members", "orders", "workers", "--json").json
    assert member["partitions"] == ["0", "1"]
    assert queue.stats().ready == 0


def test_dead_letters_are_listed_filtered_shown_and_sent_back(shop, run, no_time_passes):
    assert lines(run("dlq", "list", "orders").out) == [
        "id              age  tries  reason  error",
        "orders.dlq/0/0  12s  1      dead    card\\ndeclined",
        "orders.dlq/0/1  12s  1      dead    card\\ndeclined",
    ]
    assert run("dlq", "list", "orders", "--error", "lightning")[:2] == (0, "")
    shown = run("dlq", "show", "orders.dlq/0/1").out
    assert "orders/0/11" in shown
    assert shown.endswith("\norder 11\n")
    assert run("dlq", "show", "orders.dlq/0/1", "--json").json["dead"]["attempts"] == 1
    counted = run("dlq", "redrive", "orders", "--dry-run").out
    assert lines(counted) == ["✓ would send back 2 dead letters, among them", "  orders.dlq/0/0", "  orders.dlq/0/1"]
    assert run("dlq", "redrive", "orders", "--id", "orders.dlq/0/0").out == "✓ sent back 1 dead letter\n"
    assert run("dlq", "redrive", "orders", "--since", "-1h", "--rate", "10", "--json").json["done"] == 1
    assert run("dlq", "redrive", "orders").code == 4
    assert run("dlq", "list", "orders")[:2] == (0, "")
    assert run("dlq", "purge", "orders", "--yes").code == 4
    assert shop.stats().dead == 0


def test_a_dead_letter_is_edited(shop, run, tmp_path):
    changed = tmp_path / "payload"
    changed.write_bytes(b"order eleven")
    assert run("dlq", "edit", "orders.dlq/0/1", "--file", str(changed), "--key", "k").code == 0
    assert run("dlq", "edit", "orders.dlq/0/1", "--payload", "again").code == 4
    assert run("dlq", "edit", "orders.dlq/0/0", "--payload", "a", "--file", str(changed)).code == 1
    assert run("dlq", "edit", "orders.dlq/0/0", "--file", "-", stdin=b"from stdin").code == 0
    assert run("dlq", "edit", "orders.dlq/0/99", "--payload", "a").code == 4
    end = shop.groups()["default"][0].end_offset
    pushed = shop.read(offset=end - 2)
    assert [(message.payload, message.key) for message in pushed] == [(b"order eleven", "k"), (b"from stdin", None)]
    assert not any(name.startswith("penstock-") for message in pushed for name in message.headers or {})


def test_the_payload_of_a_dead_letter_is_edited_in_an_editor(shop, run, monkeypatch):
    monkeypatch.setenv("EDITOR", "sed -i s/11/eleven/")
    assert run("dlq", "edit", "orders.dlq/0/1").code == 0
    monkeypatch.setenv("EDITOR", "true")
    assert run("dlq", "edit", "orders.dlq/0/0").code == 1
    end = shop.groups()["default"][0].end_offset
    assert shop.read(offset=end - 1)[0].payload == b"order eleven"


def test_what_happened_to_a_message_is_told(ps, run):
    queue = ps.queue("mail")
    queue.push(b"a", key="k", trace="t")
    queue.lease(consumer="ann")[0].reject("bad")
    out = run("trace", "mail/0/0").out
    assert [line.split()[3] for line in lines(out)[2:5]] == ["pushed", "leased", "rejected"]
    assert "dead letter mail.dlq/0/0" in out
    assert lines(out)[-1].startswith("default: dead")
    traced = run("trace", "mail/0/0", "--json").json
    assert [event["what"] for event in traced["events"]] == ["pushed", "leased", "rejected"]
    assert traced["events"][2]["letter"] == "mail.dlq/0/0"
    assert traced["groups"][0]["state"] == "dead"
    assert (
        lines(run("trace", "mail", "--key", "k").out)[-1]
        == "1 message of mail searched, back to the oldest that is kept"
    )
    (found, letters) = run("trace", "--trace", "t", "--json").json
    assert found["timelines"][0]["id"] == "mail/0/0"
    assert letters["timelines"][0]["id"] == "mail.dlq/0/0"
    assert run("trace", "mail", "--key", "other").code == 4
    assert run("trace", "mail/0/1").code == 4
    assert run("trace").code == 1
    assert run("trace", "nowhere", "--key", "k").code == 4


def test_pauses_of_every_kind(ps, run):
    queue = ps.create_queue("shop.orders")
    queue.create_group("billing")
    assert run("pauses") == (0, "", "nothing is paused\n")
    assert run("queues", "pause", "shop.orders", "--what", "push", "--reason", "moving").out == (
        "✓ queue shop.orders is paused: push\n"
    )
    assert lines(run("queues").out)[1].endswith("paused (push)")
    assert run("push", "shop.orders", "x").code == 1
    assert run("queues", "pause", "shop.orders", "--group", "billing").code == 0
    assert run("pause", "--namespace", "shop", "--what", "delivery").code == 0
    assert lines(run("queues").out)[1].endswith("paused (all)")
    assert run("pause", "--json").json == {"namespace": None, "what": "all", "status": "paused"}
    assert [pause["scope"] for pause in run("pauses", "--json").json] == ["broker", "namespace", "queue", "group"]
    assert lines(run("pauses").out)[3].split()[:4] == ["queue", "shop.orders", "·", "push"]
    assert run("resume").code == run("resume", "--namespace", "shop").code == 0
    assert run("queues", "resume", "shop.orders").code == 0
    assert lines(run("queues").out)[1].endswith("paused (1 group)")
    assert run("queues", "resume", "shop.orders", "--group", "billing").code == 0
    assert run("pauses", "--json").json == []
    assert run("queues", "pause", "shop.orders", "--what", "nothing").code == 1


def test_retries_are_listed(ps, run):
    queue = ps.queue("mail")
    queue.push(b"a")
    queue.lease()[0].nack(delay=60, error="no luck")
    (row,) = run("delayed", "mail", "--retries", "--json").json_lines
    assert (row["retry"]["reason"], row["retry"]["error"], row["retry"]["attempt"]) == ("retried", "no luck", 2)
    assert lines(run("delayed", "mail", "--retries").out)[1].split()[3:] == ["default", "2", "retried", "no", "luck"]
    assert "no luck" in run("why", "mail/0/0").out
    assert run("delayed", "mail")[:2] == (0, "")


def test_ids_of_dead_letters_are_distinguished_from_others(shop, run):
    assert run("dlq", "show", "orders/0/1").code == 1
    assert run("dlq", "show", "orders.dlq/0/99").code == 4
    assert run("dlq", "purge", "orders", "--yes").code == 0


def test_messages_can_be_looked_at_and_taken_back(shop, run, no_time_passes):
    assert lines(run("peek", "orders", "-n", "2").out)[1].split() == ["orders/0/15", "12s", "order", "15"]
    assert run("peek", "orders", "-n", "1", "--json").json_lines[0]["payload"] == "order 15"
    assert run("peek", "quiet")[:2] == (0, "")
    delayed = run("delayed", "orders").out
    assert "orders/0/1234" in delayed
    assert "in 1h00m" in delayed or "in 59m" in delayed
    assert run("why", "orders/0/1234", "--json").json[0]["code"] == "not_due"
    assert "not_due" in run("why", "orders/0/1234").out
    assert run("cancel", "orders/0/1234").out == "✓ orders/0/1234 cancelled\n"
    assert run("delayed", "orders")[:2] == (0, "")
    assert run("why", "orders/0/99999").code == 4
    assert run("cancel", "nonsense").code == 1


@pytest.mark.parametrize("width", ["80", "120"])
def test_statistics_add_up(width, shop, run, no_time_passes, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    assert lines(run("stats", "orders").out) == [
        "orders: 1,235 messages, 1 partition, 15.8 KiB stored",
        "",
        "group   messages ready leased waiting acked dead dropped   lag oldest",
        "default    1,235 1,219      3       1    10    2       0 1,223    12s",
    ]
    totals = run("stats", "--json").json["totals"]
    assert (totals["queues"], totals["ready"], totals["dead"]) == (2, 1219, 2)
    assert "1,219" in run("stats").out
    assert run("stats", "none").code == 4
