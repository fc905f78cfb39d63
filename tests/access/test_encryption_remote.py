"""Data keys over the wire, by who may do what; and `penstock encryption`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import penstock
from penstock import operations as ops
from penstock.access import encryption
from penstock.client.handles import Penstock
from penstock.errors import InvalidField, NotAuthorised, PenstockError
from penstock.seals import ERASED
from tests.access.test_encryption import CANARY, leaks
from tests.cli.conftest import Run, nobodys_settings, quick_commands, run  # noqa: F401 - fixtures
from tests.support.broker_process import Served


class Keys:
    """A broker with an encrypted queue, in a process of its own, and principals."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.master_key, self.new_key = folder / "master.key", folder / "new.key"
        encryption.new_key_file(self.master_key)
        encryption.new_key_file(self.new_key)
        with penstock.open(self.data, master_key=self.master_key) as ps:
            ps.create_queue("orders", encryption=True).push(CANARY)
            ps.create_queue("other", encryption=True)
            blocking: Any = ps.session
            store = blocking.session.access
            self.tokens = {
                name: store.create_key(name, grants)[1]
                for name, grants in {
                    "boss": ["owner"],
                    "manager": ["manage:orders", "monitor:orders"],
                    "reader": ["read:orders"],
                    "producer": ["push:orders"],
                }.items()
            }


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@contextmanager
def served(keys: Keys, master_key: Path) -> Iterator[Served]:
    flags = ("--master-key", str(master_key), "--auth", "on", "--http-port", "0", "--grpc-port", "off")
    with Served(keys.data.parent, "--data", str(keys.data), *flags) as broker:
        yield broker
        assert broker.stop() == 0


@contextmanager
def connected(keys: Keys, broker: Served, name: str, protocol: str) -> Iterator[Penstock]:
    with penstock.connect(broker.url(protocol), token=keys.tokens[name]) as ps:
        yield ps


CALLS: dict[str, tuple[ops.Operation[Any], set[str]]] = {  # who may
    "get": (ops.GetDataKeys("orders"), {"boss", "reader"}),
    "rotate": (ops.RotateDataKey("orders"), {"boss", "manager"}),
    "erase": (ops.EraseDataKeys("orders", "orders"), {"boss", "manager"}),
}


def test_who_may_not_is_refused_and_nothing_happens(keys):
    before = (keys.data / encryption.NAME).read_bytes()
    with served(keys, keys.master_key) as broker:
        for name in keys.tokens:
            with connected(keys, broker, name, "tcp") as ps:
                for operation, allowed in CALLS.values():
                    if name not in allowed:
                        with pytest.raises(NotAuthorised):
                            ps.session.execute(operation)
                if name != "boss":
                    with pytest.raises(NotAuthorised):
                        ps.session.execute(ops.RewrapDataKeys(str(keys.new_key)))
        headers = {name: {"authorization": f"Bearer {token}"} for name, token in keys.tokens.items()}
        base = f"{broker.url('http')}/api/v1"
        for path, body, allowed in (
            ("queues/orders/encryption/rotate", None, {"boss", "manager"}),
            ("queues/orders/encryption/erase", {"confirm": "orders"}, {"boss", "manager"}),
            ("queues/other/encryption/rotate", None, {"boss"}),
            ("encryption/rewrap", {"master_key": str(keys.new_key)}, {"boss"}),
        ):
            for name in keys.tokens.keys() - allowed:
                answer = httpx.post(f"{base}/{path}", json=body, headers=headers[name])
                assert answer.status_code == 403, (name, path, answer.text)
            assert httpx.post(f"{base}/{path}", json=body).status_code == 401
    assert (keys.data / encryption.NAME).read_bytes() == before


def test_over_tcp(keys):
    with served(keys, keys.master_key) as broker:
        with connected(keys, broker, "reader", "tcp") as ps:
            first = dict(ps.session.execute(ops.GetDataKeys("orders")).keys)
            assert all(len(secret) == 32 for secret in first.values())
            assert ps.session.execute(ops.ListDataKeys()) == []
        with connected(keys, broker, "manager", "tcp") as ps:
            new = ps.session.execute(ops.RotateDataKey("orders"))
            assert bytes.fromhex(new) not in first
            views = ps.session.execute(ops.ListDataKeys())
            assert {view.queue for view in views} == {"orders"}
            assert [view.state for view in views if view.id == new] == ["current"]
            with pytest.raises(InvalidField, match="confirm"):
                ps.session.execute(ops.EraseDataKeys("orders", "order"))
        with connected(keys, broker, "boss", "tcp") as ps:
            ps.queue("orders").push(b"second")
            assert ps.session.execute(ops.RewrapDataKeys(str(keys.new_key))) >= 3
            with pytest.raises(PenstockError, match="cannot be read"):
                ps.session.execute(ops.RewrapDataKeys(str(keys.data / "missing.key")))
    with served(keys, keys.new_key) as broker:
        with connected(keys, broker, "manager", "tcp") as ps:
            assert ps.session.execute(ops.EraseDataKeys("orders", "orders")) >= 2
        with connected(keys, broker, "reader", "tcp") as ps:
            assert set(dict(ps.session.execute(ops.GetDataKeys("orders")).keys).values()) == {b""}
    with served(keys, keys.new_key) as broker, connected(keys, broker, "boss", "tcp") as ps:
        found = list(ps.queue("orders").lease(5))
        assert [delivery.payload for delivery in found] == [b"", b""]
        assert all(ERASED in (delivery.headers or {}) for delivery in found)
    assert leaks(keys.data) == []


def test_over_http(keys):
    with served(keys, keys.master_key) as broker:
        base = f"{broker.url('http')}/api/v1"
        with httpx.Client(headers={"authorization": f"Bearer {keys.tokens['boss']}"}, base_url=base) as http:
            new = http.post("queues/orders/encryption/rotate").json()["key"]
            views = http.get("encryption").json()["keys"]
            assert {view["status"] for view in views if view["id"] == new} == {"current"}
            assert http.post("queues/orders/encryption/erase", json={"confirm": "no"}).status_code == 400
            assert http.post("encryption/rewrap", json={"master_key": str(keys.new_key)}).json()["rewrapped"] >= 3
            assert http.post("queues/orders/encryption/erase", json={"confirm": "orders"}).json()["erased"] >= 2
            states = {view["status"] for view in http.get("encryption").json()["keys"] if view["queue"] == "orders"}
            assert states == {"erased"}
            assert CANARY not in http.get("encryption").text


# the command line, on the directory of a broker that is stopped


@pytest.fixture
def at(run: Run, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Run:  # noqa: F811
    monkeypatch.setenv("PENSTOCK_MASTER_KEY", str(keys.master_key))
    return lambda *words, **options: run("encryption", *words, "--url", str(keys.data), **options)


def test_init_makes_a_key_file_once(run, tmp_path):  # noqa: F811
    file = tmp_path / "made.key"
    made = run("encryption", "init", str(file))
    assert (made.code, file.stat().st_mode & 0o777) == (0, 0o600)
    content = file.read_text().strip()
    assert content not in made.out + made.err
    encryption.read_key_file(file)
    again = run("encryption", "init", str(file))
    assert again.code != 0
    assert "already exists" in again.err
    assert file.read_text().strip() == content


def test_status_rotate_and_erase(at, keys):
    assert at("status", "--json").json[0]["state"] == "current"
    new = at("rotate", "orders", "--json").json["key"]
    shown = at("status")
    assert shown.code == 0
    assert new in shown.out
    assert {key["state"] for key in at("status", "--json").json if key["queue"] == "orders"} == {"old", "current"}
    assert at("erase", "orders").code != 0  # nobody confirms it
    assert at("erase", "orders", "--yes", "--json").json["erased"] >= 2
    assert {key["state"] for key in at("status", "--json").json if key["queue"] == "orders"} == {"erased"}
    assert at("rotate", "missing").code != 0


def test_rewrap(at, keys, monkeypatch):
    done = at("rewrap", str(keys.new_key))
    assert done.code == 0
    assert "set master_key to it" in done.out + done.err
    refused = at("status")
    assert refused.code != 0
    assert "master key does not open" in refused.err
    monkeypatch.setenv("PENSTOCK_MASTER_KEY", str(keys.new_key))
    assert at("status").code == 0
    with penstock.open(keys.data, master_key=keys.new_key) as ps:
        assert [delivery.payload for delivery in ps.queue("orders").lease(1)] == [CANARY.encode()]


def test_an_empty_directory_has_no_data_keys(run, tmp_path):  # noqa: F811
    penstock.open(tmp_path / "data").close()
    found = run("encryption", "status", "--url", str(tmp_path / "data"))
    assert (found.code, found.out) == (0, "")
    assert "no data keys" in found.err
