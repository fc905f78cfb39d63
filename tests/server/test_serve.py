"""`penstock serve` as a process: it starts whole or not at all, and what it began it finishes."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

import penstock
from penstock.wire.frames import Type
from penstock.wire.requests import encode_push_one
from tests.support.broker_process import PATIENCE_SECONDS, QUIET, Caller, Served


def run(folder: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A `penstock serve` that is expected to refuse."""
    words = [sys.executable, "-m", "penstock", "serve", *flags]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        words,
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_it_says_where_it_listens_serves_and_stops_cleanly(tmp_path):
    with Served(tmp_path, *QUIET) as served:
        with Caller(served.port()) as caller:
            assert [caller.push("mail", b"a"), caller.push("mail", b"b")] == [0, 1]
            reply = caller.lease("mail", 10)
            assert [payload for piece in reply.pieces for payload in piece.payloads()] == [b"a", b"b"]
            caller.settle(reply.nonce)

        assert served.stop() == 0

        assert served.ready["durability"] == "fsync"
        assert served.ready["data"] == "./data"
        assert [line["event"] for line in served.logs()] == ["opening", "ready", "stopping", "stopped"]
    with penstock.open(tmp_path / "data") as ps:
        stats = ps.queue("mail").stats()
        assert (stats.groups["default"].acked, stats.groups["default"].ready) == (2, 0)


def test_a_waiting_lease_is_answered_a_push_under_way_is_confirmed_and_clients_are_notified(tmp_path):
    with Served(tmp_path, *QUIET) as served, Caller(served.port()) as waiting, Caller(served.port()) as pushing:
        pushing.push("mail", b"first")
        waiting.settle(waiting.lease("mail").nonce)
        asked = waiting.ask_lease("mail", wait_seconds=60)
        pushes = [pushing.send(Type.PUSH_ONE, encode_push_one(b"other", 0, b"x")) for _ in range(100)]

        assert pushing.answer(pushes[0])[0] == Type.PLACED  # the broker has read them all
        served.process.send_signal(signal.SIGTERM)

        kinds = {kind for kind, _, _ in iter_frames(pushing, 99 + 1)}
        answered = [waiting.receive() for _ in range(2)]
        assert kinds == {Type.PLACED, Type.GOODBYE}
        assert {(kind, correlation) for kind, correlation, _ in answered} == {
            (Type.GOODBYE, 0), (Type.LEASED, asked)
        }  # fmt: skip
        assert waiting.is_closed()
        assert pushing.is_closed()
        assert served.ended() == 0


def iter_frames(caller: Caller, count: int):
    return (caller.receive() for _ in range(count))


def test_whoever_holds_messages_may_settle_them_while_it_drains(tmp_path):
    with Served(tmp_path, *QUIET, "--drain-seconds", "60") as served, Caller(served.port()) as caller:
        caller.push("mail", b"a")
        lease = caller.lease("mail")
        served.process.send_signal(signal.SIGTERM)
        while caller.receive()[0] != Type.GOODBYE:
            pass

        kind, body = caller.answer(caller.send(Type.PUSH_ONE, encode_push_one(b"mail", 0, b"late")))
        assert kind == Type.ERROR
        assert b"unavailable" in body
        caller.settle(lease.nonce)

        assert served.ended() == 0
    with penstock.open(tmp_path / "data") as ps:
        assert ps.queue("mail").stats().groups["default"].acked == 1


def test_a_holder_that_never_settles_is_not_waited_for_longer_than_was_said(tmp_path):
    with Served(tmp_path, *QUIET, "--drain-seconds", "0.1") as served, Caller(served.port()) as caller:
        caller.push("mail", b"a")
        caller.lease("mail")

        assert served.stop() == 0
        assert "messages to be delivered again: 1" in served.log_path.read_text()
    with penstock.open(tmp_path / "data") as ps:
        assert [delivery.attempt for delivery in ps.queue("mail").lease(1)] == [2]


def test_a_second_signal_leaves_at_once_and_nothing_confirmed_is_lost(tmp_path):
    with Served(tmp_path, *QUIET, "--drain-seconds", "3600") as served, Caller(served.port()) as caller:
        caller.push("mail", b"a")
        caller.lease("mail")
        served.process.send_signal(signal.SIGTERM)
        while caller.receive()[0] != Type.GOODBYE:
            pass

        assert served.stop(signal.SIGINT) == 128 + signal.SIGINT
    with penstock.open(tmp_path / "data") as ps:
        assert [delivery.payload for delivery in ps.queue("mail").lease(1)] == [b"a"]


def test_kill_9_loses_nothing_that_was_confirmed(tmp_path):
    with Served(tmp_path, *QUIET) as served:
        with Caller(served.port()) as caller:
            confirmed = [caller.push("mail", b"%d" % number) for number in range(50)]
        assert served.stop(signal.SIGKILL) == -signal.SIGKILL
    with Served(tmp_path, *QUIET) as served, Caller(served.port()) as caller:
        payloads = [payload for piece in caller.lease("mail", 100).pieces for payload in piece.payloads()]
        assert payloads == [b"%d" % number for number in range(50)]
        assert len(confirmed) == 50


def test_a_port_in_use_is_one_line_and_leaves_nothing_behind(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run(tmp_path, "--tcp-port", str(port), *QUIET)

    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.splitlines() == [
        f"error: tcp_port: 127.0.0.1:{port} is in use by another program",
        "hint:  stop the program that listens there, or choose another port or address",
    ]
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_not_ours_is_refused(tmp_path):
    refused = run(tmp_path, "--host", "192.0.2.1", "--tcp-port", "0", *QUIET)

    assert refused.returncode == 1
    assert "'192.0.2.1' is not an address of this machine" in refused.stderr


def test_a_directory_in_use_is_one_line(tmp_path):
    with penstock.open(tmp_path / "data"):
        refused = run(tmp_path, "--tcp-port", "0", *QUIET)

    assert refused.returncode == 2
    assert f"held by process {os.getpid()}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_damaged_data_is_refused_and_says_what_to_do(tmp_path):
    with penstock.open(tmp_path / "data") as ps:
        for letter in (b"letter a", b"letter b", b"letter c"):
            ps.queue("mail").push(letter)
    (journal,) = (tmp_path / "data" / "journal").glob("*.log")
    journal.write_bytes(journal.read_bytes().replace(b"letter b", b"letter x"))

    refused = run(tmp_path, "--tcp-port", "0", *QUIET)

    assert refused.returncode == 2
    assert "is damaged" in refused.stderr
    assert "penstock doctor" in refused.stderr


def test_every_wrong_setting_is_reported_at_once(tmp_path):
    (tmp_path / "penstock.toml").write_text('tcp_prot = 1\nlog_level = "loud"\n')

    refused = run(tmp_path, "--durability", "fast", PENSTOCK_HTTPPORT="1")

    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [
        "error: penstock.toml:1: 'tcp_prot' is not a setting; did you mean 'tcp_port'?",
        "error: PENSTOCK_HTTPPORT is not a setting; did you mean 'PENSTOCK_HTTP_PORT'?",
        "error: penstock.toml:2: log_level must be 'trace', 'debug', 'info', 'warning' or 'error', not 'loud'",
        "error: --durability: durability must be 'fsync', 'interval' or 'os', not 'fast'",
        "hint:  docs/configuration.md lists every setting",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["penstock.toml"]


def test_a_configuration_file_that_is_not_there_is_an_error(tmp_path):
    refused = run(tmp_path, "--config", "nowhere.toml")

    assert refused.returncode == 1
    assert "nowhere.toml: cannot be read" in refused.stderr


def test_it_may_have_as_many_connections_as_the_user_is_allowed(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        with Served(tmp_path, *QUIET) as served:
            assert resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
            assert served.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_all_protocols_are_served_together_and_stop_together(tmp_path):
    with Served(tmp_path, "--http-port", "0", "--grpc-port", "0") as served:
        assert list(served.ready["addresses"]) == ["tcp", "http", "grpc"]
        with grpc.insecure_channel(f"127.0.0.1:{served.port('grpc')}") as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_SECONDS)
        assert served.stop() == 0


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    (tmp_path / "other.toml").write_text('data = "./file"\ndurability = "os"\ngrpc_port = "off"\nhttp_port = "off"\n')
    flags = ("--config", "other.toml", "--data", "./flag")

    with Served(tmp_path, *flags, PENSTOCK_DATA="./environment", PENSTOCK_DURABILITY="interval") as served:
        assert (served.ready["data"], served.ready["durability"]) == ("./flag", "interval")
        assert list(served.ready["addresses"]) == ["tcp"]
        assert served.stop() == 0


def test_a_hangup_reads_the_level_of_the_log_again(tmp_path):
    settings = tmp_path / "penstock.toml"
    settings.write_text('log_level = "info"\n')
    with Served(tmp_path, *QUIET) as served:
        settings.write_text('log_level = "nonsense"\n')
        served.process.send_signal(signal.SIGHUP)
        with Caller(served.port()) as caller:
            caller.push("mail", b"still there")
        assert served.stop() == 0
        assert "settings were not reloaded" in [line["event"] for line in served.logs()]


def test_what_people_see_reads_well(tmp_path):
    words = [sys.executable, "-m", "penstock", "serve", "--tcp-port", "0", *QUIET]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(6)]
    process.send_signal(signal.SIGINT)

    assert process.wait(PATIENCE_SECONDS) == 0
    process.stdout.close()
    assert lines[0] == f"Penstock {penstock.__version__} is ready.\n"
    assert lines[2].startswith("  data  ./data   0 queues; fsync: ")
    assert lines[3].startswith("  tcp   penstock://127.0.0.1:")
    assert "penstock.connect(" in lines[3]


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_setting(tmp_path, flag):
    from penstock.config import NAMES

    text = run(tmp_path, flag, COLUMNS="200").stdout
    assert [name for name in NAMES if f"--{name.replace('_', '-')}" not in text] == []
