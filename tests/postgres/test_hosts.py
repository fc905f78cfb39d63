"""Several servers in a URL: a machine that answers nothing does not keep a node from the others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.clock import ManualClock
from penstock.errors import StoreRefused
from penstock.postgres.links import Links
from penstock.postgres.target import SILENT_SECONDS, Hosts, parse_store_url


class Silence(OSError):
    """No answer within the timeout."""


class Network:
    """Hosts that answer, refuse or stay silent; `tried` are those that somebody tried to reach."""

    def __init__(self, **behaviours: str) -> None:
        self.behaviours = behaviours
        self.tried: list[str] = []
        self.clock = ManualClock()
        self.hosts = Hosts(tuple(behaviours), self.clock)

    def reach(self, name: str) -> str:
        self.tried.append(name)
        if self.behaviours[name] == "silent":
            self.clock.advance(3)
            raise Silence(f"{name} is silent")
        if self.behaviours[name] == "refuses":
            raise OSError(f"{name} refuses")
        return name

    def connect(self) -> list[str]:
        """Try once: who was tried, and in which order."""
        self.tried = []
        self.hosts.connect(self.reach, OSError, (Silence,))
        return self.tried


def test_a_silent_host_is_left_out_for_a_while_and_then_tried_again():
    network = Network(a="silent", b="refuses", c="answers")
    assert network.connect() == ["a", "b", "c"]
    assert network.connect() == ["b", "c"]
    network.clock.advance(SILENT_SECONDS)
    assert network.connect() == ["a", "b", "c"]
    network.behaviours["a"] = "answers"
    assert network.connect() == ["b", "c"]
    network.clock.advance(SILENT_SECONDS)
    assert network.connect() == ["a"]
    assert network.connect() == ["a"]


def test_when_all_are_silent_all_are_tried_and_the_failure_names_each():
    network = Network(a="silent", b="silent")
    for _ in range(2):
        with pytest.raises(Silence, match="a is silent; b is silent"):
            network.connect()
        assert network.tried == ["a", "b"]


def test_while_one_thread_waits_for_a_host_that_was_silent_others_leave_it_out():
    network = Network(a="silent", b="answers")
    network.connect()
    network.clock.advance(SILENT_SECONDS)
    others: list[str] = []

    def reach(name: str) -> str:
        if name == "a":
            others.extend(Hosts.connect(network.hosts, lambda other: other, OSError, (Silence,)))
        return network.reach(name)

    network.hosts.connect(reach, OSError, (Silence,))
    assert others == ["b"]


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u@a/db", ["host=a"]),
        ("postgresql://u@a:1,b:2,c/db", ["host=a port=1", "host=b port=2", "host=c port=''"]),
        ("postgresql://u@a,b/db?port=7", ["host=a port=7", "host=b port=7"]),
        ("postgresql:///db?host=/one,/two&port=7", ["host=/one port=7", "host=/two port=7"]),
        ("postgresql:///db", [""]),
    ],
)
def test_each_host_of_a_url_has_its_own_connection_string(url, hosts):
    found = parse_store_url(url).hosts.conninfos
    assert len(found) == len(hosts)
    assert all(host in conninfo for host, conninfo in zip(hosts, found, strict=True))


@pytest.fixture
def silent() -> Iterator[tuple[int, list[socket.socket]]]:
    """A machine that stopped: it takes connections and says nothing. Its port, and who came."""
    came: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            while True:
                try:
                    came.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take)
        thread.start()
        yield listener.getsockname()[1], came
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in came:
        connection.close()


def test_a_stopped_machine_is_tried_once_and_the_next_connections_go_straight_to_the_primary(url, silent, monkeypatch):
    monkeypatch.setattr("penstock.postgres.link.CONNECT_SECONDS", 2)
    port, came = silent
    links = Links(parse_store_url(url.replace("127.0.0.1", f"127.0.0.1:{port},127.0.0.1")), "test")
    for _ in range(3):
        assert links.new().one("SELECT 1") == (1,)
    assert len(came) == 1
    links.close()


def test_a_url_whose_hosts_all_refuse_says_so_for_each(postgres):
    with socket.socket() as first, socket.socket() as second:
        ports = []
        for held in (first, second):  # bound, and nobody listens
            held.bind(("127.0.0.1", 0))
            ports.append(held.getsockname()[1])
        links = Links(parse_store_url(f"postgresql://u@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/db"), "test")
        with pytest.raises(StoreRefused) as refused:
            links.new()
        assert all(str(port) in str(refused.value) for port in ports)
    links.close()
