"""What a browser may be made to do: names that point here, pages of other origins, links from other sites."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.http.origins import Browsers
from tests.support.http import HttpThread, request

PUSH = "/api/v1/queues/mail/messages"
ONE = b'{"messages":[{"payload":1}]}'
OWN = (
    "127.0.0.1",
    "localhost",
    "LOCALHOST:7711",
    "a.localhost",
    "[::1]:80",
    "10.1.2.3:7711",
    "[fe80::1]",
    "queue.local.",
)
OTHERS = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "0x7f.1", "2130706433")
NO_HOSTS = ("", "a b", "http://localhost", "localhost:x", "user@localhost", "localhost/", "[::1", "a\xe9")
SITE = "http://localhost:7711"
HANDSHAKE = request(
    "GET",
    "/api/v1/stream",
    connection="upgrade",
    upgrade="websocket",
    sec_websocket_version="13",
    sec_websocket_key="x3JJHMbDL1EzLkh9GBhXDw==",
)
WAYS = {
    "hot": lambda head: b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n%b\r\n%b" % (PUSH.encode(), len(ONE), head, ONE),
    "application": lambda head: b"GET /api/v1/queues HTTP/1.1\r\n%b\r\n" % head,
    "page": lambda head: b"GET /docs HTTP/1.1\r\n%b\r\n" % head,
    "websocket": lambda head: HANDSHAKE.replace(b"host: localhost\r\n", head),
}


def status(server: HttpThread, way: str, *headers: str, before: bytes = b"") -> int:
    with server.connect() as client:
        if before:
            client.send(before)
            assert client.answer().status == 201
        client.send(WAYS[way]("".join(f"{header}\r\n" for header in headers).encode("latin-1")))
        return client.answer().status


@pytest.mark.parametrize("way", ["hot", "application", "page", "websocket"])
def test_a_request_names_this_broker_exactly_once(serve, way):
    server = serve(hosts=("queue.local",), is_streaming=True)

    for host in OWN:
        assert status(server, way, f"host: {host}") < 300, host
    for host in OTHERS:
        assert status(server, way, f"host: {host}") == 403, host
    for host in NO_HOSTS:
        assert status(server, way, f"host: {host}") == 400, host
    assert status(server, way) == 400
    assert status(server, way, "host: localhost", "host: localhost") == 400
    assert status(server, way, "host: localhost", "HOST: evil.example") == 400


@pytest.mark.parametrize("way", ["hot", "application", "page"])
def test_a_connection_that_named_it_rightly_is_still_looked_at(server, way):
    before = request("POST", PUSH, ONE)

    assert status(server, way, "host: evil.example", before=before) == 403
    assert status(server, way, before=before) == 400
    assert status(server, way, "host: localhost", "host: localhost", before=before) == 400
    assert status(server, way, "host: localhost", "origin: http://evil.example", before=before) == 403


def test_probes_need_no_name(server):
    for path in ("/livez", "/readyz", "/livez?x=1"):
        with server.connect() as client:
            client.send(f"GET {path} HTTP/1.1\r\n\r\nGET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n".encode())
            assert client.answer().status in {200, 400}  # a query is bad input, no matter of names
            assert client.answer().status in {200, 400}
            client.send(WAYS["application"](b"host: a.example\r\n"))
            assert client.answer().status == 403


@pytest.mark.parametrize("way", ["hot", "application", "websocket"])
def test_an_origin_must_agree_in_scheme_host_and_port(serve, way):
    server = serve(is_streaming=True)
    host = "host: localhost:7711"

    assert status(server, way, host, f"origin: {SITE}") < 300
    assert status(server, way, "host: localhost:80", "origin: http://localhost") < 300
    for origin in (
        "https://localhost:7711",
        "http://localhost",
        "http://localhost:3000",
        "http://127.0.0.1:7711",
        "null",
    ):
        assert status(server, way, host, f"origin: {origin}") == 403, origin


def test_what_comes_from_another_site_is_refused_except_a_link_to_a_page(serve):
    server = serve(cors_origins=("https://app.example",))
    site, navigate = "sec-fetch-site: cross-site", "sec-fetch-mode: navigate"

    def get(path: str, *headers: str, method: str = "GET") -> int:
        with server.connect() as client:
            lines = "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", "host: localhost", *headers, ""))
            client.send(lines.encode())
            answered: int = client.answer().status
            return answered

    assert get("/docs", site, navigate) == 200
    assert get("/", site, navigate) == 307
    assert get("/ui/missing.js", site, navigate) == 404
    assert get("/docs", site, "sec-fetch-mode: no-cors") == 403
    assert get("/docs", site, navigate, method="POST") == 403
    assert get("/api/v1/queues", site, navigate) == 403
    assert get("/metrics", site) == 403
    assert get("/api/v1/queues", site, "origin: https://app.example") == 200
    assert get("/api/v1/queues", site, "origin: https://other.example") == 403
    for mild in ("same-origin", "none", "same-site"):
        assert get("/api/v1/queues", f"sec-fetch-site: {mild}") == 200


def test_a_session_counts_for_pages_of_the_broker_only():
    browsers = Browsers("127.0.0.1", (), ("*", "http://localhost:3000"))

    def counts(**headers: str) -> bool:
        sent = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        return browsers.is_own_page({b"host": b"localhost:7711", **sent})

    assert counts()  # a browser that does not say
    assert counts(sec_fetch_site="none")
    assert counts(sec_fetch_site="same-origin", origin=SITE)
    assert counts(origin=SITE)
    for other in ("http://localhost:3000", "https://localhost:7711", "null"):  # though it may do other things
        assert not counts(origin=other)
        assert not counts(sec_fetch_site="same-origin", origin=other)
    assert not counts(sec_fetch_site="same-site")
    assert not counts(sec_fetch_site="cross-site")


@given(st.binary(max_size=40) | st.from_regex(rb"[a-z0-9.:\[\]@/-]{0,30}", fullmatch=True), st.binary(max_size=20))
def test_any_host_is_accepted_or_refused_and_no_name_of_somebody_else_is_accepted(host, path):
    refused = Browsers("127.0.0.1", (), ()).refused(b"GET", b"/x" + path, {b"host": host}, False)

    letters = host.rpartition(b":")[0] if not host.endswith(b"]") and b":" in host else host
    if any(byte in b"ghijklmnopqrstuvwxyz" for byte in letters) and not letters.rstrip(b".").endswith(b"localhost"):
        assert refused is not None
