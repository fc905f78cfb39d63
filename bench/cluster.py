"""The cluster table: a shard in PostgreSQL beside the same server used directly, and how soon somebody else serves.

The server is the benchmark's own, on a real disk, with fsync on. Whatever is compared takes turns within a round.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psycopg

import penstock
from bench.measure import Row, Scale, interleaved, per_second
from penstock.embedded.session import Session
from penstock.postgres.store import PostgresStore
from tests.support.nodes import NodeProcess
from tests.support.postgres import PostgresServer

BATCH = 1_000
PAYLOAD = os.urandom(50).hex().encode()  # 100 bytes
CONCURRENT = 64
QUIET = ("--http-port", "off", "--grpc-port", "off")
TABLE = "CREATE TABLE IF NOT EXISTS messages (id bigserial PRIMARY KEY, payload bytea NOT NULL)"


@contextmanager
def server() -> Iterator[PostgresServer]:
    """A server on a real disk."""
    os.environ.pop("PYTEST_DEBUG_TEMPROOT", None)
    made = PostgresServer(shared_buffers="256MB", max_wal_size="4GB", checkpoint_timeout="1h")
    try:
        yield made
    finally:
        made.close()


@contextmanager
def broker() -> Iterator[tuple[PostgresServer, NodeProcess, psycopg.Connection[Any]]]:
    """A node in a process of its own, and a connection that uses the same server directly."""
    with server() as made, tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        node = NodeProcess(made.new_database(), "a", Path(name), *QUIET)
        try:
            with psycopg.connect(made.new_database(), autocommit=True) as connection:
                connection.execute(TABLE)
                yield made, node, connection
        finally:
            node.close()


def copied(connection: psycopg.Connection[Any], count: int) -> None:
    """Batches of messages as rows, by COPY, each in a transaction of its own."""
    for _ in range(count // BATCH):
        with connection.cursor() as cursor, cursor.copy("COPY messages (payload) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["bytea"])
            for _ in range(BATCH):
                copy.write_row((PAYLOAD,))


def inserted(connection: psycopg.Connection[Any], count: int) -> None:
    """The same by INSERT of many rows."""
    sql = "INSERT INTO messages (payload) SELECT unnest(%b::bytea[])"
    for _ in range(count // BATCH):
        connection.execute(sql, ([PAYLOAD] * BATCH,))


def bulk(scale: Scale) -> list[Row]:
    """Batches of 1,000 × 100 B: over TCP into a queue, and directly as rows."""
    count = scale(50_000)
    with broker() as (_, node, connection), penstock.connect(node.url()) as ps:
        queue = ps.queue("bulk")

        def pushed() -> None:
            for _ in range(count // BATCH):
                queue.push_many([PAYLOAD] * BATCH)

        ours, copy, insert = interleaved(
            lambda: per_second(count, pushed),
            lambda: per_second(count, lambda: copied(connection, count)),
            lambda: per_second(count, lambda: inserted(connection, count)),
        )
        raw, what = max((copy, "COPY of the same rows"), (insert, "multi-row INSERT of the same rows"))
    return [Row("push 1,000 × 100 B over TCP", ours, "msg/s", raw, what, 2 * raw, "≥ 2 ×")]


def wal(scale: Scale) -> list[Row]:
    """Bytes of PostgreSQL's log per byte of messages. Pages that are new have no full-page images."""
    count = scale(100_000)
    sql = "SELECT pg_current_wal_insert_lsn() - '0/0'"
    with broker() as (_, node, connection), penstock.connect(node.url()) as ps:
        queue = ps.queue("bulk")
        queue.push_many([PAYLOAD] * BATCH)
        connection.execute("CHECKPOINT")
        queue.push_many([PAYLOAD] * BATCH)  # the pages that are written to now had their images

        def position() -> int:
            row = connection.execute(sql).fetchone()
            assert row is not None
            return int(row[0])

        before, size = position(), queue.stats().bytes_stored
        for _ in range(count // BATCH):
            queue.push_many([PAYLOAD] * BATCH)
        ratio = (position() - before) / (queue.stats().bytes_stored - size)
    return [Row("WAL per byte stored, in bulk", ratio, "×", None, "", 1.15, "≤ 1.15", True)]


def singles(scale: Scale) -> list[Row]:
    """One message at a time, and 64 at once."""
    alone, many = scale(2_000), scale(20_000)
    with broker() as (made, node, connection), penstock.connect(node.url()) as ps:
        queue = ps.queue("single")

        def one_by_one() -> None:
            for _ in range(alone):
                queue.push(PAYLOAD)

        ours, bare = interleaved(
            lambda: per_second(alone, one_by_one), lambda: per_second(alone, lambda: synced(made.directory, alone))
        )
        together, raw = interleaved(
            lambda: per_second(many, lambda: asyncio.run(concurrent(node.url(), many))),
            lambda: per_second(many, lambda: coalesced(connection, many)),
        )
    return [
        Row("push one at a time over TCP", ours, "msg/s", bare, "write + fdatasync", 0.7 * bare, "≥ 0.7 ×"),
        Row("64 concurrent pushes over TCP", together, "msg/s", raw, "64 rows per INSERT, by its client", raw, "≥ 1 ×"),
    ]


def synced(directory: Path, count: int) -> None:
    """The bare disk: a write and an fdatasync each."""
    with tempfile.TemporaryFile(dir=directory.parent) as file:
        os.posix_fallocate(file.fileno(), 0, count * 256)
        for number in range(count):
            os.pwrite(file.fileno(), bytes(256), number * 256)
            os.fdatasync(file.fileno())


async def concurrent(url: str, count: int) -> None:
    """64 tasks, each pushing one message after the other."""
    async with penstock.aio.connect(url) as ps:
        queue = ps.queue("single")

        async def push() -> None:
            for _ in range(count // CONCURRENT):
                await queue.push(PAYLOAD)

        await asyncio.gather(*(push() for _ in range(CONCURRENT)))


def coalesced(connection: psycopg.Connection[Any], count: int) -> None:
    """What 64 callers could do with PostgreSQL, were their messages gathered by the client."""
    sql = "INSERT INTO messages (payload) SELECT unnest(%b::bytea[])"
    for _ in range(count // CONCURRENT):
        connection.execute(sql, ([PAYLOAD] * CONCURRENT,))


def leases(scale: Scale) -> list[Row]:
    """Leasing and acknowledging in bulk, and SKIP LOCKED … DELETE."""
    count = scale(20_000)
    taking = (
        "DELETE FROM messages WHERE id IN (SELECT id FROM messages ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1000)"
        " RETURNING payload"
    )
    with broker() as (_, node, connection), penstock.connect(node.url()) as ps:
        queue = ps.queue("work")

        def ours() -> float:
            for _ in range(count // BATCH):
                queue.push_many([PAYLOAD] * BATCH)
            return per_second(count, lambda: consume(queue, count))

        def theirs() -> float:
            copied(connection, count)

            def take() -> None:
                for _ in range(count // BATCH):
                    connection.execute(taking).fetchall()

            return per_second(count, take)

        value, raw = interleaved(ours, theirs)
    return [Row("lease and ack 1,000 at a time", value, "msg/s", raw, "SKIP LOCKED … DELETE", 3 * raw, "≥ 3 ×")]


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
    "leases": leases,
    "takeover": takeover,
    "faults": faults,
}
