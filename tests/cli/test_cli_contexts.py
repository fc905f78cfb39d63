"""Where a command goes: urls, contexts, directories; what it starts with, and what is offered after TAB."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from typing import Any

import pytest

import penstock
from penstock import Penstock
from penstock.cli import options, target
from penstock.cli.app import app
from penstock.cli.exits import CommandError
from penstock.cli.target import Broker
from penstock.errors import NotAuthorised, Unavailable


def test_a_context_is_added_used_listed_and_removed(run, tmp_path):
    assert run("context", "add", "local", "localhost:7710").out == "✓ context local: penstock://localhost:7710\n"
    assert run("context", "add", "data", tmp_path / "data").code == 0
    assert Broker().address == "penstock://localhost:7710"
    assert run("context", "use", "data", "--json").json == {"name": "data", "url": str(tmp_path / "data")}
    assert Broker().address == str(tmp_path / "data")
    assert run("context", "list").out.splitlines()[1].startswith("*  data")
    assert [each["is_current"] for each in run("context", "list", "--json").json] == [True, False]
    assert run("context", "remove", "data").code == 0
    assert Broker().address == target.URL_DEFAULT
    assert stat.S_IMODE(target.file().stat().st_mode) == 0o600


def test_a_context_that_is_not_there_is_nothing(run):
    assert run("context", "use", "none").code == 4
    assert run("context", "remove", "none").code == 4
    assert run("queues", "--context", "none").code == 4
    assert "no contexts" in run("context", "list").err
    assert run("context", "add", "bad/name", "localhost:1").code == 1


def test_a_broken_file_of_contexts_is_named(run):
    target.file().write_text("{")
    result = run("context", "list")
    assert result.code == 1
    assert str(target.file()) in result.err


def test_the_url_comes_first_then_the_context_then_this_machine(run, monkeypatch):
    run("context", "add", "one", "penstock://one:1")
    run("context", "add", "two", "penstock://two:2")
    assert Broker("penstock://three:3", "two").address == "penstock://three:3"
    assert Broker(None, "two").address == "penstock://two:2"
    assert Broker().address == "penstock://one:1"
    assert Broker("four:4").address == "penstock://four:4"
    assert Broker("./four:4").address == "./four:4"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    monkeypatch.delenv("PENSTOCK_CONTEXTS")
    assert str(target.file()) == "/x/penstock/contexts.json"


def test_the_environment_names_the_broker(ps, run, monkeypatch):
    asked = []
    connect = penstock.connect

    def noted(url: str, **options: object) -> Penstock:
        asked.append(url)
        return connect(url)

    monkeypatch.setattr(penstock, "connect", noted)
    monkeypatch.setenv("PENSTOCK_URL", "elsewhere:1")
    run("queues")
    monkeypatch.delenv("PENSTOCK_URL")
    run("queues")
    assert asked == ["penstock://elsewhere:1", "penstock://localhost:7710"]


def test_a_push_makes_a_directory_and_looking_does_not(run, tmp_path):
    where = str(tmp_path / "new")
    assert run("queues", "--url", where).code == 4
    assert run("bench", "--url", where).code == 4
    assert not (tmp_path / "new").exists()
    assert run("push", "mail", "hello", "--url", where).code == 0
    assert run("queues", "--url", where, "--json").json[0]["name"] == "mail"


def test_a_directory_that_a_broker_holds_says_so(run, tmp_path):
    with penstock.open(tmp_path / "data"):
        result = run("queues", "--url", str(tmp_path / "data"))
    assert result.code == 2
    assert f"process {os.getpid()}" in result.err
    assert "connect to it instead" in result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("no broker answers"), 2),
        (NotAuthorised("you may not"), 3),
        (CommandError("no", hint="yes"), 1),
        (RuntimeError("never"), 2),
    ],
)
def test_the_exit_code_tells_who_can_do_something_about_it(error, code, run, monkeypatch):
    def fails(url: str, **options: object) -> None:
        raise error

    monkeypatch.setattr(penstock, "connect", fails)
    result = run("queues")
    assert result.code == code
    assert result.err.startswith("error: ")
    assert set(run("queues", "--json").json["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("groups", "mail"), "penstock groups list mail"),
        (("dlq", "mail"), "penstock dlq list mail"),
        (("queues", "mail"), "penstock queues show mail"),
        (("seek", "mail", "default", "-1h"), "after '--', as in"),
        (("queues", "lst"), "did you mean 'list'?"),
        (("queues", "frobnicate"), "penstock queues --help"),
    ],
)
def test_a_command_line_that_is_nearly_right_is_reported_what_would_be(words, hint, run):
    result = run(*words)
    assert result.code == 1
    assert hint in result.err


def test_ctrl_c_leaves_quietly(run, monkeypatch):
    def interrupted(url: str, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(penstock, "connect", interrupted)
    assert run("queues") == (130, "", "")


def test_help_and_version_load_neither_numpy_nor_arrow():
    script = (
        "import sys; from penstock.cli import main; main(sys.argv[1:]); "
        "print(*sorted({'numpy', 'pyarrow', 'uvloop', 'starlette', 'grpc'} & set(sys.modules)))"
    )
    for words in (["version"], ["--help"], ["queues", "create", "--help"], ["context", "list"]):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == ""


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("mail").push_many(["x" * 1000] * 2000)
    words = [sys.executable, "-m", "penstock", "tail", "mail", "--from", "earliest", "--url", str(tmp_path / "data")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline()
        command.stdout.close()
        assert command.stderr.read() == b""
        assert command.wait(30) == 0


def completed(words: str, place: int, **environment: str) -> list[str]:
    asked = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(place), "_PENSTOCK_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "penstock"]
    done = subprocess.run(command, env={**asked, **environment}, capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_a_shell_is_offered_commands_and_nothing_when_no_broker_answers():
    assert completed("penstock que", 1) == ["queues"]
    assert "--partitions" in completed("penstock queues create x --part", 4)
    assert completed("penstock lease m", 2, PENSTOCK_URL="penstock://localhost:1") == []


def test_queues_groups_and_contexts_are_offered(ps, run):
    ps.queue("mail").push(b"")
    ps.queue("more").push(b"")
    ps.queue("mail").create_group("billing")

    class Typed:
        params = {"queue": "mail"}  # noqa: RUF012 - as the parser has it

    assert options.complete_queue(Typed(), "ma") == ["mail"]  # type: ignore[arg-type]
    assert options.complete_group(Typed(), "b") == ["billing"]  # type: ignore[arg-type]
    run("context", "add", "local", "localhost:1")
    assert options.complete_context("l") == ["local"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell, run):
    assert "_PENSTOCK_COMPLETE" in run("completion", shell).out


def test_every_command_explains_itself(run):
    for path in paths():
        shown = run(*path, "--help")
        assert shown.code == 0, path
        assert "Usage: penstock" in shown.out


def paths() -> list[list[str]]:
    from typer.main import get_command

    found: list[list[str]] = []
    waiting: list[tuple[list[str], Any]] = [([], get_command(app))]
    while waiting:
        path, command = waiting.pop()
        found.append(path)
        waiting += [([*path, name], each) for name, each in getattr(command, "commands", {}).items()]
    return found


def test_json_is_offered_by_every_command_that_answers():
    from typer.main import get_command

    silent = {"demo", "completion", "worker"}  # the last logs JSON with --log-format
    everything = get_command(app)
    for path in paths():
        command: Any = everything
        for word in path:
            command = command.commands[word]
        if not getattr(command, "commands", {}) and not silent & set(path):
            assert any("--json" in parameter.opts for parameter in command.params), path
