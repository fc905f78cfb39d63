"""`penstock push`: where payloads come from, what they become, and what is said about it."""

from __future__ import annotations

import json
import os
import threading

import pytest

from penstock.cli.push import batches
from penstock.model import ContentType


def test_a_payload_on_the_command_line_is_pushed_and_its_id_printed(run, ps):
    assert run("push", "mail", "hello") == (0, "mail/0/0\n", "")
    assert run("push", "mail", "again", "--json").json == {"id": "mail/0/1", "status": "queued"}
    assert [message.payload for message in ps.queue("mail").read()] == [b"hello", b"again"]


def test_every_option_reaches_the_message(run, ps):
    options = [
        "--key",
        "k",
        "--priority",
        "high",
        "--ttl",
        "1h",
        "-H",
        "tenant=acme",
        "-H",
        "empty=",
        "--trace",
        "00-a",
    ]
    assert run("push", "mail", "x", *options, "--dedup-key", "d", "--max-attempts", "2", "--partition", "0").code == 0

    (message,) = ps.queue("mail").read()
    assert (message.key, message.priority, message.dedup_key, message.max_attempts) == ("k", 192, "d", 2)
    assert message.headers == {"tenant": "acme", "empty": ""}
    assert message.trace == "00-a"
    assert message.expires_at is not None
    assert "duplicate" in run("push", "mail", "x", "--dedup-key", "d").out


@pytest.mark.parametrize("words", [["--delay", "1h30m"], ["--deliver-at", "+90m"]])
def test_a_delayed_message_waits(words, run, ps):
    assert run("push", "mail", "later", *words).code == 0
    assert ps.queue("mail").stats().waiting == 1


def test_a_payload_is_text_if_it_can_be_and_bytes_otherwise(run, ps, tmp_path):
    (tmp_path / "picture").write_bytes(b"\xff\x00\n")
    run("push", "mail", "text")
    run("push", "mail", '{"a": 1}', "--type", "json")
    run("push", "mail", "--file", tmp_path / "picture")
    run("push", "mail", stdin=b"from a pipe\n")

    kinds = [(message.payload, message.content_type) for message in ps.queue("mail").read()]
    assert kinds == [
        (b"text", ContentType.TEXT),
        (b'{"a": 1}', ContentType.JSON),
        (b"\xff\x00\n", ContentType.BYTES),
        (b"from a pipe\n", ContentType.TEXT),
    ]


def test_each_line_is_a_message(run, ps):
    result = run("push", "mail", "--lines", "--batch", "2", "--key", "k", stdin=b"one\ntwo\r\n\nlast")

    assert result == (0, "✓ pushed 4 messages to mail\n", "")
    assert [message.payload for message in ps.queue("mail").read()] == [b"one", b"two", b"", b"last"]
    assert {message.key for message in ps.queue("mail").read()} == {"k"}


def test_each_line_of_json_says_its_own(run, ps):
    lines = [
        {"payload": {"a": 1}, "key": "k", "priority": "low", "headers": {"x": "y"}},
        {"payload": "words", "content_type": "text/plain"},
        {"payload_base64": "/wA=", "delay_ms": 60000},
        {"payload": None, "deliver_at": "2090-01-01T00:00:00Z"},
    ]
    stdin = b"\n".join(json.dumps(line).encode() for line in lines) + b"\n\n"
    assert run("push", "mail", "--json-lines", "--json", stdin=stdin).json == {
        "queue": "mail",
        "pushed": 4,
        "duplicates": 0,
    }
    payloads = [message.payload for message in ps.queue("mail").read()]
    assert payloads == [b'{"a": 1}', b"words", b"\xff\x00", b"null"]
    assert ps.queue("mail").stats().waiting == 2


def test_what_was_printed_can_be_pushed_again(run, ps):
    run("push", "one", "--json-lines", stdin=b'{"payload": [1], "key": "k", "headers": {"a": "b"}}')
    run("push", "one", "text")
    printed = run("lease", "one", "--max", "5", "--json", "--ack").out.encode()
    assert run("push", "two", "--json-lines", stdin=printed).code == 0

    before, after = ps.queue("one").read(), ps.queue("two").read()
    same = ("payload", "content_type", "key", "headers", "priority")
    assert [[getattr(each, name) for name in same] for each in after] == [
        [getattr(each, name) for name in same] for each in before
    ]


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (b"{", "line 3: "),
        (b"[]", "line 3: "),
        (b'{"key": "k"}', "no payload is given"),
        (b'{"payload": 1, "payload_base64": ""}', "payload and payload_base64 exclude each other"),
        (b'{"payload": 1, "prioritty": 3}', "'prioritty' is not a field"),
        (b'{"payload_base64": "?"}', "line 3: "),
        (b'{"payload": 1, "delay_ms": "soon"}', "delay_ms"),
        (b'{"payload": 1, "content_type": "nonsense"}', "content_type"),
        (b'{"payload": 1, "priority": 999}', "priority"),
    ],
)
def test_a_bad_line_is_named_and_so_is_what_was_pushed_before(line, reported, run, ps):
    result = run("push", "mail", "--json-lines", "--batch", "2", stdin=b'{"payload": 1}\n{"payload": 2}\n' + line)

    assert result.code == 1
    assert reported in result.err
    assert "2 messages before it were pushed" in result.err
    assert len(ps.queue("mail").read()) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["x", "--lines"],
        ["--lines", "--json-lines"],
        ["x", "--header", "nothing"],
        ["not json", "--type", "json"],
        ["x", "--delay", "soon"],
        ["x", "--deliver-at", "soon"],
        ["x", "--priority", "urgent"],
        ["x", "--priority", "300"],
    ],
)
def test_a_push_that_makes_no_sense_is_one_line_and_pushes_nothing(words, run, ps):
    result = run("push", "mail", *words)

    assert result.code == 1
    assert result.err.startswith("error: ")
    assert ps.queues() == []


def test_a_file_that_is_not_there_is_nothing(run, ps, tmp_path):
    assert run("push", "mail", "--file", tmp_path / "none").code == 4


def test_ids_are_printed_when_asked_for(run, ps):
    assert run("push", "mail", "--lines", "--ids", stdin=b"a\nb\n").out == "mail/0/0\nmail/0/1\n"
    lines = run("push", "mail", "--lines", "--ids", "--json", stdin=b"c\n").json_lines
    assert lines == [{"id": "mail/0/2", "status": "queued"}]


def test_a_pipe_that_pauses_is_not_waited_for():
    reader, writer = os.pipe()
    found: list[list[bytes]] = []
    come = threading.Event()

    def read() -> None:
        with os.fdopen(reader, "rb") as source:
            for lines, _ in batches(source, 1000):
                found.append(lines)
                come.set()

    reading = threading.Thread(target=read)
    reading.start()
    os.write(writer, b"one\ntwo\nthr")
    assert come.wait(60)
    assert found == [[b"one", b"two"]]
    os.write(writer, b"ee\n")
    os.close(writer)
    reading.join(60)
    assert [line for lines in found for line in lines] == [b"one", b"two", b"three"]


def test_lines_that_cannot_be_pushed_are_skipped_and_named(ps, run, tmp_path):
    ps.create_queue("mail", ordering="partition")
    file = tmp_path / "lines"
    file.write_text('{"payload": 1}\nno json\n\n{"payload": 2, "priority": 200}\n{"payload": 3}\n')

    skipped = run("push", "mail", "--json-lines", "--file", str(file), "--on-error", "skip")

    assert skipped.code == 1
    assert "pushed 2 messages" in skipped.out
    assert "line 2: " in skipped.err
    assert "line 4: invalid_field: priority" in skipped.err
    assert ps.queue("mail").lease(10).payloads() == [b"1", b"3"]
    assert run("push", "mail", "--json-lines", "--file", str(file)).code == 1
