"""Whose address counts: the peer's, or the one that trusted proxies name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.access import Client, Principal
from penstock.server.http.connection import HttpConnection
from penstock.server.http.origins import Proxies
from tests.support.http import HttpThread, request

PUSH = "/api/v1/queues/mail/messages"
ONE = b'{"messages":[{"payload":1}]}'


def forwarded_headers(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-forwarded-for", value.encode("latin-1")) for value in values]


@pytest.mark.parametrize(
    ("peer", "values", "client"),
    [
        ("10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["6.6.6.6, 192.0.2.7"], "192.0.2.7"),  # who begins the list may write anything
        ("10.0.0.1", ["192.0.2.7, 10.0.0.2"], "192.0.2.7"),
        ("10.0.0.1", ["192.0.2.7", "10.0.0.2"], "192.0.2.7"),
        ("10.0.0.1", ["10.0.0.3,10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["192.0.2.7:4711"], "192.0.2.7"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.7, \x1b[31m"], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("fd00::5", ["192.0.2.7"], "192.0.2.7"),
        ("192.0.2.1", ["192.0.2.7"], "192.0.2.1"),
        ("", ["192.0.2.7"], ""),
    ],
)
def test_the_client_is_the_last_that_no_proxy_is(peer, values, client):
    assert Proxies(["10.0.0.0/8", "fd00::5"]).client(peer, forwarded_headers(*values)) == client


@given(st.text(st.characters(max_codepoint=255)), st.sampled_from(["10.0.0.1", "192.0.2.1"]))
def test_whatever_a_list_holds_an_address_comes_of_it_and_nobody_is_believed_who_is_no_proxy(text, peer):
    client = Proxies(["10.0.0.0/8"]).client(peer, forwarded_headers(text))

    assert client.isprintable()
    assert peer in {"10.0.0.1", client}
    assert Proxies().client(peer, forwarded_headers(text)) == peer


@pytest.mark.parametrize(("proxies", "expected"), [((), {"127.0.0.1"}), (("127.0.0.0/8",), {"192.0.2.1", "192.0.2.2"})])
def test_each_request_of_a_proxys_connection_counts_for_its_own_client(serve, monkeypatch, proxies, expected):
    seen: list[str] = []
    known = HttpConnection.client_named

    def note(connection: HttpConnection, name: bytes, address: str, principal: Principal) -> Client:
        seen.append(address)
        return known(connection, name, address, principal)

    monkeypatch.setattr(HttpConnection, "client_named", note)
    server: HttpThread = serve(trusted_proxies=proxies)

    for method, path, body in (("POST", PUSH, ONE), ("GET", "/api/v1/queues", b"")):
        seen.clear()
        with server.connect() as client:
            for number in (1, 2):
                client.send(request(method, path, body, x_forwarded_for=f"6.6.6.6, 192.0.2.{number}"))
                assert client.answer().status < 300
        assert set(seen) == expected, path
