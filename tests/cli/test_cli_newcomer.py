"""The command line in the hands of somebody who has never used it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import penstock
from penstock.cli import main
from penstock.cli.app import broker_last
from penstock.dashboard.files import Files
from penstock.errors import Unavailable
from penstock.remote.settings import RetryLog
from tests.cli.test_cli_docs import commands
from tests.support.http import HttpThread
from tests.support.logs import capture_logs
from tests.support.readable import check_readable


def test_the_version_is_an_option_too(run):
    assert run("--version") == (0, f"penstock {penstock.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "order"),
    [
        ("-u x queues list", "queues list -u x"),
        ("queues -u x list", "queues list -u x"),
        ("queues list -u x", "queues list -u x"),
        ("--url=x push q -- -u", "push --url=x q -- -u"),
        ("-c dev -u x peek q", "peek -c dev -u x q"),
        ("push q -u", "push q -u"),
        ("-u", "-u"),
        ("push queues -u x", "push queues -u x"),
    ],
)
def test_the_broker_may_be_named_before_the_command(words, order):
    assert broker_last(words.split()) == order.split()


def test_a_broker_named_before_the_command_is_used(run, tmp_path):
    where = str(tmp_path / "data")

    assert run("-u", where, "push", "mail", "hello").code == 0
    assert run("--url", where, "queues", "--json").json[0]["name"] == "mail"
    assert run("queues", "-u", where, "show", "mail", "--json").json["name"] == "mail"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("peek", "malls"), "did you mean 'mails'?"),
        (("lease", "mals"), "did you mean 'mails'?"),
        (("lease", "mails", "--group", "defualt"), "did you mean 'default'?"),
        (("queues", "shwo", "mails"), "did you mean 'show'?"),
        (("lease", "mails", "--parition", "1"), "did you mean '--partition'?"),
        (("queues", "--context", "prd"), "did you mean 'prod'?"),
        (("push", "mails", "x", "--priority", "hihg"), "did you mean 'high'?"),
        (("queues", "create", "q", "--ordering", "keyy"), "did you mean 'key'?"),
        (("queues", "create", "q", "--orderin", "key"), "did you mean '--ordering'?"),
        (("tasks", "list", "--status", "ded"), "did you mean 'dead'?"),
    ],
)
def test_what_is_nearly_right_is_suggested(words, hint, ps, run):
    ps.queue("mails").push("x")
    run("context", "add", "prod", "penstock://queue.example.org")

    refused = run(*words)

    assert refused.code in (1, 4)
    assert hint in refused.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lease mails --max 0", "--max: it must be"),
        ("lease mails --max many", "--max: it must be"),
        ("lease mails --order fare", "--order: 'fare' is not one of 'fair', 'listed'"),
        ("push mails x --delay 5x", "--delay: '5x' is not a duration"),
        ("push mails x --deliver-at soon", "--deliver-at: 'soon' is not a time"),
        ("push mails x --ttl -1", "--ttl: '-1' is not a duration"),
        ("queues create q --lease-seconds 9999999999", "lease_seconds: 9,999,999,999 is outside 0.001 to 43,200"),
        ("queues create q --retention-bytes big", "--retention-bytes: 'big' is not a size"),
        ("queues create q --ordering fifo", "ordering: 'fifo' is not one of key, none, partition"),
        ("lease", "QUEUE is missing"),
        ("push mails x --text --type json", "--text and --type json exclude each other"),
    ],
)
def test_a_wrong_value_names_its_flag_and_what_it_takes(words, message, ps, run):
    ps.queue("mails").push("x")
    refused = run(*words.split())

    assert refused.code == 1
    assert message in refused.err
    for line in refused.err.splitlines():
        check_readable(line)


def test_every_list_that_is_empty_is_no_error(ps, run):
    ps.create_queue("mail")
    lists = (
        ("queues", "leases", "mail"), ("groups", "members", "mail", "default"), ("dlq", "list", "mail"),
        ("tasks", "list"), ("schedules", "list"), ("operations", "list"), ("workers",), ("peek", "mail"),
        ("delayed", "mail"), ("pauses",), ("context", "list"), ("key", "list"), ("user", "list"), ("namespace", "list"),
        ("audit", "list"), ("encryption", "status"),
    )  # fmt: skip
    for words in lists:
        done = run(*words)
        assert (words, done.code, done.out) == (words, 0, "")
        assert done.err.strip()
        assert run(*words, "--json").out.strip() in ("", "[]")


@pytest.mark.parametrize("words", [(), ("mail",)])
def test_no_signatures_are_no_error(words, ps, run):
    ps.create_queue("mail")
    done = run("dlq", "signatures", *words)
    assert (done.code, done.out) == (0, "")
    assert "no dead letters" in done.err
    assert run("dlq", "signatures", *words, "--json").code == 0


def test_nobody_there_is_said_at_once_and_what_starts_a_broker():
    words = [sys.executable, "-m", "penstock", "queues", "-u", "penstock://127.0.0.1:1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stderr is not None
        note = command.stderr.readline()
        was_running = command.poll() is None
        rest = command.stderr.read()

    assert was_running  # it goes on trying
    assert "no broker answers at penstock://127.0.0.1:1: connection refused" in note
    assert "penstock serve --tcp-port 1" in note
    assert "retrying for" in note
    assert rest.startswith(
        "error: no broker answers at penstock://127.0.0.1:1: connection refused\nhint:  start a broker"
    )
    assert command.returncode == 2


def test_health_says_whether_the_broker_works(ps, run):
    ps.queue("mail").push("x")

    assert run("health").out.startswith(f"ok: Penstock {penstock.__version__}, 1 queue, durability ")
    assert run("health", "--json").json["status"] == "ok"


@pytest.mark.parametrize("words", sorted(commands()))
def test_help_fits_80_columns(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")

    assert main([*words.split()[1:], "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize("group", ["groups", "dlq", "tasks", "key", "backup"])
def test_a_group_of_commands_without_one_says_what_is_missing(group, run):
    refused = run(group)

    assert refused.code == 1
    assert refused.err == f"error: no command is given\nhint:  'penstock {group} --help' lists the commands\n"


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("push", "usage: penstock push [OPTIONS] {QUEUE} [PAYLOAD];"),
        ("lease", "usage: penstock lease [OPTIONS] {QUEUE…};"),
        ("enqueue", "usage: penstock enqueue [OPTIONS] {TASK} [ARGUMENT…];"),
    ],
)
def test_the_usage_marks_nothing_twice(command, usage, run):
    assert usage in run(command).err


def test_sql_without_a_query_is_an_error(run, tmp_path):
    penstock.open(tmp_path / "data").close()
    refused = run("sql", "--url", str(tmp_path / "data"), stdin=b"")

    assert (refused.code, refused.out) == (1, "")
    assert "no query is given" in refused.err


def test_that_nobody_answers_is_reported_once_until_something_changes():
    log, refused = RetryLog(), Unavailable("no broker answers: connection refused")
    with capture_logs("penstock.client") as logs:
        log.failed(refused, 5)
        log.failed(refused, 5)  # another connection, or another try of a worker
        assert len(logs) == 1
        log.failed(Unavailable("no broker answers: timed out"), 5)
        assert len(logs) == 2
        log.connected()
        log.failed(Unavailable("no broker answers: timed out"), 5)
        assert len(logs) == 3


# payloads


@pytest.mark.parametrize(
    ("typed", "content_type", "payload"),
    [
        (('{"a": 1}',), "application/json", {"a": 1}),
        (("42",), "application/json", 42),
        (("hello",), "text/plain", "hello"),
        (('{"a": 1}', "--text"), "text/plain", '{"a": 1}'),
        (('{"a": 1}', "--type", "text"), "text/plain", '{"a": 1}'),
        (('{"a": 1',), "text/plain", '{"a": 1'),
        (("",), "text/plain", ""),
        (('{"a": 1}', "--type", "bytes"), "application/octet-stream", None),
    ],
)
def test_a_payload_that_is_json_is_stored_as_json(typed, content_type, payload, ps, run):
    assert run("push", "mail", *typed).code == 0
    shown = run("peek", "mail", "--json").json_lines[0]

    assert (shown["content_type"], shown.get("payload")) == (content_type, payload)


def test_json_from_a_pipe_has_no_end_of_line_in_it(ps, run):
    run("push", "mail", stdin=b'{"a": 1}\n')
    run("push", "mail", "--lines", stdin=b'{"a": 1}\nhello\n')

    first, second, third = (message.payload for message in ps.queue("mail").peek(3))
    assert (first, second, third) == (b'{"a": 1}', b'{"a": 1}', b"hello")


def test_input_that_is_empty_is_an_error(ps, run, tmp_path):
    (tmp_path / "empty").write_bytes(b"")

    assert "standard input is empty" in run("push", "mail", stdin=b"").err
    assert run("push", "mail", "--file", tmp_path / "empty").code == 1
    assert run("push", "mail", "--text", stdin=b"").code == 0
    assert ps.queue("mail").stats().ready == 1


# shells


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("penstock que", "queues"), ("penstock queues sh", "show"), ("penstock push --pri", "--priority")],
)
def test_a_shell_completes_commands_and_flags(shell, typed, offered):
    words = typed.split()
    variables = {
        "_PENSTOCK_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": typed,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from penstock.cli import main; import sys; sys.argv[0] = 'penstock'; sys.exit(main())"],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert offered in done.stdout, done.stderr


def test_every_example_is_run_by_a_test():
    root = Path(__file__).parents[2]
    sources = [path.read_text() for path in (root / "tests").rglob("test_*.py")]
    names = [path.name for path in (root / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"]

    assert names
    for name in names:
        assert any(re.search(rf'examples[./"\', ]+{name}', source) for source in sources), name


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("http:/localhost:7711", "http://localhost:7711"),
        ("penstock:localhost", "penstock://localhost"),
        ("postgresql:/db/queues", "postgresql://db/queues"),
    ],
)
@pytest.mark.parametrize("words", [("queues",), ("push", "mail", "hello")])
def test_a_url_with_a_slash_missing_is_not_taken_for_a_directory(run, url, meant, words):
    refused = run(*words, "--url", url)

    assert refused.code == 1
    assert f"url: {url!r} is not a URL" in refused.err
    assert f"did you mean '{meant}'?" in refused.err
    assert not Path(url.partition("/")[0]).exists()


def test_creating_a_queue_says_whether_it_was_created(ps, run):
    assert run("queues", "create", "fresh").out.strip() == "✓ queue fresh is created"
    assert run("queues", "create", "fresh", "--exist-ok").out.strip() == "✓ queue fresh exists already; nothing changed"
    assert run("queues", "create", "fresh").code == 1


@pytest.mark.parametrize("is_built", [True, False])
def test_a_link_to_a_dashboard_that_is_not_built_says_so(is_built, run, tmp_path, monkeypatch):
    if is_built:
        (tmp_path / "index.html").write_text("<html></html>")
    monkeypatch.setattr("penstock.server.http.app.Files", partial(Files, tmp_path))
    server = HttpThread()
    try:
        shown = run("dashboard", "--no-open", "--url", f"http://127.0.0.1:{server.port}")
    finally:
        server.stop()

    assert shown.code == 0
    assert shown.out.endswith("/ui/\n")
    assert ("has no dashboard" in shown.err) != is_built
    assert ("install Node 20" in shown.err) != is_built
