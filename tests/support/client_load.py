"""Producers and consumers of every kind, in threads and tasks, against one address; each notes what it was told.

Messages of `jobs` are done by the group `default`, in several ways; some of them have a result, which is pushed in the
transaction that settles the job. Consumers that speak frames read both queues for the group `other`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import penstock
import penstock.aio
from penstock.client.handles import AsyncPenstock, Penstock
from penstock.client.values import BaseDelivery
from penstock.model import Message, Outcome
from penstock.replies import LeaseReply
from penstock.wire.answers import decode_leased
from penstock.wire.frames import Type
from penstock.wire.requests import Lease, encode
from penstock.wire.requests import Settle as SettleOnWire
from tests.simulation.history import OK, UNKNOWN, Got, History, Place, Row, Sent, Settle
from tests.support.broker_process import Caller
from tests.support.recorded import Record, place_of, sent

JOBS, RESULTS = "jobs", "results"
RESULT_OF = b"result of "
GROUPS = {JOBS: ("default", "other"), RESULTS: ("default", "other")}
RULES: dict[str, Any] = {"partitions": 3, "max_attempts": 1000, "backoff_base_seconds": 0.0, "lease_seconds": 60.0}
WAIT_SECONDS = 0.2
TIMEOUT_SECONDS = 100.0
PATIENT: dict[str, Any] = {"timeout": TIMEOUT_SECONDS, "connect_seconds": TIMEOUT_SECONDS}


def record() -> Record:
    """A record that knows who reads what."""
    made = Record(JOBS, RESULTS)
    for queue, groups in GROUPS.items():
        made.history.queues[queue]["groups"] = groups
    return made


def prepare(url: str) -> None:
    """The queues and groups."""
    with penstock.connect(url) as ps:
        for name, groups in GROUPS.items():
            queue = ps.create_queue(name, exist_ok=True, **RULES)
            for group in groups[1:]:
                queue.create_group(group)


class Broker(Protocol):
    """Where to find one. `up` is set while it listens."""

    up: threading.Event

    @property
    def url(self) -> str: ...

    @property
    def port(self) -> int: ...


class Crowd:
    """Everybody together. `stop` ends the producers first, and the consumers when the broker can be asked."""

    def __init__(self, broker: Broker, record: Record) -> None:
        self._broker = broker
        self._record = record
        self._over = threading.Event()
        self._numbers = count()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        blocking: list[tuple[str, Callable[[str, Penstock], None], dict[str, Any]]] = [
            ("single", self._push_singly, {}),
            ("single named", self._push_singly, {"producer": "somebody"}),
            ("impatient", self._push_singly, {"timeout": 0.3}),
            ("many", self._push_many, {}),
            ("keyed", self._push_with_options, {}),
            ("acks", self._lease_and_ack, {}),
            ("stage", self._transform, {}),
            ("consume", self._consume, {}),
        ]
        for name, work, options in blocking:
            self._thread(name, self._with_client, work, PATIENT | options)
        self._thread("lingering", self._linger)
        self._thread("asyncio", self._on_a_loop)
        for queue in (JOBS, RESULTS):
            self._thread(f"reader of {queue}", self._read, queue)

    def stop(self) -> None:
        """Have everybody finish; the broker must be up."""
        self._over.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
            assert not thread.is_alive(), f"{thread.name} hangs"
        self._record.raise_failure()

    def _thread(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                work(name, *arguments)
            except BaseException as error:  # noqa: BLE001 - told by whoever waits for the thread
                self._record.failed(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _with_client(self, name: str, work: Callable[[str, Penstock], None], options: dict[str, Any]) -> None:
        with penstock.connect(self._broker.url, client=name.replace(" ", "-"), **options) as ps:
            while not self._over.is_set():
                work(name, ps)

    def _payloads(self, name: str, many: int) -> list[bytes]:
        return [f"{name} {next(self._numbers)}".encode() for _ in range(many)]

    # producers, threads

    def _push_singly(self, name: str, ps: Penstock) -> None:
        (payload,) = self._payloads(name, 1)
        with self._record.doing(name, "push", pushes=[(JOBS, sent(payload))]) as row:
            row.result = [[place_of(ps.queue(JOBS).push(payload))]]

    def _push_many(self, name: str, ps: Penstock) -> None:
        payloads = self._payloads(name, 7)
        with self._record.doing(name, "push", pushes=[(JOBS, sent(*payloads))]) as row:
            row.result = [[place_of(id) for id in ps.queue(JOBS).push_many(payloads).ids]]

    def _push_with_options(self, name: str, ps: Penstock) -> None:
        """Messages with a key and headers, some pushed alone and some together."""
        made = [Sent(payload, f"key {number % 3}") for number, payload in enumerate(self._payloads(name, 4))]
        with self._record.doing(name, "push", pushes=[(JOBS, made[:1])]) as row:
            row.result = [[place_of(ps.queue(JOBS).push(made[0].payload, key=made[0].key, headers=headers(made[0])))]]
        messages = [Message(payload=each.payload, key=each.key, headers=headers(each)) for each in made[1:]]
        with self._record.doing(name, "push", pushes=[(JOBS, made[1:])]) as row:
            row.result = [[place_of(id) for id in ps.queue(JOBS).push_many(messages).ids]]

    def _linger(self, name: str) -> None:
        with penstock.connect(self._broker.url, linger_ms=2, **PATIENT) as ps:

            def push(own: str) -> None:
                while not self._over.is_set():
                    self._push_singly(own, ps)

            for number in range(4):
                self._thread(f"{name} {number}", push)
            self._over.wait()

    # consumers, threads

    def _lease_and_ack(self, name: str, ps: Penstock) -> None:
        with self._leasing(name, JOBS) as row:
            leased = ps.queue(JOBS).lease(10, wait=WAIT_SECONDS)
            row.result = [got(each) for each in leased]
        if row.outcome != OK:
            return
        for delivery in leased:
            how = "nack" if delivery.offset % 5 == 0 and delivery.attempt == 1 else "ack"
            with self._settling(name, how, delivery):
                delivery.ack() if how == "ack" else delivery.nack(delay=0)

    def _transform(self, name: str, ps: Penstock) -> None:
        with self._leasing(name, JOBS) as row:
            leased = ps.queue(JOBS).lease(3, wait=WAIT_SECONDS)
            row.result = [got(each) for each in leased]
        if row.outcome != OK or not leased:
            return
        # A job whose lease was lost is done again, perhaps beside other jobs: each try has results of its own.
        payloads = [b"%d: %s%s" % (next(self._numbers), RESULT_OF, each.payload) for each in leased]
        settles = [Settle(got(each), "default", "ack") for each in leased]
        pushes = [(RESULTS, sent(payload)) for payload in payloads]
        with self._record.doing(name, "transact", pushes=pushes, settles=settles) as row:
            with ps.transaction() as tx:
                for delivery, payload in zip(leased, payloads, strict=True):
                    tx.ack(delivery)
                    tx.push(RESULTS, payload)
            row.result = [[place_of(id) for id in ids] for ids in tx.ids]

    def _consume(self, name: str, ps: Penstock) -> None:
        for delivery in ps.queue(RESULTS).consume(batch=5, stop=self._over):
            self._delivered(name, RESULTS, "default", got(delivery))

    # on an event loop

    def _on_a_loop(self, name: str) -> None:
        asyncio.run(self._all_tasks(name))

    async def _all_tasks(self, name: str) -> None:
        plain = penstock.aio.connect(self._broker.url, **PATIENT)
        lingering = penstock.aio.connect(self._broker.url, linger_ms=1, **PATIENT)
        async with plain as ps, lingering as slow, asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(self._repeat(self._push_async, f"{name} {number}", ps))
                group.create_task(self._repeat(self._push_async, f"{name} lingering {number}", slow))
            group.create_task(self._repeat(self._push_many_async, f"{name} many", ps))
            group.create_task(self._repeat(self._lease_async, f"{name} acks", ps))

    async def _repeat(self, work: Callable[[str, AsyncPenstock], Any], name: str, ps: AsyncPenstock) -> None:
        while not self._over.is_set():
            await work(name, ps)

    async def _push_async(self, name: str, ps: AsyncPenstock) -> None:
        (payload,) = self._payloads(name, 1)
        with self._record.doing(name, "push", pushes=[(JOBS, sent(payload))]) as row:
            row.result = [[place_of(await ps.queue(JOBS).push(payload))]]

    async def _push_many_async(self, name: str, ps: AsyncPenstock) -> None:
        payloads = self._payloads(name, 5)
        with self._record.doing(name, "push", pushes=[(JOBS, sent(*payloads))]) as row:
            row.result = [[place_of(id) for id in (await ps.queue(JOBS).push_many(payloads)).ids]]

    async def _lease_async(self, name: str, ps: AsyncPenstock) -> None:
        with self._leasing(name, JOBS) as row:
            leased = await ps.queue(JOBS).lease(50, wait=WAIT_SECONDS)
            row.result = [got(each) for each in leased]
        if row.outcome == OK and leased:
            settles = [Settle(got(each), "default", "ack") for each in leased]
            with self._record.doing(name, "settle", settles=settles):
                await leased.ack()

    # frames, the next lease asked for before the last is known to be settled

    def _read(self, name: str, queue: str) -> None:
        while not self._over.is_set():
            if not self._broker.up.wait(WAIT_SECONDS):
                continue
            with suppress(ConnectionError), Caller(self._broker.port) as caller:
                self._read_frames(name, queue, caller)

    def _read_frames(self, name: str, queue: str, caller: Caller) -> None:
        lease = encode(Lease(queue, "other", 10, WAIT_SECONDS))
        asked = caller.send(Type.LEASE, lease)
        settles: dict[int, Row] = {}
        while settles or asked:
            if not caller.has_more(WAIT_SECONDS):
                continue
            kind, correlation, body = caller.receive()
            if correlation in settles:
                self._record.completed(settles.pop(correlation), OK if kind == Type.OK else UNKNOWN)
            elif kind == Type.LEASED:
                reply = decode_leased(memoryview(body))
                found = [*gots(reply)]
                for each in found:
                    self._delivered(name, queue, "other", each)
                if found:
                    args = {"settles": [Settle(each, "other", "ack") for each in found]}
                    settle = caller.send(Type.SETTLE, encode(SettleOnWire(int(Outcome.ACKED), lease=reply.nonce)))
                    settles[settle] = self._record.begun(name, "settle", **args)
                asked = 0 if self._over.is_set() else caller.send(Type.LEASE, lease)
            elif correlation == asked:  # refused: the broker is stopping
                asked = 0

    # notes

    def _leasing(self, name: str, queue: str) -> Any:
        return self._record.doing(name, "lease", queue=queue, group="default", auto_ack=False, asked=True)

    def _settling(self, name: str, how: str, delivery: BaseDelivery) -> Any:
        return self._record.doing(name, "settle", settles=[Settle(got(delivery), "default", how)])

    def _delivered(self, name: str, queue: str, group: str, one: Got) -> None:
        """A delivery that came by itself: when it was leased is not known."""
        with self._record.doing(name, "lease", queue=queue, group=group, auto_ack=False, asked=False) as row:
            row.result = [one]


def headers(message: Sent) -> dict[str, str]:
    """What a message with a key has beside it: its payload once more."""
    return {"payload": message.payload.decode()}


def got(delivery: BaseDelivery) -> Got:
    """A delivery; what it says about itself agrees."""
    proof = delivery.proof
    assert delivery.id == proof[:3]
    found = Got(Place(*delivery.id), proof.attempt, delivery.payload, proof.nonce, 0, delivery.key)
    check_headers(found, delivery.headers)
    return found


def check_headers(found: Got, given: dict[str, str]) -> None:
    right = {} if found.key is None else headers(Sent(found.payload))
    assert given == right, f"{found} has the headers {given}"


def gots(reply: LeaseReply) -> Iterator[Got]:
    for piece in reply.pieces:
        for index, payload in enumerate(piece.payloads()):
            place, row = Place(reply.queue, piece.partition(index), piece.offsets[index]), piece.row(index)
            found = Got(place, piece.attempt(index), payload, reply.nonce, 0, piece.batch.key(row))
            check_headers(found, piece.batch.headers(row) or {})
            yield found


def one_result(history: History) -> Iterator[str]:
    """The result is pushed by the transaction that settles the job: a job is settled once, and has one result."""
    pushed = [payload for row in history.of("read") for place, payload, *_ in row.result if place.queue == RESULTS]
    for job, times in Counter(payload.partition(RESULT_OF)[2] for payload in pushed).items():
        if times > 1:
            yield f"{job!r} has {times} results"


def drain(url: str, record: Record) -> None:
    """Do what is left in every group, and read everything that was ever pushed."""
    with penstock.connect(url) as ps:
        for name, groups in GROUPS.items():
            for group in groups:
                _finish(ps, name, group, record)
            _look_through(ps, name, record)
            with record.doing("end", "stats", drained=True) as row:
                row.result = ps.queue(name).stats()


def _finish(ps: Penstock, name: str, group: str, record: Record) -> None:
    while True:
        with record.doing("end", "lease", queue=name, group=group, auto_ack=False, asked=True) as row:
            leased = ps.queue(name).lease(1000, wait=WAIT_SECONDS, group=group)
            row.result = [got(each) for each in leased]
        if leased:
            with record.doing("end", "settle", settles=[Settle(each, group, "ack") for each in row.result]):
                leased.ack()
        account = ps.queue(name).stats().groups[group]
        if not (account.ready or account.leased or account.waiting):
            return


def _look_through(ps: Penstock, name: str, record: Record) -> None:
    for lag in ps.queue(name).groups()["default"]:
        offset = 0
        while True:
            with record.doing("end", "read", queue=name) as row:
                found = ps.queue(name).read(partition=lag.partition, offset=offset, limit=1000)
                row.result = [(place_of(each.id), each.payload) for each in found if each.id is not None]
            if not found:
                break
            offset += len(found)
