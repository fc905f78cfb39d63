"""`penstock key`, `user`, `role`, `namespace` and `whoami`, and the tokens of contexts."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import typer

import penstock
from penstock import Penstock
from penstock.access.keys import key_id
from penstock.access.passwords import verify_password
from penstock.cli import output, target
from penstock.cli.target import Broker
from tests.cli.conftest import Run

PASSWORD = "correct horse battery"


@pytest.fixture
def data(tmp_path: Path) -> str:
    """The directory of a broker that is stopped."""
    penstock.open(tmp_path / "data").close()
    return str(tmp_path / "data")


@pytest.fixture
def at(run: Run, data: str) -> Run:
    """Type a command about that directory."""
    return lambda *words, **options: run(*words, "--url", data, **options)


def stored(data: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(data) / "access" / "access.json").read_bytes())
    return found


def test_a_key_is_alone_on_standard_output_and_its_use_on_standard_error(at):
    made = at("key", "create", "shop", "--grant", "producer:orders", "--expires", "30d")

    assert made.code == 0
    assert key_id(made.out.strip()) is not None
    assert made.out.count("\n") == 1
    assert "shown only once" in made.err
    assert "PENSTOCK_TOKEN_FILE" in made.err
    assert made.out.strip() not in made.err
    listed = at("key", "list")
    assert "producer:orders" in listed.out
    assert "in 29d" in listed.out or "in 30d" in listed.out
    assert made.out.strip() not in listed.out + at("key", "list", "--json").out


def test_a_key_as_json(at):
    made = at("key", "create", "shop", "--grant", "push:a", "--grant", "viewer", "--json").json

    assert made["grants"] == ["push:a", "viewer"]
    assert key_id(made["key"]) == made["id"]


def test_a_key_is_rotated_and_revoked(at):
    old = at("key", "create", "shop", "--grant", "producer", "--json").json["id"]
    new = at("key", "rotate", old, "--keep", "1h")
    assert key_id(new.out.strip()) != old
    assert "stays valid for 1h00m" in new.err
    assert at("key", "rotate", old, "--keep", "0", "--json").code == 0
    assert "expired" in at("key", "list").out

    assert at("key", "revoke", old).out == f"✓ key {old} is revoked\n"
    assert old not in at("key", "list").out
    assert at("key", "revoke", old).code == 4


def test_a_certificate_stands_for_a_principal_too(at, data):
    at("key", "create", "shop", "--grant", "producer", "--certificate", "shop.example.org")

    assert stored(data)["principals"]["shop"]["certificates"] == ["shop.example.org"]
    taken = at("key", "create", "other", "--grant", "producer", "--certificate", "shop.example.org")
    assert taken.code == 1
    assert "already identifies 'shop'" in taken.err
    assert "1 key, shop.example.org" in at("user", "list").out


def test_a_password_comes_from_standard_input_and_is_stored_as_a_hash(at, data):
    made = at("user", "create", "ann", "--grant", "viewer", "--password-stdin", stdin=f"{PASSWORD}\n".encode())
    assert made.code == 0

    record = stored(data)["principals"]["ann"]
    assert verify_password(PASSWORD, record["password"]).is_right
    assert PASSWORD not in json.dumps(stored(data)) + made.out + made.err
    assert "password" in at("user", "list").out
    assert at("user", "update", "ann", "--no-password", "--json").json["has_password"] is False


def test_a_password_is_asked_for_at_a_terminal(at, data, monkeypatch):
    asked: list[dict[str, Any]] = []

    def prompt(text: str, **options: Any) -> str:
        asked.append(options)
        return PASSWORD

    monkeypatch.setattr(output, "has_terminal", lambda: True)
    monkeypatch.setattr(typer, "prompt", prompt)
    assert at("user", "create", "ann", "--grant", "viewer").code == 0

    assert asked == [{"hide_input": True, "confirmation_prompt": True, "err": True}]
    assert verify_password(PASSWORD, stored(data)["principals"]["ann"]["password"]).is_right


def test_a_user_is_updated_and_deleted(at):
    at("user", "create", "ann", "--grant", "viewer", "--no-password")
    assert at("user", "create", "ann", "--grant", "viewer", "--no-password").code == 1

    assert at("user", "update", "ann", "--grant", "reader:shop.*").out == "✓ user ann: reader:shop.*\n"
    assert at("user", "delete", "ann").code == 1  # nobody is there to be asked
    assert at("user", "delete", "ann", "--yes").code == 0
    assert at("user", "list")[:2] == (0, "")


def test_roles_are_set_listed_and_deleted(at):
    assert at("role", "set", "packer", "--grant", "consume:orders").out == "✓ role packer: consume:orders\n"
    listed = at("role", "list").out
    assert "producer" in listed
    assert "packer" in listed
    at("user", "create", "bob", "--grant", "packer", "--no-password")
    assert "is granted to 'bob'" in at("role", "delete", "packer").err
    at("user", "delete", "bob", "--yes")
    assert at("role", "delete", "packer").code == 0


def test_namespaces_have_quotas(at):
    made = at("namespace", "create", "team-a", "--queues", "10", "--bytes", "10GiB", "--messages-rate", "0.5")
    assert made.out == "✓ namespace team-a: queues team-a.*; queues 10, bytes 10.0 GiB, messages_rate 0.5/s\n"
    assert at("namespace", "list", "--json").json[0]["quotas"]["bytes"] == 10 << 30
    assert "team-a.*" in at("namespace", "list").out
    at("push", "team-a.orders", "hello")
    listed = at("namespace", "list", "--json").json[0]
    assert listed["usage"]["queues"] == 1
    assert listed["usage"]["bytes"] > 0
    assert "queues 1 of 10" in at("namespace", "list").out
    assert at("namespace", "delete", "team-a").code == 0
    assert at("namespace", "delete", "team-a").code == 4


def test_whoami_says_what_one_may_do(at):
    assert at("whoami").out.splitlines()[:2] == ["local", "  push:*"]
    assert at("whoami", "--json").json["name"] == "local"


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("key", "create", "shop", "--grant", "prodcer"), 1, "did you mean 'producer'?"),
        (("key", "create", "shop"), 1, "needs grants"),
        (("key", "create", "shop", "--grant", "producer", "--expires", "soon"), 1, "soon"),
        (("key", "create", "shop", "--grant", "producer", "--namespace", "no"), 4, "penstock namespace create"),
        (("key", "rotate", "none"), 4, "penstock key list"),
        (("user", "create", "ann"), 1, "--grant viewer"),
        (("user", "create", "ann", "--grant", "viewer"), 1, "--password-stdin"),
        (("user", "create", "ann", "--grant", "viewer", "--password-stdin"), 1, "--password-stdin < file"),
        (("user", "update", "ann"), 1, "nothing to change"),
        (("user", "update", "ann", "--grant", "viewer"), 4, "penstock user create"),
        (("role", "set", "owner", "--grant", "push"), 1, "built in"),
        (("role", "set", "mine"), 1, "needs grants"),
        (("role", "delete", "viewer"), 4, "built-in roles cannot be deleted"),
        (("namespace", "create", "a.b"), 1, "without dots"),
        (("namespace", "create", "a", "--queues", "-1"), 1, "queues: -1"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_to_mend_it(words, code, hint, at, data):
    result = at(*words)

    assert result.code == code
    assert hint in result.err
    assert not (Path(data) / "access" / "access.json").exists()


# Contexts.


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What commands would send, instead of sending it."""
    sent: list[str | None] = []

    def connect(url: str, *, token: Any = None, **options: Any) -> Penstock:
        sent.append(token and token())
        return penstock.open_in_memory()

    monkeypatch.setattr(penstock, "connect", connect)
    for name in ("PENSTOCK_TOKEN", "PENSTOCK_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return sent


def test_the_token_of_a_context_is_sent_to_its_broker_and_to_no_other(run, tokens, tmp_path, monkeypatch):
    (tmp_path / "key").write_text("first\n")
    (tmp_path / "key").chmod(0o600)
    assert run("context", "add", "far", "far:7710", "--token-file", tmp_path / "key").code == 0
    assert run("context", "add", "near", "near:7710").code == 0

    run("whoami")
    (tmp_path / "key").write_text("second\n")
    run("whoami")
    run("whoami", "--context", "near")
    run("whoami", "--url", "far:7710")
    monkeypatch.setenv("PENSTOCK_TOKEN", "mine")
    run("whoami")
    assert tokens == ["first", "second", None, None, None]


def test_a_token_in_a_context_is_never_shown_and_only_its_owner_can_read_it(run, tokens, monkeypatch):
    modes = []
    opened = os.open

    def noted(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        fd = opened(path, flags, mode, **options)
        if str(path).startswith(str(target.file().parent)) and flags & os.O_CREAT:
            modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return fd

    monkeypatch.setattr(os, "open", noted)
    added = run("context", "add", "far", "far:7710", "--token-stdin", stdin=b"s3cret\n")

    assert modes == [0o600]
    assert stat.S_IMODE(target.file().stat().st_mode) == 0o600
    shown = [added, run("context", "list"), run("context", "list", "--json"), run("context", "use", "far")]
    assert all("s3cret" not in each.out + each.err for each in shown)
    assert "s3cret" not in repr(target.load())
    run("whoami")
    assert tokens == ["s3cret"]
    assert Broker().address == "penstock://far:7710"


def test_a_token_that_cannot_be_read_is_refused_at_once(run, tmp_path):
    missing = run("context", "add", "far", "far:7710", "--token-file", tmp_path / "none")
    assert missing.code == 1
    assert "cannot be read" in missing.err
    assert run("context", "add", "far", "far:7710", "--token-stdin").code == 1
    assert target.load().contexts == {}
