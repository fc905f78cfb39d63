"""The cluster table: a shard in PostgreSQL beside the same server used directly, and how soon somebody else serves.

The server is the benchmark's own, on a real disk, with fsync on and what else PostgreSQL sets by itself. Whatever is
compared takes turns within a round, over the same kind of connection and with the same durability; a ratio is printed
with its spread over the rounds. CPU time is that of everybody at work: client, node and all processes of the server.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
import psycopg

import penstock
from bench.measure import Row, Scale, per_second, rounds_of, spread
from penstock.embedded.session import Session
from penstock.postgres.store import PostgresStore
from tests.support.nodes import NodeProcess
from tests.support.postgres import PostgresServer

BATCH = 1_000
PAYLOAD = os.urandom(50).hex().encode()  # 100 bytes
CONCURRENT = 64
ROUNDS = 15
QUIET = ("--http-port", "off", "--grpc-port", "off")
TABLE = "CREATE TABLE IF NOT EXISTS messages (id bigserial PRIMARY KEY, payload bytea NOT NULL, lease bigint)"
INSERT = "INSERT INTO messages (payload) SELECT unnest(%b::bytea[])"
NEXT = "SELECT id FROM messages WHERE lease IS NULL ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1000"


@contextmanager
def server() -> Iterator[PostgresServer]:
    """A server on a real disk."""
    os.environ.pop("PYTEST_DEBUG_TEMPROOT", None)
    made = PostgresServer(shared_buffers="256MB", max_wal_size="4GB", checkpoint_timeout="1h", autovacuum="on")
    try:
        yield made
    finally:
        made.close()


class Rig:
    """A node in a process of its own, a client of it, and a connection that uses the same server directly."""

    def __init__(self, made: PostgresServer, node: NodeProcess, raw_url: str) -> None:
        self.made = made
        self.node = node
        self.raw_url = raw_url
        self.ps = penstock.connect(node.url())
        self.connection = psycopg.connect(raw_url, autocommit=True)
        self.connection.execute(TABLE)
        self.ended_cpu = 0.0  # of backends that have ended

    def close(self) -> None:
        self.ps.close()
        self.connection.close()

    def cpu_seconds(self) -> float:
        """Of this process, the node and the server, until now."""
        postmaster = psutil.Process(self.made.pid())
        processes = [psutil.Process(), psutil.Process(self.node.process.pid), postmaster, *postmaster.children()]
        return self.ended_cpu + sum(_cpu_seconds(process.pid) for process in processes)

    def measured(self, count: int, work: Callable[[], object], cpu: list[float]) -> Callable[[], float]:
        """The rate of some work; the CPU time of one of the `count` things is added to `cpu`, in milliseconds."""

        def accounted() -> None:
            before = self.cpu_seconds()
            work()
            cpu.append((self.cpu_seconds() - before) / count * 1000)

        return lambda: per_second(count, accounted)


def _cpu_seconds(pid: int) -> float:
    """Of the threads of a process. What psutil says is in hundredths of a second: too coarse for one round."""
    nanoseconds = 0
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


@contextmanager
def broker() -> Iterator[Rig]:
    """A node on a new server."""
    with server() as made, tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        node = NodeProcess(made.new_database(), "a", Path(name), *QUIET)
        try:
            rig = Rig(made, node, made.new_database())
            try:
                yield rig
            finally:
                rig.close()
        finally:
            node.close()


def compared(what: str, ours: list[float], raw: list[float], raw_what: str, least: float | None = None) -> Row:
    """A row of rates: medians, and the spread of their ratio over the rounds."""
    value, limit = median(ours), median(raw)
    raw_what = f"{raw_what}; {spread(ours, raw)} ×"
    if least is None:
        return Row(what, value, "msg/s", limit, raw_what)
    return Row(what, value, "msg/s", limit, raw_what, least * limit, f"≥ {least:g} ×")


def copied(connection: psycopg.Connection[Any], count: int) -> None:
    """Batches of messages as rows, by COPY, each in a transaction of its own."""
    for _ in range(count // BATCH):
        with connection.cursor() as cursor, cursor.copy("COPY messages (payload) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["bytea"])
            for _ in range(BATCH):
                copy.write_row((PAYLOAD,))


def inserted(connection: psycopg.Connection[Any], count: int, rows: int = BATCH) -> None:
    """The same by INSERT of many rows."""
    for _ in range(count // rows):
        connection.execute(INSERT, ([PAYLOAD] * rows,))


def pushed(queue: penstock.Queue, count: int) -> None:
    """The same into a queue."""
    for _ in range(count // BATCH):
        queue.push_many([PAYLOAD] * BATCH)


def bulk(scale: Scale) -> list[Row]:
    """Batches of 1,000 × 100 B: over TCP into a queue, and directly as rows."""
    count = max(BATCH, scale(20_000))
    with broker() as rig:
        queue, ours_ms, raw_ms = rig.ps.queue("bulk"), list[float](), list[float]()
        ours, copy, insert = rounds_of(
            rig.measured(count, lambda: pushed(queue, count), ours_ms),
            lambda: per_second(count, lambda: copied(rig.connection, count)),
            rig.measured(count, lambda: inserted(rig.connection, count), raw_ms),
            rounds=ROUNDS,
        )
    raw, how = max((copy, "COPY"), (insert, "multi-row INSERT"), key=lambda pair: median(pair[0]))
    cpu, raw_cpu = median(ours_ms) * BATCH, median(raw_ms) * BATCH
    return [
        compared("push 1,000 × 100 B over TCP", ours, raw, f"{how} of the same rows", 2),
        Row("the same, CPU time per 1,000", cpu, "ms", raw_cpu, f"multi-row INSERT; {spread(ours_ms, raw_ms)} ×"),
    ]


def wal(scale: Scale) -> list[Row]:
    """Bytes of PostgreSQL's log per byte of messages. Pages that are new have no full-page images."""
    count = scale(100_000)
    sql = "SELECT pg_current_wal_insert_lsn() - '0/0'"
    with broker() as rig:
        queue = rig.ps.queue("bulk")
        queue.push_many([PAYLOAD] * BATCH)
        rig.connection.execute("CHECKPOINT")
        queue.push_many([PAYLOAD] * BATCH)  # the pages that are written to now had their images

        def position() -> int:
            row = rig.connection.execute(sql).fetchone()
            assert row is not None
            return int(row[0])

        before, size = position(), queue.stats().bytes_stored
        pushed(queue, count)
        ratio = (position() - before) / (queue.stats().bytes_stored - size)
    return [Row("WAL per byte stored, in bulk", ratio, "×", None, "", 1.15, "≤ 1.15", True)]


def singles(scale: Scale) -> list[Row]:
    """One message at a time. What PostgreSQL itself needs for a commit is between the bare disk and us."""
    count = scale(300)
    with broker() as rig:
        queue, ours_ms, raw_ms = rig.ps.queue("single"), list[float](), list[float]()

        def push() -> None:
            for _ in range(count):
                queue.push(PAYLOAD)

        ours, row, bare = rounds_of(
            rig.measured(count, push, ours_ms),
            rig.measured(count, lambda: committed(rig.connection, count), raw_ms),
            lambda: per_second(count, lambda: synced(rig.made.directory, count)),
            rounds=ROUNDS,
        )
    libpq = "a row and a commit each, by libpq"
    cpu = f"{libpq}; {spread(ours_ms, raw_ms)} ×"
    return [
        compared("push one at a time over TCP", ours, bare, "write + fdatasync", 0.7),
        compared("the same", ours, row, libpq),
        compared(f"PostgreSQL: {libpq}", row, bare, "write + fdatasync"),
        Row("push one at a time, CPU time", median(ours_ms), "ms", median(raw_ms), cpu),
    ]


def committed(connection: psycopg.Connection[Any], count: int) -> None:
    """The least that PostgreSQL does to store one message and return its id: a prepared statement, no driver around."""
    conn, name = connection.pgconn, b"one"
    if connection.execute("SELECT 1 FROM pg_prepared_statements WHERE name = 'one'").fetchone() is None:
        conn.prepare(name, b"INSERT INTO messages (payload) VALUES ($1) RETURNING id")
    for _ in range(count):
        result = conn.exec_prepared(name, [PAYLOAD], [1], 1)
        assert result.ntuples == 1


def synced(directory: Path, count: int) -> None:
    """The bare disk: a write and an fdatasync each."""
    with tempfile.TemporaryFile(dir=directory.parent) as file:
        os.posix_fallocate(file.fileno(), 0, count * 256)
        for number in range(count):
            os.pwrite(file.fileno(), bytes(256), number * 256)
            os.fdatasync(file.fileno())


def together(scale: Scale) -> list[Row]:
    """64 callers who push one message after the other, each waiting for its own to be durable.

    Our client gathers those of one turn of its event loop, with and without `linger_ms`, as the client of PostgreSQL
    does; with `batch_max=1` it sends each by itself.
    """
    count = scale(6_400)
    with broker() as rig:
        ours_ms, single_ms, raw_ms = list[float](), list[float](), list[float]()
        url = rig.node.url()
        ours, lingering, single, gathered, plain = rounds_of(
            rig.measured(count, lambda: asyncio.run(concurrent(url, count)), ours_ms),
            lambda: per_second(count, lambda: asyncio.run(concurrent(url, count, linger_ms=1))),
            rig.measured(count, lambda: asyncio.run(concurrent(url, count, batch_max=1)), single_ms),
            rig.measured(count, lambda: asyncio.run(coalesced(rig, count)), raw_ms),
            lambda: per_second(count, lambda: inserted(rig.connection, count, CONCURRENT)),
            rounds=ROUNDS,
        )
    how = "64 callers, gathered into INSERTs by their client"
    cpu, raw_cpu = median(ours_ms) * BATCH, median(raw_ms) * BATCH
    return [
        compared("64 concurrent pushes", ours, gathered, how, 1),
        Row("the same, CPU time per 1,000", cpu, "ms", raw_cpu, f"{how}; {spread(ours_ms, raw_ms)} ×"),
        compared("the same", ours, plain, "64 rows per INSERT, without callers"),
        compared("the same with linger_ms=1", lingering, gathered, how),
        compared("64 concurrent pushes, each by itself", single, gathered, how),
        Row("the same, CPU time per 1,000", median(single_ms) * BATCH, "ms", raw_cpu, how),
    ]


async def concurrent(url: str, count: int, **options: Any) -> None:
    """Into a queue."""
    async with penstock.aio.connect(url, **options) as ps:
        queue = ps.queue("single")

        async def push() -> None:
            for _ in range(count // CONCURRENT):
                await queue.push(PAYLOAD)

        await asyncio.gather(*(push() for _ in range(CONCURRENT)))


async def coalesced(rig: Rig, count: int) -> None:
    """Into a table, by a client that gathers what its callers insert while the INSERT before is under way."""
    waiting: list[tuple[bytes, asyncio.Future[int]]] = []
    is_there, loop = asyncio.Event(), asyncio.get_running_loop()

    async def insert(payload: bytes) -> int:
        future: asyncio.Future[int] = loop.create_future()
        waiting.append((payload, future))
        is_there.set()
        return await future

    async def caller() -> None:
        for _ in range(count // CONCURRENT):
            await insert(PAYLOAD)

    async def send(connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            await is_there.wait()
            is_there.clear()
            batch = waiting.copy()
            waiting.clear()
            cursor = connection.cursor(binary=True)
            await cursor.execute(f"{INSERT} RETURNING id", ([payload for payload, _ in batch],))
            for (_, future), (id,) in zip(batch, await cursor.fetchall(), strict=True):
                future.set_result(id)

    async with await psycopg.AsyncConnection.connect(rig.raw_url, autocommit=True) as connection:
        backend = connection.info.backend_pid
        sender = asyncio.create_task(send(connection))
        await asyncio.gather(*(caller() for _ in range(CONCURRENT)))
        sender.cancel()
        rig.ended_cpu += _cpu_seconds(backend)  # it ends with its connection


def leases(scale: Scale) -> list[Row]:
    """Leasing and acknowledging in bulk; SKIP LOCKED … DELETE, which forgets what its reader had when it dies; and a
    lease that is as durable as ours.
    """
    count = max(BATCH, scale(10_000))
    taking = f"DELETE FROM messages WHERE id IN ({NEXT}) RETURNING payload"
    leasing = f"UPDATE messages SET lease = 1 WHERE id IN ({NEXT}) RETURNING id, payload"
    with broker() as rig:
        queue, connection = rig.ps.queue("work"), rig.connection

        def ours() -> float:
            pushed(queue, count)
            return per_second(count, lambda: consume(queue, count))

        def take() -> None:
            for _ in range(count // BATCH):
                assert len(connection.execute(taking, binary=True).fetchall()) == BATCH

        def lease() -> None:
            for _ in range(count // BATCH):
                ids = [id for id, _ in connection.execute(leasing, binary=True)]
                connection.execute("DELETE FROM messages WHERE id = ANY(%b)", (ids,))

        def theirs(work: Callable[[], None]) -> float:
            inserted(connection, count)
            return per_second(count, work)

        value, raw, durable = rounds_of(ours, lambda: theirs(take), lambda: theirs(lease), rounds=ROUNDS)
    return [
        compared("lease and ack 1,000 at a time", value, raw, "SKIP LOCKED … DELETE", 3),
        compared("the same", value, durable, "UPDATE … SKIP LOCKED, then DELETE"),
    ]


def consume(queue: penstock.Queue, count: int) -> None:
    """Lease and acknowledge, a thousand at a time."""
    done = 0
    while done < count:
        leased = queue.lease(max=BATCH)
        leased.ack()
        done += len(leased)


def takeover(scale: Scale) -> list[Row]:
    """From deciding to serving, with a full tail: four journal files that are not sealed, and the fifth half full."""
    with server() as made:
        url = made.new_database()

        def open_session() -> Session:
            return Session(None, store=PostgresStore(url, node="a"), background=False)

        session = open_session()
        chunk = penstock.Batch.build([os.urandom(1000) for _ in range(1000)])
        size = scale(64 << 20)
        for _ in range(4):
            for _ in range(size // 1_000_000):
                session.confirm(session.push("bulk", chunk, None, None)[1])
            session.shard.journal.rotate()
        for _ in range(size // 2_000_000):
            session.confirm(session.push("bulk", chunk, None, None)[1])
        times = []
        for _ in range(3):
            session.shard.is_closed = True
            started = perf_counter()
            session = open_session()
            times.append(perf_counter() - started)
        session.shard.is_closed = True
    return [Row("new owner serves, with a full tail", median(times), "s", None, "", 2.0, "≤ 2 s", True)]


def faults(scale: Scale) -> list[Row]:
    """Until pushes are confirmed again: the owner is killed, and the postmaster with everything below it."""
    rounds = 1 if scale.quick else 3
    with server() as made, tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        url, place = made.new_database(), Path(name)
        nodes = {each: NodeProcess(url, each, place, *QUIET[2:]) for each in ("a", "b")}
        try:
            kills = [killed_owner(url, place, nodes) for _ in range(rounds)]
            postmasters = [killed_postmaster(made, nodes) for _ in range(rounds)]
        finally:
            for node in nodes.values():
                node.close()
    return [
        Row("owner kill -9 → confirmed again", median(kills), "s", None, "", 2.0, "≤ 2 s", True),
        Row("postmaster kill -9 and start → confirmed again", median(postmasters), "s", None, "", 4.0, "≤ 4 s", True),
    ]


def killed_owner(url: str, place: Path, nodes: dict[str, NodeProcess]) -> float:
    """One round; the node is started again."""
    owner = next(name for name, node in nodes.items() if node.status() == "ok")
    with penstock.connect([node.url() for node in nodes.values()]) as ps:
        queue = ps.queue("q")
        queue.push(PAYLOAD)
        seconds = timed(nodes[owner].kill, lambda: queue.push(PAYLOAD))
    nodes[owner].close()
    nodes[owner] = NodeProcess(url, owner, place, *QUIET[2:])
    return seconds


def killed_postmaster(made: PostgresServer, nodes: dict[str, NodeProcess]) -> float:
    """One round: its supervisor would start it at once, and so does this."""
    with penstock.connect([node.url() for node in nodes.values()]) as ps:
        queue = ps.queue("q")
        queue.push(PAYLOAD)

        def kill() -> None:
            made.kill()
            threading.Thread(target=made.start).start()

        return timed(kill, lambda: queue.push(PAYLOAD))


def timed(fault: Callable[[], object], push: Callable[[], object]) -> float:
    """From the fault until a push is confirmed."""
    started = perf_counter()
    fault()
    push()
    return perf_counter() - started


GROUPS: dict[str, Callable[[Scale], list[Row]]] = {
    "bulk": bulk,
    "wal": wal,
    "singles": singles,
    "together": together,
    "leases": leases,
    "takeover": takeover,
    "faults": faults,
}
