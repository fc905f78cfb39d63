"""The TCP server: what a client is told, and that no client can do harm to another."""

from __future__ import annotations

import asyncio
import random
import resource
from typing import Any
from unittest.mock import Mock

import pytest

from penstock import operations as ops
from penstock.batch import Batch
from penstock.model import Outcome, QueueStats
from penstock.server.tcp.connection import TcpConnection
from penstock.wire import answers, requests
from penstock.wire.frames import Type, frame
from tests.support.broker_loop import on_uvloop, until
from tests.support.dose import dose
from tests.support.operations import run_operation
from tests.support.tcp_peer import serving

ACKED = int(Outcome.ACKED)
REQUESTS = [kind for kind in Type if kind <= Type.CANCEL]


def payloads(reply) -> list[bytes]:
    return [payload for piece in reply.pieces for payload in piece.payloads()]


def push_body(items, queue="mail", sequence=0) -> bytes:
    return requests.encode_push(requests.PushHead(queue, sequence)) + bytes(Batch.build(items).data)


# what it is for


@on_uvloop
async def test_a_message_goes_in_and_out(tmp_path):
    async with serving(tmp_path) as place:
        peer = await place.peer()

        assert await peer.push_one(b"a") == ("0", 0)
        kind, body = await peer.ask(Type.PUSH, raw=push_body([b"b", b"c"]))
        assert kind == Type.PUSHED
        assert [str(id) for id in answers.decode_pushed("mail", body).ids()] == ["mail/0/1", "mail/0/2"]
        reply = await peer.lease()
        assert payloads(reply) == [b"a", b"b", b"c"]
        assert await peer.ask(Type.SETTLE, requests.Settle(ACKED, lease=reply.nonce)) == (Type.OK, b"\xc0")
        assert (await peer.lease()).count == 0


@on_uvloop
async def test_requests_are_answered_as_they_are_ready_and_not_in_turn(tmp_path):
    async with serving(tmp_path) as place:
        peer = await place.peer()
        await peer.push_one(b"gone")
        await peer.lease()
        waiting = peer.request(Type.LEASE, requests.encode(requests.Lease("mail", wait_seconds=60.0)))
        await until(lambda: place.broker.waiting)

        kind, _ = await peer.ask(Type.PING, raw=b"")
        assert kind == Type.PONG

        pushed = peer.request(Type.PUSH_ONE, requests.encode_push_one(b"mail", 0, b"a"))
        assert {(await peer.next())[1], (await peer.next())[1]} == {waiting, pushed}


@on_uvloop
async def test_a_push_that_is_sent_again_is_stored_once(tmp_path):
    async with serving(tmp_path) as place:
        for _ in range(2):
            peer = await place.peer(hello=False)
            await peer.hello(producer=77, epoch=1)
            assert await peer.push_one(b"a", sequence=1) == ("0", 0)
            _, body = await peer.ask(Type.PUSH, raw=push_body([b"b", b"c"], sequence=2))
            assert [id.offset for id in answers.decode_pushed("mail", body).ids()] == [1, 2]

        assert payloads(await peer.lease()) == [b"a", b"b", b"c"]


@on_uvloop
async def test_every_other_operation_is_a_call(tmp_path):
    async with serving(tmp_path) as place:
        peer = await place.peer()
        assert await peer.ask(Type.CALL, ["create_queue", {"queue": "mail", "options": {"partitions": 2}}]) == (
            Type.OK,
            b"\xc0",
        )

        kind, body = await peer.ask(Type.CALL, ["stats", {"queue": "mail"}])

        assert kind == Type.OK
        assert requests.decode(body, ops.Stats.spec.result).partitions == 2
        assert ops.Stats.spec.result is QueueStats


@on_uvloop
async def test_a_lease_that_is_cancelled_takes_nothing_and_is_not_answered(tmp_path):
    async with serving(tmp_path) as place:
        peer = await place.peer()
        await peer.push_one(b"gone")
        await peer.lease()
        waiting = peer.request(Type.LEASE, requests.encode(requests.Lease("mail", wait_seconds=60.0)))
        await until(lambda: place.broker.waiting)
        peer.request(Type.CANCEL, requests.encode(requests.Cancel(waiting)))
        await until(lambda: not place.broker.waiting)

        await peer.push_one(b"a")
        assert payloads(await peer.lease()) == [b"a"]


# clients that go


@on_uvloop
async def test_a_client_that_vanishes_while_it_waits_leaves_nothing_behind(tmp_path):
    async with serving(tmp_path) as place:
        peer, other = await place.peer(), await place.peer()
        await other.push_one(b"gone")
        await other.lease()
        peer.request(Type.LEASE, requests.encode(requests.Lease("mail", wait_seconds=60.0)))
        await until(lambda: place.broker.waiting)

        peer.writer.transport.abort()
        await until(lambda: not place.broker.waiting)

        await other.push_one(b"a")
        assert payloads(await other.lease()) == [b"a"]


@on_uvloop
async def test_a_client_that_vanishes_in_the_middle_of_a_request_has_asked_for_nothing(tmp_path):
    async with serving(tmp_path) as place:
        whole = frame(Type.PUSH_ONE, 9, requests.encode_push_one(b"mail", 0, b"payload"))
        for length in range(1, len(whole)):
            peer = await place.peer()
            peer.send(whole[:length])
            peer.close()

        other = await place.peer()
        assert await other.push_one(b"a") == ("0", 0)


@on_uvloop
async def test_a_client_that_does_not_read_is_not_read_from(tmp_path):
    async with serving(tmp_path) as place:
        peer, other = await place.peer(), await place.peer()
        await peer.ask(Type.PUSH, raw=push_body([bytes(1 << 18)] * 8))
        name = peer.writer.get_extra_info("sockname")
        (connection,) = [
            each for each in place.server._connections if each._transport.get_extra_info("peername") == name
        ]
        transport: Any = peer.writer.transport
        transport.pause_reading()
        for _ in range(50):
            peer.request(Type.CALL, requests.encode(["read", {"queue": "mail"}]))
        await until(lambda: connection._is_full and not connection._is_reading)

        assert await other.push_one(b"a", b"another") == ("0", 0)
        assert connection._transport.get_write_buffer_size() < 1 << 25

        transport.resume_reading()
        for _ in range(50):
            assert (await peer.next())[0] == Type.OK


@on_uvloop
async def test_whoever_was_accepted_just_before_a_broker_stops_is_let_go(tmp_path):
    async with serving(tmp_path) as place:
        place.server.stop_accepting()
        transport = Mock(spec=asyncio.Transport)
        TcpConnection(place.server).connection_made(transport)

        transport.close.assert_called_once_with()


@on_uvloop
async def test_a_broker_that_stops_says_goodbye_and_answers_what_is_under_way(tmp_path):
    async with serving(tmp_path) as place:
        peer = await place.peer()
        await peer.push_one(b"gone")
        await peer.lease()
        waiting = peer.request(Type.LEASE, requests.encode(requests.Lease("mail", wait_seconds=60.0)))
        await until(lambda: place.broker.waiting)

        place.server.stop_accepting()
        await place.broker.drain()

        assert {(await peer.next())[0], (await peer.next())[0]} == {Type.GOODBYE, Type.LEASED}
        assert waiting
        assert await peer.refused(Type.PUSH, raw=push_body([b"a"])) == "unavailable"


# bad input


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        (Type.PUSH_ONE, b"", "bad_request"),
        (Type.PUSH_ONE, requests.encode_push_one(b"bad name", 0, b""), "invalid_name"),
        (Type.PUSH_ONE, requests.encode_push_one(b"\xff", 0, b""), "bad_request"),
        (Type.PUSH_ONE, requests.encode_push_one(b"mail.dlq", 0, b""), "invalid_name"),
        (Type.PUSH_ONE, requests.encode_push_one(b"mail", 0, bytes(11 << 20)), "too_large"),
        (Type.PUSH, b"", "bad_request"),
        (Type.PUSH, b"\xff\xff\xff\xff", "bad_request"),
        (Type.PUSH, requests.encode_push(requests.PushHead("mail")) + b"not a batch", "bad_batch"),
        (Type.PUSH, push_body([b"a"], queue="bad name"), "invalid_name"),
        (Type.PUSH, push_body([b"a"])[:-1] + b"x", "bad_batch"),
        (Type.LEASE, requests.encode(["nowhere"]), "queue_not_found"),
        (Type.LEASE, requests.encode(["nowhere", "default", 0]), "invalid_field"),
        (Type.LEASE, requests.encode(["nowhere", "default", "many"]), "bad_request"),
        (Type.LEASE, requests.encode(["nowhere", "default", 1, 1e9]), "invalid_field"),
        (Type.LEASE, requests.encode(["nowhere", "bad group"]), "invalid_name"),
        (Type.LEASE, requests.encode({"queue": "mail"}), "bad_request"),
        (Type.SETTLE, requests.encode([5]), "invalid_field"),
        (Type.SETTLE, requests.encode([1, None, "", 12345]), "lease_lost"),
        (Type.SETTLE, requests.encode([1, None, "", 0, [["mail", "0", 0, 1, 5]]]), "lease_lost"),
        (Type.SETTLE, requests.encode([1, None, "", 0, [["mail"]]]), "bad_request"),
        (Type.EXTEND, requests.encode([12345, 5.0]), "lease_lost"),
        (Type.EXTEND, requests.encode([12345, -5.0]), "invalid_field"),
        (Type.CALL, requests.encode(["nope", {}]), "bad_request"),
        (Type.CALL, requests.encode(["stats", {"queue": "nowhere"}]), "queue_not_found"),
        (Type.CALL, requests.encode(["stats", {"queue": 5}]), "invalid_field"),
        (Type.CALL, requests.encode(["stats", {"queue": "mail", "extra": 1}]), "bad_request"),
        (Type.CALL, requests.encode(["read", {"queue": "mail", "timestamp": "yesterday"}]), "invalid_field"),
        (Type.CALL, requests.encode(["create_queue", {"queue": "q", "options": {"partition": 3}}]), "unknown_option"),
        (Type.CALL, requests.encode(["seek", {"queue": "mail", "group": "g", "to": "latest"}]), "queue_not_found"),
        (Type.HELLO, requests.encode([99]), "bad_request"),
    ],
)  # fmt: skip
@on_uvloop
async def test_a_wrong_request_gets_its_error_and_the_connection_goes_on(kind, body, code):
    async with serving(None) as place:
        peer = await place.peer()

        assert await peer.refused(kind, raw=body) == code
        assert (await peer.ask(Type.PING, raw=b""))[0] == Type.PONG


@pytest.mark.parametrize("name", ["execute", "settle_lease"])
@on_uvloop
async def test_a_fault_in_one_request_is_answered_and_the_connection_goes_on(name):
    async with serving(None) as place:
        peer = await place.peer()

        def fail(*_: object) -> None:
            raise RuntimeError("a bug")

        async def fail_later(*_: object) -> None:
            fail()

        setattr(place.broker, name, fail_later if name == "execute" else fail)
        kind, body = (Type.CALL, ["queues", {}]) if name == "execute" else (Type.SETTLE, [ACKED, None, "", 7])
        assert await peer.refused(kind, body) == "internal"
        assert (await peer.ask(Type.PING, raw=b""))[0] == Type.PONG


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\xff" * 16,
        b"\0\0\0\0\0\0\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        frame(200, 1, b""),
        frame(Type.OK, 1, b""),
    ],
)
@pytest.mark.parametrize("hello", [True, False])
@on_uvloop
async def test_what_is_no_request_gets_an_error_and_ends_the_connection(data, hello):
    async with serving(None) as place:
        peer, other = await place.peer(hello=hello), await place.peer()
        peer.send(data)

        assert await peer.farewell() == ("bad_request", True)
        assert await other.push_one(b"a") == ("0", 0)


@on_uvloop
async def test_whoever_does_not_say_hello_first_is_sent_away():
    async with serving(None) as place:
        for kind in REQUESTS[1:]:  # all but HELLO
            peer = await place.peer(hello=False)
            peer.request(kind, b"")
            assert await peer.farewell() == ("bad_request", True)


@on_uvloop
async def test_whoever_does_not_say_hello_in_time_is_sent_away():
    async with serving(None) as place:
        place.server.hello_seconds = 0.01
        good, silent, halfway = await place.peer(), await place.peer(hello=False), await place.peer(hello=False)
        halfway.send(frame(Type.HELLO, 1, requests.encode(requests.Hello(2)))[:-1])

        assert await silent.farewell() == ("bad_request", True)
        assert await halfway.farewell() == ("bad_request", True)
        assert await good.push_one(b"a") == ("0", 0)


@on_uvloop
async def test_a_frame_over_the_limit_is_refused_before_it_is_kept(tmp_path):
    async with serving(tmp_path, frame_bytes_max=1000) as place:
        peer = await place.peer()
        peer.send(frame(Type.PUSH_ONE, 1, bytes(2000))[:9])

        assert await peer.farewell() == ("bad_request", True)


def noise(rng: random.Random) -> bytes:
    """Frames that are wrong in some way: noise, cut short, a bit flipped, a length that lies."""
    body = requests.encode_push_one(b"mail", 0, b"x" * rng.randrange(40))
    bodies = [body, push_body([b"a", b"b"]), requests.encode(["mail"]), rng.randbytes(rng.randrange(60)), b""]
    data = bytearray(frame(rng.choice([*REQUESTS, rng.randrange(256)]), rng.getrandbits(32), rng.choice(bodies)))
    match rng.randrange(4):
        case 0:
            return rng.randbytes(rng.randrange(1, 80))
        case 1:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:
            del data[rng.randrange(len(data)) :]
        case _:
            data[:4] = rng.randbytes(2).rjust(4, b"\0")
    return bytes(data)


@on_uvloop
async def test_no_noise_disturbs_the_broker(tmp_path):
    rng = random.Random(3)
    async with serving(tmp_path) as place:
        good = await place.peer()
        for number in range(dose(ci=400, nightly=5000)):
            peer = await place.peer(hello=rng.random() < 0.8)
            for _ in range(rng.randrange(1, 4)):
                peer.send(noise(rng))
            peer.writer.write_eof()
            async with asyncio.timeout(10):
                while await peer.frame() is not None:
                    pass
            if number % 50 == 0:
                await good.push_one(b"%d" % number, b"good")
        await until(lambda: len(place.server._connections) == 1)

        assert run_operation(place.broker.session, ops.Stats("good"))[0].ready == dose(ci=400, nightly=5000) // 50


@on_uvloop
async def test_two_thousand_connections_at_once_are_all_served(tmp_path):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # both ends of each are in this process
    async with serving(tmp_path) as place:
        peers = await asyncio.gather(*[place.peer() for _ in range(2000)])

        answered = await asyncio.gather(*[peer.push_one(b"a") for peer in peers])

        assert sorted(offset for _, offset in answered) == list(range(2000))
