"""Connections: order, pieces, patience, limits, and clients that go away."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import pytest

from tests.support.http import request

PUSH = "/api/v1/queues/mail/messages"
LEASE = "/api/v1/queues/mail/lease"
ONE = b'{"messages":[{"payload":1}]}'


def test_pipelined_requests_are_answered_in_order_whichever_side_answers_them(server):
    server.push("mail", 0)
    with server.connect() as client:
        requests = [
            request("POST", PUSH, ONE),
            request("GET", "/api/v1/queues/mail"),
            request("POST", "/api/v1/ack", b"nonsense"),
            request("POST", LEASE, b'{"max":10}'),
            request("GET", "/nope"),
            request("POST", PUSH, ONE),
        ]
        client.send(b"".join(requests))
        answers = [client.answer() for _ in requests]

    assert [answer.status for answer in answers] == [201, 200, 400, 200, 404, 201]
    assert len(answers[3].json()["messages"]) == 2
    assert answers[5].json()["results"][0]["id"] == "mail/0/2"


def test_a_great_many_pipelined_requests_in_one_piece_are_all_answered(server):
    count = 3_000
    with server.connect() as client:
        client.send(request("POST", "/api/v1/ack", b"{}") * count)

        assert {client.answer().status for _ in range(count)} == {400}


def test_a_long_poll_holds_back_what_was_sent_behind_it(server):
    server.http.post("/api/v1/queues", json={"name": "mail"})
    with server.connect() as client:
        client.send(request("POST", LEASE, b'{"wait_ms":20000}') + request("GET", "/livez"))
        server.until(lambda: server.broker.waiting)
        server.push("mail", "hello")

        assert client.answer().json()["messages"][0]["payload"] == "hello"
        assert client.answer().json() == {"status": "ok"}


def test_a_request_may_come_in_pieces_cut_anywhere(server):
    whole = request("POST", PUSH, ONE, x_request_id="me")
    with server.connect() as client:
        for cut in range(1, len(whole)):
            client.send(whole[:cut])
            client.send(whole[cut:])
            answer = client.answer()
            assert (answer.status, answer.headers["x-request-id"]) == (201, "me")


def test_a_request_may_come_byte_by_byte_and_in_chunks(server):
    chunks = b"".join(b"1\r\n" + ONE[at : at + 1] + b"\r\n" for at in range(len(ONE))) + b"0\r\n\r\n"
    with server.connect() as client:
        for byte in request("POST", PUSH, transfer_encoding="chunked") + chunks:
            client.send(bytes((byte,)))

        assert client.answer().status == 201


@pytest.mark.parametrize(("path", "body", "status"), [(PUSH, ONE, 201), ("/api/v1/queues", b'{"name":"a"}', 201)])
def test_a_client_that_holds_its_body_back_is_asked_for_it(server, path, body, status):
    with server.connect() as client:
        head = request("POST", path, content_length=str(len(body)), expect="100-continue")
        client.send(head)
        assert client.answer().status == 100
        client.send(body)

        assert client.answer().status == status


def test_a_client_that_holds_a_huge_body_back_is_asked_not_to_send_it(serve):
    with serve(request_bytes_max=1024).connect() as client:
        client.send(request("POST", PUSH, content_length="100000", expect="100-continue"))

        assert client.answer().status == 413


def test_connections_are_kept_unless_the_client_says_otherwise(server):
    with server.connect() as client:
        client.send(request("POST", PUSH, ONE))
        assert "connection" not in client.answer().headers
        client.send(request("POST", PUSH, ONE, connection="close"))
        assert client.answer().headers["connection"] == "close"
        assert client.rest() == b""


def test_http_1_0_gets_its_answer_and_the_end(server):
    with server.connect() as client:
        client.send(request("POST", PUSH, ONE).replace(b"HTTP/1.1", b"HTTP/1.0"))

        assert client.answer().status == 201
        assert client.rest() == b""


def test_a_client_that_has_said_all_still_gets_its_answer(server):
    with server.connect() as client:
        client.send(request("GET", "/api/v1/health"))
        client.socket.shutdown(socket.SHUT_WR)

        assert client.answer().status == 200
        assert client.rest() == b""


def test_a_client_that_vanishes_while_it_waits_takes_no_message_with_it(server):
    server.http.post("/api/v1/queues", json={"name": "mail"})
    client = server.connect()
    client.send(request("POST", LEASE, b'{"wait_ms":20000}'))
    server.until(lambda: server.broker.waiting)
    with client:
        pass

    server.until(lambda: server.server.connections == 1)  # the one that made the queue
    server.push("mail", 1)

    assert len(server.lease("mail")) == 1


def test_a_client_that_vanishes_in_the_middle_of_a_request_changes_nothing(server):
    whole = request("POST", PUSH, ONE)
    for cut in (5, 40, len(whole) - 1):
        client = server.connect()
        client.send(whole[:cut])
        # A reset rather than an end: the process was killed.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with client:
            pass
    server.until(lambda: not server.server.connections)

    assert server.http.get("/api/v1/queues").json() == {"queues": []}


def test_a_slow_request_is_let_go(serve):
    server = serve(headers_seconds=2, progress_seconds=2)
    with server.connect() as silent, server.connect() as halfway, server.connect() as slow_body:
        halfway.send(b"POST /api/v1/ack HTTP/1.1\r\nhost:")
        slow_body.send(request("POST", PUSH, ONE)[:-1])

        assert silent.rest() == b""
        assert halfway.answer().code == "bad_request"
        assert slow_body.answer().code == "bad_request"
    server.push("mail", 1)


BAD_CHUNK = b"5\r\nabcdeZZ"
SOON = {"headers_seconds": 0.4, "progress_seconds": 0.4, "lingering_seconds": 0.2, "paused_seconds": 0.4}


@pytest.mark.parametrize("path", [PUSH, "/api/v1/queues"])
@pytest.mark.parametrize("leaves", [True, False])
def test_a_bad_chunk_is_answered_and_ends_the_connection(serve, path, leaves):
    server = serve(connections_max=2, **SOON)
    for _ in range(4):
        with server.connect() as client:
            client.send(request("POST", path, transfer_encoding="chunked") + BAD_CHUNK)
            assert client.answer().code == "bad_request"
            if leaves:
                client.socket.shutdown(socket.SHUT_WR)
            assert client.rest() == b""
            server.until(lambda: not server.server.connections)


def test_garbage_behind_a_request_that_waits_is_refused_after_its_answer(serve):
    server = serve(**SOON)
    server.push("mail", 1)
    with server.connect() as client:
        client.send(request("POST", LEASE, b'{"max":1}') + b"this is no request\r\n\r\n" + request("POST", PUSH, ONE))

        assert client.answer().status == 200
        assert client.answer().code == "bad_request"
        assert client.rest() == b""
    assert server.stats("mail")["messages"] == 1


@pytest.mark.parametrize(
    "refused",
    [
        request("POST", PUSH, content_length="999999999"),
        request("POST", PUSH, b"x", content_encoding="gzip"),
        request("POST", PUSH, b"{}", origin="http://elsewhere.example"),
        request("POST", "/api/v1/queues", b"{}", origin="http://elsewhere.example"),
    ],
)
def test_nothing_that_was_sent_behind_a_refusal_is_run(server, refused):
    with server.connect() as client:
        client.send(refused + request("POST", PUSH, ONE) + request("PUT", "/api/v1/queues/other", b"{}"))

        assert client.answer().status >= 400
        assert client.rest() == b""
    assert server.http.get("/api/v1/queues").json() == {"queues": []}


def test_a_client_that_goes_while_its_pipeline_is_full_is_noticed(serve):
    server = serve(**SOON)
    server.http.post("/api/v1/queues", json={"name": "mail"})
    behind = request("POST", PUSH, ONE) * 10
    with server.connect() as client:
        client.send(request("POST", LEASE, b'{"wait_ms":20000}') + behind)
        server.until(lambda: server.broker.waiting)
    server.until(lambda: server.server.connections <= 1)

    assert server.stats("mail")["messages"] == 0


def test_a_connection_that_is_paused_for_too_long_is_ended(serve):
    server = serve(**SOON)
    server.http.post("/api/v1/queues", json={"name": "mail"})
    with server.connect() as client:
        client.send(request("POST", LEASE, b'{"wait_ms":60000}'))
        server.until(lambda: server.broker.waiting)
        client.socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                client.socket.send(bytes(100_000))
        server.until(lambda: not server.broker.waiting)
    server.until(lambda: server.server.connections <= 1)


def test_a_client_that_does_not_take_its_last_answer_is_ended(serve):
    server = serve(**SOON)
    server.push("mail", "x" * 30_000)
    with server.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        read = request("GET", f"{PUSH}?limit=1")
        client.send(read * 200 + request("GET", f"{PUSH}?limit=1", connection="close"))
        server.until(lambda: any(each._stalled_since is not None for each in server.server._site.connections))
        for connection in server.server._site.connections:
            connection._stalled_since = None  # as if its buffer had just been below the mark
            server.loop.call_soon_threadsafe(connection._close)
        server.until(lambda: server.server.connections <= 1)


def test_an_idle_connection_is_closed_after_a_while(serve):
    with serve(keep_alive_seconds=0.1).connect() as client:
        client.send(request("GET", "/livez"))

        assert client.answer().status == 200
        assert client.rest() == b""


def test_a_client_that_does_not_read_is_not_answered_without_end(serve):
    server = serve(write_seconds=1.5)
    server.push("mail", "x" * 1_000_000)
    browse = request("GET", f"{PUSH}?limit=1")
    peek = request("POST", LEASE, b'{"lease_ms":1}')
    with server.connect() as client:
        client.socket.setblocking(False)
        sent = 0
        try:
            while sent < 50_000_000:
                sent += client.socket.send((browse + peek) * 1000)
        except BlockingIOError:
            pass
        connections = server.server._site.connections
        server.until(lambda: any(each._stalled_since is not None for each in connections))
        server.until(lambda: len(connections) == 1)  # let go: what is left is the one that pushed

    assert sent < 50_000_000
    server.push("mail", 1)


def test_more_connections_than_allowed_are_refused(serve):
    server = serve(connections_max=2)
    with server.connect() as one, server.connect() as two:
        for client in (one, two):
            client.send(request("GET", "/livez"))
            assert client.answer().status == 200
        with server.connect() as three:
            assert (answer := three.answer()).status == 503
            assert answer.code == "unavailable"


def test_many_connections_at_once_are_all_served(server):
    clients = [server.connect() for _ in range(300)]
    for client in clients:
        client.send(request("POST", PUSH, ONE))
    statuses = {client.answer().status for client in clients}
    for client in clients:
        with client:
            pass

    assert statuses == {201}
    assert server.stats("mail")["messages"] == 300
