"""`penstock tls`: certificates that a broker and its clients can use as they are."""

from __future__ import annotations

import builtins
import json
import stat
from pathlib import Path

import pytest

import penstock
from penstock.cli.app import run
from tests.support.tls import TlsBroker


def made(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run(["tls", "init", *words, "--json"]) == 0
    value: dict[str, object] = json.loads(capsys.readouterr().out)
    return value


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_it_makes_works_for_a_broker_and_its_clients(tmp_path, capsys):
    folder = tmp_path / "tls"
    told = made(capsys, str(folder), "--host", "queue.example.org", "--client", "billing")

    assert told["names"] == ["queue.example.org", "localhost", "127.0.0.1", "::1"]
    assert sorted(path.name for path in folder.iterdir()) == [
        *("billing.key", "billing.pem", "ca.key", "ca.pem", "server.key", "server.pem"),
    ]
    assert {mode(path) for path in folder.glob("*.key")} == {0o600}
    assert mode(folder) == 0o700
    settings = {**told["settings"], "tls_client": "required"}  # type: ignore[dict-item]
    with TlsBroker(tmp_path, **settings) as broker:
        files = {"tls_certificate": folder / "billing.pem", "tls_key": folder / "billing.key"}
        with penstock.connect(broker.url("tcp"), tls_ca=folder / "ca.pem", **files) as ps:
            ps.queue("mail").push(b"x")


def test_nothing_is_overwritten_unless_it_is_renewed_and_then_the_authority_stays(tmp_path, capsys):
    folder = tmp_path / "tls"
    made(capsys, str(folder))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    assert run(["tls", "init", str(folder)]) == 1
    assert "--renew" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    made(capsys, str(folder), "--renew", "--days", "10")
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(name for name in after if after[name] == before[name]) == ["ca.key", "ca.pem"]


def test_what_people_see_is_what_to_paste(tmp_path, capsys):
    assert run(["tls", "init", str(tmp_path / "tls"), "--client", "billing"]) == 0
    shown = capsys.readouterr().out

    assert f'tls_certificate = "{tmp_path}/tls/server.pem"' in shown
    assert f"export PENSTOCK_TLS_CA={tmp_path}/tls/ca.pem" in shown
    assert "PRIVATE KEY" not in shown


@pytest.mark.parametrize("name", ["ca", "server", "../x", "", ".hidden"])
def test_a_client_whose_files_would_be_in_the_way_is_refused(tmp_path, capsys, name):
    assert run(["tls", "init", str(tmp_path / "tls"), "--client", name]) == 1
    assert "client: " in capsys.readouterr().err
    assert not (tmp_path / "tls").exists()


def test_an_authority_that_cannot_be_read_is_refused(tmp_path, capsys):
    folder = tmp_path / "tls"
    made(capsys, str(folder))
    (folder / "ca.key").write_bytes((folder / "server.key").read_bytes())

    assert run(["tls", "init", str(folder), "--renew"]) == 1
    assert "ca.key is not the key of ca.pem" in capsys.readouterr().err


def test_status_says_until_when_and_fails_for_what_is_not_valid(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "tls"
    made(capsys, str(folder), "--days", "10")

    assert run(["tls", "status", str(folder / "server.pem"), str(folder / "ca.pem"), "--json"]) == 0
    assert [row["days_left"] for row in json.loads(capsys.readouterr().out)] == [9, 3649]
    assert run(["tls", "status", str(folder / "server.key")]) == 1
    assert "contains no PEM certificate" in capsys.readouterr().err
    late = penstock.clock.SystemClock().now() + 11 * 86_400_000_000
    monkeypatch.setattr("penstock.clock.SystemClock.now", lambda _: late)
    assert run(["tls", "status", str(folder / "server.pem")]) == 2
    assert "not valid" in capsys.readouterr().out


def test_without_the_extra_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    real = builtins.__import__

    def missing(name: str, *rest: object) -> object:
        if name.split(".", maxsplit=1)[0] == "cryptography":
            raise ImportError("no such module", name="cryptography")
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)

    assert run(["tls", "init", str(tmp_path / "tls")]) == 1
    assert "pip install 'penstock-mq[security]'" in capsys.readouterr().err
