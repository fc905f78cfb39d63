"""How the owner's programs find the key of a broker, and who else learns nothing of it."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock.access.discovery import (
    CLIENT,
    Announcement,
    Entry,
    directories,
    find,
    is_loopback,
    new_entry,
    new_nonce,
    place_of,
)
from penstock.access.keys import make_key
from penstock.errors import NotAuthenticated, PenstockError
from penstock.remote.settings import addresses
from penstock.wire.frames import PROTOCOL_VERSION, Splitter, Type, frame
from penstock.wire.requests import Hello, Welcome, decode, encode

PLACE = "127.0.0.1:7710"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user's own runtime directory."""
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "home").mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path / "home")}


def announce(entry: Entry | None, place: str, environment: dict[str, str]) -> Announcement:
    made = Announcement(entry, environment)
    made.add([place])
    made.write_header()
    return made


@pytest.fixture
def entry() -> Entry:
    return new_entry()


@pytest.fixture
def announced(entry: Entry, environment: dict[str, str]) -> Announcement:
    return announce(entry, PLACE, environment)


@pytest.fixture
def entry_file(environment: dict[str, str]) -> Path:
    return Path(environment["XDG_RUNTIME_DIR"]) / "penstock" / "127.0.0.1-7710.json"


def test_an_entry_is_found_at_exactly_its_address(announced, environment, entry_file, entry):
    assert find("127.0.0.1", 7710, environment) == entry
    for host, port in (("127.0.0.1", 7711), ("127.0.0.2", 7710), ("::1", 7710), ("10.0.0.1", 7710), ("queue", 7710)):
        assert find(host, port, environment) is None
    announced.remove()
    assert find("127.0.0.1", 7710, environment) is None
    assert list(entry_file.parent.iterdir()) == []


def test_an_address_that_is_not_this_machines_own_is_never_looked_up(environment):
    announce(new_entry(), "10.0.0.1:7710", environment)

    assert find("10.0.0.1", 7710, environment) is None
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")] == [True] * 4
    assert [is_loopback(host) for host in ("10.0.0.1", "0.0.0.0", "::", "localhost", "")] == [False] * 5


def test_files_are_their_owners_alone_from_the_first_byte(announced, monkeypatch, entry_file, entry, environment):
    assert announced.header_file is not None
    assert stat.S_IMODE(entry_file.parent.stat().st_mode) == 0o700
    for path in (entry_file, announced.header_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    header = announced.header_file.read_text()
    assert header == f"Authorization: Bearer {entry.key}\n"

    modes: list[int] = []
    write = os.write

    def noted(fd: int, data: bytes) -> int:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return write(fd, data)

    monkeypatch.setattr(os, "write", noted)
    old = os.umask(0)
    try:
        announce(entry, PLACE, environment)
    finally:
        os.umask(old)
    assert modes == [0o600, 0o600]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666])
def test_an_entry_that_others_may_read_or_write_does_not_count(mode, announced, environment, entry_file):
    entry_file.chmod(mode)

    assert find("127.0.0.1", 7710, environment) is None


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_directory_that_others_may_enter_does_not_count(mode, announced, environment, entry_file):
    entry_file.parent.chmod(mode)

    assert find("127.0.0.1", 7710, environment) is None


def test_an_entry_of_somebody_else_does_not_count(announced, environment, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 54321)

    assert find("127.0.0.1", 7710, environment) is None


def test_a_link_does_not_count(announced, environment, tmp_path, entry_file):
    path = entry_file
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")

    assert find("127.0.0.1", 7710, environment) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"run": 1, "key": "x"}', b"\xff" * 10_000])
def test_an_entry_that_cannot_be_read_does_not_count(data, announced, environment, entry_file):
    entry_file.write_bytes(data)

    assert find("127.0.0.1", 7710, environment) is None


def test_a_broker_that_was_killed_leaves_an_entry_that_the_next_one_replaces(announced, environment):
    after = new_entry()
    announce(after, PLACE, environment)
    assert find("127.0.0.1", 7710, environment) == after

    announced.remove()  # the first ends late, and leaves the second alone
    assert find("127.0.0.1", 7710, environment) == after
    announce(None, PLACE, environment)  # a broker without access control has none of its own
    assert find("127.0.0.1", 7710, environment) is None


def test_without_a_runtime_directory_the_users_state_directory_serves_and_never_a_shared_one(tmp_path):
    home = {"HOME": str(tmp_path)}
    found = [path for path in directories(home) if not str(path).startswith("/run/user/")]
    assert found == [tmp_path / ".local" / "state" / "penstock"]
    assert not any(str(path).startswith(("/tmp/", "/var/tmp")) for path in directories({"HOME": "/srv/x"}))
    relative = {"XDG_RUNTIME_DIR": "run", "HOME": str(tmp_path)}
    assert list(directories(relative)) == list(directories(home))
    moved = home | {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert [*directories(moved)][-1] == tmp_path / "state" / "penstock"


def test_a_directory_that_cannot_be_made_private_means_no_entry(environment, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.access.discovery._is_private", lambda path: False)
    announced = announce(new_entry(), PLACE, environment)

    assert announced.header_file is None
    assert not list(tmp_path.rglob("*.json"))


def test_a_proof_is_of_one_run_address_side_and_pair_of_nonces():
    entry, nonces = new_entry(), (new_nonce(), new_nonce())
    proof = entry.proof(CLIENT, *nonces, PLACE)

    assert entry.is_proof(proof, CLIENT, *nonces, PLACE)
    assert not entry.is_proof(proof, "broker", *nonces, PLACE)
    assert not entry.is_proof(proof, CLIENT, *nonces, place_of("127.0.0.1", 7711))
    assert not entry.is_proof(proof, CLIENT, *nonces[::-1], PLACE)
    assert not entry.is_proof(proof, CLIENT, nonces[0] + nonces[1][:1], nonces[1][1:], PLACE)
    assert not Entry("other", entry.key).is_proof(proof, CLIENT, *nonces, PLACE)
    assert not Entry(entry.run, make_key().text).is_proof(proof, CLIENT, *nonces, PLACE)
    assert not entry.is_proof("ü", CLIENT, *nonces, PLACE)
    assert entry.key not in repr(entry)


# Somebody else at the port.


class Stranger:
    """Listens where a broker was, notes all that it is sent, and answers as it likes."""

    def __init__(self, welcome: Welcome) -> None:
        self.heard = b""
        self._welcome = welcome
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        splitter = Splitter(1 << 20)
        while data := connection.recv(1 << 16):
            self.heard += data
            for _, correlation, _, _ in splitter.feed(data)[1]:
                connection.sendall(frame(Type.OK, correlation, encode(self._welcome)))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(30)


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    found = Stranger(Welcome(PROTOCOL_VERSION, "stranger", 1 << 20, new_nonce(), "0" * 64))
    yield found
    found.close()


def test_a_stranger_at_the_port_learns_nothing_and_gets_no_message(stranger, environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("PENSTOCK_TOKEN", "PENSTOCK_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    entry = new_entry()
    announce(entry, place_of("127.0.0.1", stranger.port), environment)

    with pytest.raises(PenstockError) as caught, penstock.connect(f"penstock://127.0.0.1:{stranger.port}") as ps:
        ps.queue("mail").push(b"c0nfidential")

    assert isinstance(caught.value, NotAuthenticated)
    assert "is not the broker that you started" in caught.value.message
    assert stranger.heard
    assert b"c0nfidential" not in stranger.heard
    assert entry.key.rpartition("_")[2].encode() not in stranger.heard
    hellos = [decode(stranger.heard[cut[2] : cut[3]], Hello) for cut in Splitter(1 << 20).feed(stranger.heard)[1]]
    assert all((hello.token, hello.proof) == ("", "") for hello in hellos)
    assert addresses(f"penstock://127.0.0.1:{stranger.port}")[0].port == stranger.port
    assert msgspec.structs.asdict(hellos[0])["challenge"]
