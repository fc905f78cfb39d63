"""`penstock lease`, the commands that take receipts, and `penstock tail`."""

from __future__ import annotations

import json
import threading

import pytest

import penstock
from penstock.cli import output
from penstock.cli.browse import Follower


@pytest.fixture
def mail(ps):
    queue = ps.create_queue("mail", max_attempts=2, backoff_base_seconds=0)
    queue.push("first", key="k", headers={"tenant": "acme"})
    queue.push("second")
    return queue


def test_a_lease_prints_messages_and_acknowledges_them(mail, run, no_time_passes):
    result = run("lease", "mail", "--max", "5", "--ack")

    assert result.out.splitlines() == [
        "mail/0/0 attempt 1, pushed 12s ago, key k, tenant=acme",
        "first",
        "mail/0/1 attempt 1, pushed 12s ago",
        "second",
    ]
    assert mail.stats().acked == 2


def test_payloads_alone_are_printed_byte_for_byte(mail, run):
    assert run("lease", "mail", "-n", "2", "--payload-only", "--release").out == "first\nsecond\n"
    assert mail.stats().ready == 2


@pytest.mark.parametrize(
    ("words", "name", "count"),
    [
        (["--ack"], "acked", 1),
        (["--nack", "--delay", "1h"], "waiting", 1),
        (["--reject"], "dead", 1),
        (["--hold"], "leased", 1),
    ],
)
def test_a_lease_ends_as_requested(words, name, count, mail, run):
    assert run("lease", "mail", *words).code == 0
    assert getattr(mail.stats(), name) == count


def test_an_empty_lease_exits_with_four(mail, run):
    assert run("lease", "mail", "--max", "9", "--ack").code == 0
    result = run("lease", "mail", "--wait", "10ms")
    assert result.code == 4
    assert result.err.startswith("error: nothing is ready in 'mail' for group 'default'")
    assert run("lease", "mail", "--json").json["error"]["code"] == "nothing_there"
    assert run("lease", "none").code == 4


def test_a_lease_has_one_end_only(mail, run):
    assert "exclude each other" in run("lease", "mail", "--ack", "--nack").err
    assert mail.stats().ready == 2


def test_nothing_is_acknowledged_that_was_not_printed(mail, run, monkeypatch):
    def broken(payload: bytes) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(output, "write_bytes", broken)
    monkeypatch.setattr("os.dup2", lambda *doors: None)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    assert run("lease", "mail", "--ack").code == 0
    assert mail.stats().acked == 0


def test_a_held_message_is_settled_by_its_receipt(mail, run):
    held = run("lease", "mail", "--max", "2").out.splitlines()
    receipts = [line.split()[1] for line in held if line.startswith("receipt ")]

    assert len(receipts) == 2
    assert run("extend", receipts[0], "--for", "1h").out == "✓ mail/0/0 extended, ends in 1h00m\n"
    assert run("ack", receipts[0]).out == "✓ mail/0/0 acked\n"
    assert run("nack", receipts[1], "--error", "boom", "--delay", "1h").out == "✓ mail/0/1 retried\n"
    stats = mail.stats()
    assert (stats.acked, stats.waiting) == (1, 1)


@pytest.mark.parametrize(("command", "name"), [("release", "ready"), ("reject", "dead")])
def test_the_other_ends_take_receipts_too(command, name, mail, run):
    receipt = run("lease", "mail", "--max", "1", "--json").json_lines[0]["receipt"]
    assert run(command, receipt, "--json").json["status"] == {"release": "released", "reject": "rejected"}[command]
    assert getattr(mail.stats(), name) >= 1


def test_a_receipt_that_is_refused_does_not_keep_the_others(mail, run):
    good = [line["receipt"] for line in run("lease", "mail", "-n", "2", "--json").json_lines]
    run("ack", good[0])

    result = run("ack", *good)
    assert result.code == 1
    assert result.out == "✓ mail/0/1 acked\n"
    assert "mail:0:0" in result.err
    refused = run("ack", *good, "--json").json_lines
    assert [line["status"] for line in refused] == ["refused", "refused"]
    assert run("ack", good[0]).code == 1
    assert run("ack", "nonsense").code == 1


def test_a_directory_can_be_leased_from_but_nothing_held(run, tmp_path):
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("mail").push("hello")
    where = ("--url", str(tmp_path / "data"))

    assert "without a broker" in run("lease", "mail", *where).err
    assert run("lease", "mail", "--ack", "--payload-only", *where).out == "hello\n"
    assert run("lease", "mail", "--ack", *where).code == 4


def test_tail_prints_from_a_position_and_touches_nothing(mail, run):
    out = run("tail", "mail", "--from", "earliest", "--no-follow").out.splitlines()
    assert [line.split(" ", 1)[1] for line in out] == ["mail/0/0 k first", "mail/0/1 second"]
    assert run("tail", "mail", "--last", "1", "--no-follow", "--payload-only").out == "second\n"
    assert run("tail", "mail", "--from", "1", "--no-follow", "--payload-only").out == "second\n"
    assert run("tail", "mail", "--from", "-1h", "--no-follow", "--json").json_lines[0]["payload"] == "first"
    assert run("tail", "mail", "--from", "+1h", "--no-follow").out == ""
    assert run("tail", "mail", "--no-follow").out == ""
    assert mail.stats().ready == 2
    assert list(mail.groups()) == ["default"]


def test_tail_follows_until_it_has_seen_enough(mail, run, monkeypatch):
    pushed = threading.Event()

    def push_instead_of_sleeping(seconds: float) -> None:
        mail.push_many(["third", "fourth", "fifth"])
        pushed.set()

    monkeypatch.setattr("penstock.cli.browse.time.sleep", push_instead_of_sleeping)
    assert run("tail", "mail", "--limit", "2", "--payload-only").out == "third\nfourth\n"
    assert pushed.is_set()


def test_tail_finds_partitions_that_come_later(ps):
    queue = ps.create_queue("named", partitions="named")
    queue.push("a", partition="one")
    follower = Follower(queue, None)
    follower.begin("latest", 0)
    queue.push("b", partition="two")
    queue.push("c", partition="one")
    assert sorted(message.payload for message in follower.read()) == [b"b", b"c"]
    assert list(follower.read()) == []


def test_tail_refuses_what_is_not_there(mail, run):
    assert run("tail", "none", "--no-follow").code == 4
    assert run("tail", "mail", "--partition", "7", "--no-follow").code == 1
    assert run("tail", "mail", "--from", "sometime").code == 1
    assert run("tail", "mail", "--every", "1ms").code == 1


def test_what_would_disturb_a_terminal_is_made_visible(ps, run):
    ps.queue("mail").push("two\nlines\x1b[31m")
    ps.queue("mail").push(b"\xff\x00")
    out = run("tail", "mail", "--from", "earliest", "--no-follow").out
    assert "two\\nlines\\x1b[31m" in out
    assert "ff 00" in out


def test_json_stays_on_one_line(ps, run):
    run("push", "mail", '{\n "a": 1.50\n}', "--type", "json")
    (line,) = run("lease", "mail", "--json", "--ack").out.splitlines()
    assert '"payload":{"a":1.50}' in line
    assert json.loads(line)["content_type"] == "application/json"


def test_messages_of_several_queues_are_leased_together(ps, run):
    for queue in ("shop.a", "shop.b", "mail"):
        ps.queue(queue).push(queue)

    leased = run("lease", "shop.*", "mail", "-n", "10", "--ack", "--payload-only")

    assert sorted(leased.out.split()) == ["mail", "shop.a", "shop.b"]
    assert run("lease", "shop.*", "--ack").code == 4
