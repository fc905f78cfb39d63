"""What the demonstration runs. The body of each function is shown as it is, so it reads like a user's own code."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

import penstock
from penstock.client.sync import Penstock

Say = Callable[[str], None]

RAW_BYTES = 1_600_000

# Pushes for ever, and prints each id once it is confirmed; three messages are being worked on when it dies.
VICTIM = """\
import sys, penstock

ps = penstock.open(sys.argv[1])
orders = ps.queue("orders")
orders.push_many([b"a", b"b", b"c"])
working_on = orders.lease(3)
while True:
    print(orders.push(b"an order").offset, flush=True)"""


def push_singly(ps: Penstock, count: int) -> None:
    """One after the other."""
    mail = ps.queue("mail")
    for number in range(count):
        mail.push(f"letter {number}")


def push_from_threads(ps: Penstock, count: int) -> None:
    """64 at a time."""
    letters = (f"letter {number}" for number in range(count))
    with ThreadPoolExecutor(64) as threads:
        list(threads.map(ps.queue("mail").push, letters))


def push_batches(ps: Penstock, batches: int, readings: list[bytes]) -> None:
    """A list is one operation."""
    for _ in range(batches):
        ps.queue("readings").push_many(readings)


def lease_and_ack(ps: Penstock, leases: int) -> int:
    """Work through some of them."""
    payload_bytes = 0
    for _ in range(leases):
        leased = ps.queue("readings").lease(max=1000)
        payload_bytes += sum(map(len, leased.payloads()))
        leased.ack()
    return payload_bytes


def pay(ps: Penstock, say: Say) -> int:
    """One of three cannot be added up."""
    payments = ps.create_queue("payments", max_attempts=3, backoff_base_seconds=0.2)
    payments.push_many([{"amount": 12}, {"amount": "twelve"}, {"amount": 30}])
    total = 0
    for delivery in payments.consume(idle_seconds=1):
        try:
            total += delivery.json()["amount"]
            say(f"{delivery.id}, attempt {delivery.attempt}: paid")
        except TypeError as error:
            say(f"{delivery.id}, attempt {delivery.attempt}: {error}")
            delivery.nack(error=str(error))
    return total


def read_dead_letters(ps: Penstock) -> list[penstock.Message]:
    """What became of it."""
    return ps.queue("payments").dlq.list()


def redrive(ps: Penstock, say: Say) -> None:
    """Text is understood now."""
    payments = ps.queue("payments")
    payments.dlq.redrive()
    for delivery in payments.lease(wait=1):
        amount = delivery.json()["amount"]
        say(f"{delivery.id}, attempt {delivery.attempt}: paid {amount}")
        delivery.ack()


def push_out_of_order(ps: Penstock) -> None:
    """Four jobs that will come in another order."""
    jobs = ps.queue("jobs")
    jobs.push("in a second", delay=1)
    jobs.push("when there is time", priority="background")
    jobs.push("like any other")
    jobs.push("at once", priority="critical")


def lease_in_order(ps: Penstock, say: Say) -> None:
    """Each as soon as it may be had."""
    for _ in range(4):
        delivery = ps.queue("jobs").lease(wait=5)[0]
        say(delivery.payload.decode())
        delivery.ack()


def seal(ps: Penstock) -> None:
    """What is still in the journal too."""
    ps.seal()


def read_history(directory: Path) -> pa.Table:
    """Plain pyarrow: no Penstock needed."""
    messages = ds.dataset(directory / "segments" / "messages")
    return messages.to_table(columns=["queue", "offset", "pushed_at", "payload"])


def count_outcomes(directory: Path) -> pa.Table:
    """What became of them."""
    events = ds.dataset(directory / "segments" / "events").to_table()
    return events.group_by(["queue", "group", "outcome"]).aggregate([("count", "sum")])


def raw_syncs_per_second(directory: Path, seconds: float) -> float:
    """What the disk can do: a small write and a sync, again and again."""
    sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(RAW_BYTES))
        os.fsync(file.fileno())
        count = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            os.pwrite(file.fileno(), bytes(160), 160 * count % RAW_BYTES)
            sync(file.fileno())
            count += 1
        return count / (time.perf_counter() - started)
