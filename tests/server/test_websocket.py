"""The WebSocket, over a real one: every message, credit, slow readers, what becomes of leases, bad input."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.batch import Batch
from penstock.broker.events import Listener
from penstock.errors import NotAuthorised
from penstock.server.http.serve import start_http
from penstock.server.http.site import HttpSettings
from penstock.server.websocket.conversation import WebSockets
from tests.support.broker_loop import SOMEONE, broker_on, on_uvloop, until

MESSAGE_BYTES_MAX = 1_000_000


class Talk:
    """A client. What comes is kept by its type until somebody asks for it."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self.kept: list[dict[str, Any]] = []

    async def say(self, type: str, **fields: Any) -> None:
        await self.link.send(json.dumps({"type": type, **fields}))

    async def hear(self, type: str) -> dict[str, Any]:
        for index, known in enumerate(self.kept):
            if known["type"] == type:
                return self.kept.pop(index)
        while True:
            message: dict[str, Any] = json.loads(await self.link.recv())
            if message["type"] == type:
                return message
            self.kept.append(message)

    async def ask(self, type: str, answer: str, **fields: Any) -> dict[str, Any]:
        await self.say(type, **fields)
        return await self.hear(answer)

    async def refusal(self, type: str, **fields: Any) -> tuple[Any, str]:
        error = await self.ask(type, "error", **fields)
        return error["id"], error["error"]["code"]


@asynccontextmanager
async def serving(origins=(), **options):
    """A broker behind a WebSocket: (broker, sockets, how to connect)."""
    async with broker_on(**options) as broker:
        sockets = WebSockets(broker)
        settings = HttpSettings(port=0, cors_origins=tuple(origins), request_bytes_max=MESSAGE_BYTES_MAX)
        server = await start_http(broker, settings, stream=sockets.serve)
        url = f"ws://127.0.0.1:{server.port}/api/v1/stream"

        @asynccontextmanager
        async def talk(**how):
            async with connect(url, **how) as link:
                yield Talk(link)

        talk.url = url  # type: ignore[attr-defined]
        try:
            yield broker, sockets, talk
        finally:
            await sockets.close()
            await server.close()


async def push(broker, queue, *payloads):
    await broker.pushed(SOMEONE, queue, Batch.build(list(payloads)))


def payloads(delivery):
    return [base64.b64decode(message["payload_base64"]) for message in delivery["messages"]]


@on_uvloop
async def test_messages_are_pushed_delivered_within_the_credit_and_acknowledged_on_one_socket():
    async with serving() as (broker, _, talk), talk() as client:
        pushed = await client.ask(
            "push", "pushed", id=1, queue="q", messages=[{"payload": {"n": n}, "key": "k"} for n in range(5)]
        )
        opened = await client.ask("subscribe", "subscribed", id="a", subscription="s", queue="q", credit=2)
        first = await client.hear("delivery")
        receipts = [message["receipt"] for message in first["messages"]]
        settled = await client.ask("ack", "settled", id=2, receipts=receipts)

        assert [result["status"] for result in pushed["results"]] == ["queued"] * 5
        assert (pushed["id"], opened["id"], opened["subscription"]) == (1, "a", "s")
        assert [message["payload"] for message in first["messages"]] == [{"n": 0}, {"n": 1}]
        assert first["messages"][0]["key"] == "k"
        assert [result["status"] for result in settled["results"]] == ["ok", "ok"]

        await client.ask("ping", "pong", id=3)  # nothing came in between: there is no credit
        assert client.kept == []
        await client.say("credit", subscription="s", messages=100)
        rest = await client.hear("delivery")
        await client.ask("ack", "settled", lease_id=rest["lease_id"])

        assert len(rest["messages"]) == 3
        assert broker.shard.core.by_name["q"].groups[0].backlog == 0


@on_uvloop
async def test_every_way_to_settle():
    async with serving() as (broker, _, talk), talk() as client:
        await push(broker, "q", *[b"%d" % n for n in range(6)])
        await client.say("subscribe", subscription="s", queue="q", credit=6, lease_ms=60_000)
        proofs = [message["receipt"] for message in (await client.hear("delivery"))["messages"]]

        results = [
            await client.ask("nack", "settled", receipts=[proofs[0]], delay_ms=60_000, error="no"),
            await client.ask("reject", "settled", receipts=[proofs[1]], reason="bad"),
            await client.ask("release", "settled", receipts=[proofs[2]]),
            await client.ask("snooze", "settled", receipts=[proofs[3]], delay_ms=60_000),
            await client.ask("extend", "extended", receipts=[proofs[4], "q:0:0:1:00000000000000ff"], lease_ms=90_000),
        ]
        again = await client.ask("ack", "settled", receipts=[proofs[0], proofs[5]])

        assert [result["results"][0]["status"] for result in results[:4]] == ["ok"] * 4
        assert [result["status"] for result in again["results"]] == ["error", "ok"]
        assert again["results"][0]["error"]["code"] == "lease_lost"


@on_uvloop
async def test_several_subscriptions_share_a_socket_and_end_by_themselves():
    async with serving() as (broker, _, talk), talk() as client:
        await push(broker, "a", b"a")
        await push(broker, "b", b"b")
        await client.say("subscribe", subscription="one", queue="a", credit=10)
        await client.say("subscribe", subscription="two", queue="b", credit=10, group="g", start="earliest", batch=1)
        heard = {}
        for _ in range(2):
            delivery = await client.hear("delivery")
            heard[delivery["subscription"]] = payloads(delivery)
        await client.ask("unsubscribe", "unsubscribed", subscription="one")
        reply = await broker.leased(SOMEONE, "a", "default", _one())

        assert heard == {"one": [b"a"], "two": [b"b"]}
        assert reply.pieces[0].attempt(0) == 1  # given back, not counted
        assert await client.refusal("unsubscribe", id=9, subscription="one") == (9, "invalid_field")
        assert await client.refusal("subscribe", id=8, subscription="two", queue="a") == (8, "invalid_field")


@on_uvloop
async def test_a_subscription_to_a_group_that_is_not_there_is_refused():
    async with serving() as (broker, _, talk), talk() as client:
        await push(broker, "a", b"a")
        await client.say("subscribe", subscription="one", queue="a", credit=10, group="g")

        refused = await client.hear("error")
        assert (refused["subscription"], refused["error"]["code"]) == ("one", "group_not_found")


def _one():
    from penstock.requests import LeaseRequest

    return LeaseRequest(10)


@on_uvloop
async def test_a_socket_that_breaks_gives_its_leases_back_without_counting_an_attempt():
    async with serving() as (broker, _, talk):
        await push(broker, "q", b"a", b"b")
        async with talk() as client:
            await client.say("subscribe", subscription="s", queue="q", credit=2)
            await client.hear("delivery")
            client.link.transport.abort()
        async with talk() as client:
            await client.say("subscribe", subscription="s", queue="q", credit=2)
            again = await client.hear("delivery")

            assert [message["attempt"] for message in again["messages"]] == [1, 1]


@on_uvloop
async def test_a_reader_that_does_not_read_is_given_no_more_than_its_outbox_holds():
    async with serving() as (broker, sockets, talk):
        noise = random.Random(7).randbytes(10_000)  # sockets compress: zeros would all fit into the first buffer
        await push(broker, "q", *[noise[n:] + noise[:n] for n in range(1500)])
        async with talk(max_queue=1, compression=None) as client:
            await client.say("subscribe", subscription="s", queue="q", credit=1500, batch=10, lease_ms=600_000)
            await until(lambda: any(each._outbox.is_full for each in sockets._open))
            for _ in range(200):
                await asyncio.sleep(0)
            leased = sum(lease.count for lease in broker.shard.core.leases.values())

            assert 0 < leased < 1400
            assert sum(each._outbox._bytes for each in sockets._open) < 2 * 2**20

            seen = 0
            while seen < 1500:  # and when it reads at last, everything comes
                seen += len((await client.hear("delivery"))["messages"])


@on_uvloop
async def test_a_delivery_that_is_large_comes_in_parts():
    async with serving() as (broker, _, talk), talk() as client:
        await push(broker, "q", *[bytes([n]) * 200_000 for n in range(8)])
        await client.say("subscribe", subscription="s", queue="q", credit=8)
        heard: list[bytes] = []
        parts = 0
        while len(heard) < 8:
            delivery = await client.hear("delivery")
            heard += payloads(delivery)
            parts += 1

        assert [payload[0] for payload in heard] == list(range(8))
        assert parts >= 4


@on_uvloop
async def test_live_events_tell_of_changes_and_counters():
    async with serving() as (broker, _, talk), talk() as client:
        await client.ask("events", "subscribed", subscription="e", interval_ms=100)
        await push(broker, "q", b"a")
        heard: list[dict[str, Any]] = []
        while not any(event.get("counters") for event in heard) or not any(e["event"] == "created" for e in heard):
            heard.append(await client.hear("event"))
        counters = next(event["counters"] for event in heard if event.get("counters"))
        created = next(event for event in heard if event["event"] == "created")

        assert (counters[0]["name"], counters[0]["groups"]["default"]["ready"]) == ("q", 1)
        assert (created["queue"], created["subscription"]) == ("q", "e")
        await client.ask("unsubscribe", "unsubscribed", subscription="e")
        assert not broker.events._listeners


@on_uvloop
async def test_bad_messages_are_answered_and_the_socket_goes_on():
    async with serving() as (_, _, talk), talk() as client:

        async def raw(data):
            await client.link.send(data)
            error = await client.hear("error")
            return error["id"], error["error"]["code"]

        assert await raw("no json") == (None, "bad_request")
        assert await raw(b"bytes") == (None, "bad_request")
        assert await raw("[]") == (None, "invalid_field")
        assert await raw('{"type":"dance","id":4}') == (4, "invalid_field")
        assert await raw('{"type":"push","id":' + "[" * 100_000) == (None, "invalid_field")
        assert await client.refusal("ack", id=5) == (5, "invalid_field")
        assert await client.refusal("ack", id=5, receipts=["nonsense"]) == (5, "bad_receipt")
        assert await client.refusal("ack", id=5, lease_id="00000000000000ff") == (5, "lease_lost")
        assert await client.refusal("push", id=6, queue="no name", messages=[{"payload": 1}]) == (6, "invalid_name")
        assert await client.refusal("push", id=6, queue="q", messages=[{}]) == (6, "invalid_field")
        assert await client.refusal("push", id=6, queue="q", messages=[{"payload_base64": "*"}]) == (6, "invalid_field")
        assert await client.refusal("subscribe", id=7, subscription="s", queue="q", colour=1) == (7, "invalid_field")
        assert await client.refusal("credit", id=7, subscription="s", messages=1) == (7, "invalid_field")
        assert await client.refusal("credit", id=7, subscription="s", messages=0) == (7, "invalid_field")
        assert await client.refusal("events", id=8, subscription="e", interval_ms=1) == (8, "invalid_field")
        await client.say("subscribe", id=9, subscription="s", queue="none", credit=1)
        ended = await client.hear("error")
        assert (ended["subscription"], ended["error"]["code"]) == ("s", "queue_not_found")
        assert (await client.ask("ping", "pong", id=10))["id"] == 10


@on_uvloop
async def test_a_message_that_is_too_large_closes_the_socket():
    async with serving() as (_, _, talk), talk() as client:
        await client.link.send("x" * (MESSAGE_BYTES_MAX + 1))
        with pytest.raises(ConnectionClosed) as caught:
            await client.link.recv()

        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


@on_uvloop
async def test_pages_of_other_origins_are_refused():
    async with serving(["https://fine.example"]) as (_, _, talk):
        with pytest.raises(InvalidStatus):
            async with talk(origin="https://evil.example"):
                pass
        async with talk(origin="https://fine.example") as client:
            await client.ask("ping", "pong")


@on_uvloop
async def test_whoever_may_not_is_refused():
    def nobody(principal, action, queue):
        raise NotAuthorised(f"{principal.name} may not {action}")

    async with serving(authorise=nobody) as (_, _, talk), talk() as client:
        denied = (1, "not_authorised")

        assert await client.refusal("subscribe", id=1, subscription="s", queue="q") == denied
        assert await client.refusal("events", id=1, subscription="s") == denied
        assert await client.refusal("push", id=1, queue="q", messages=[{"payload": 1}]) == denied


@on_uvloop
async def test_a_broker_that_stops_says_goodbye_and_still_takes_acks():
    async with serving() as (broker, sockets, talk), talk() as client:
        await push(broker, "q", b"a")
        await client.say("subscribe", subscription="s", queue="q", credit=1)
        delivery = await client.hear("delivery")
        sockets.goodbye()
        await broker.drain()
        await client.hear("goodbye")
        settled = await client.ask("ack", "settled", lease_id=delivery["lease_id"])

        assert settled["results"][0]["status"] == "ok"
        assert await client.refusal("push", id=1, queue="q", messages=[{"payload": 1}]) == (1, "unavailable")


@on_uvloop
async def test_no_event_arrives_before_its_subscription_is_confirmed(monkeypatch):
    async with serving() as (broker, _, talk), talk() as client:
        ready: list[Any] = []
        monkeypatch.setattr(Listener, "when_ready", lambda listener, reported: ready.append((listener, reported)))
        await client.say("events", subscription="e", interval_ms=100, id=1)
        await until(lambda: ready)
        listener, reported = ready[0]
        offered = []
        offer = listener.offer
        monkeypatch.setattr(Listener, "offer", lambda each, event: offered.append(offer(event)))
        await push(broker, "mail", b"a")
        await until(lambda: offered)
        for _ in range(10):  # turns in which it would go out
            await asyncio.sleep(0)
        reported()

        first, second = [json.loads(await client.link.recv()) for _ in range(2)]
        assert (first["type"], first["id"]) == ("subscribed", 1)
        assert second["subscription"] == "e"


@on_uvloop
async def test_a_subscription_to_several_queues_delivers_from_each():
    async with serving() as (broker, _, talk), talk() as client:
        await push(broker, "shop.a", b"1")
        await client.ask("subscribe", "subscribed", subscription="s", queues=["shop.*"], credit=10)
        first = await client.hear("delivery")
        await push(broker, "shop.new", b"2")
        second = await client.hear("delivery")
        refused = await client.ask("subscribe", "error", subscription="t", queue="a", queues=["b"])

        assert [first["messages"][0]["id"], second["messages"][0]["id"]] == ["shop.a/0/0", "shop.new/0/0"]
        assert "queue" in refused["error"]["message"]


@on_uvloop
async def test_a_push_that_skips_says_of_each_message_what_became_of_it():
    async with serving() as (_, _, talk), talk() as client:
        messages = [{"payload": 1}, {"payload": 2, "priority": 999}, {"payload": 3}]
        pushed = await client.ask("push", "pushed", id=1, queue="q", messages=messages, on_error="skip")
        refused = await client.ask("push", "error", id=2, queue="q", messages=messages, on_error="fail")
        wrong = await client.ask("push", "error", id=3, queue="q", messages=messages[:1], on_error="later")

        assert [result["status"] for result in pushed["results"]] == ["queued", "failed", "queued"]
        assert "priority" in pushed["results"][1]["error"]["message"]
        assert refused["error"]["code"] == "invalid_field"
        assert "on_error" in wrong["error"]["message"]
