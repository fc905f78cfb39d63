"""`penstock bench`: what a broker does for one client, measured from outside, through the client everybody uses.

It works in a queue of its own, which it deletes. Everything it counts was confirmed durable.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli import output
from penstock.cli.exits import CommandError
from penstock.cli.options import AsJson, seconds_option
from penstock.cli.target import CLIENT, Broker

if TYPE_CHECKING:
    from penstock.aio import Queue

HEADINGS: Final = ("what", "in flight", "messages", "per second", "MB/s", "p50", "p99", "max")
Work = Callable[[], Awaitable[int]]  # does one operation: how many messages it was about


class Plan(msgspec.Struct, frozen=True):
    """What is measured: for how long, with how many requests in flight, payload bytes, messages of a batch."""

    seconds: float
    concurrency: int
    size: int
    batch: int


class Measure(msgspec.Struct, kw_only=True):
    """One row."""

    name: str
    in_flight: int
    messages: int
    operations: int
    seconds: float
    messages_per_second: float
    bytes_per_second: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


def bench(
    broker: Broker,
    seconds: Annotated[float, seconds_option("--seconds", "-s", about="How long to run each measurement.")] = 3.0,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Number of concurrent requests.")] = 64,
    size: Annotated[int, typer.Option("--size", min=0, max=1_000_000, help="Payload size in bytes.")] = 100,
    batch: Annotated[int, typer.Option("--batch", min=1, max=100_000, help="Messages per batch and per lease.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Measure a broker: single and batched pushes, leases with acks, and push-to-delivery latency.

    It creates a queue, works in it, and deletes it. Nothing else is touched.
    """
    if not 0.01 <= seconds <= 600:
        raise CommandError(f"--seconds: {seconds:g} is outside 0.01 to 600", hint="a few seconds are enough")
    where, plan = broker.readable_address(), Plan(seconds, concurrency, size, batch)
    with output.progress("measuring", is_shown=not as_json, is_counted=True) as on_progress:
        rows = asyncio.run(_measured(where, plan, on_progress))
    if as_json:
        output.write_json({"url": where, "settings": plan, "rows": rows})
        return
    output.write(output.table(HEADINGS, [_row(measure) for measure in rows]))
    output.write(f"[dim]{size:,}-byte payloads, each confirmed durable; latencies in ms, of one operation[/]")


async def _measured(where: str, plan: Plan, on_progress: output.OnProgress) -> list[Measure]:
    from penstock import aio

    is_directory = "://" not in where
    async with aio.open(where) if is_directory else aio.connect(where, client=CLIENT) as ps:
        queue = await ps.create_queue(f"bench-{secrets.token_hex(4)}")
        try:
            return await _rows(queue, plan, on_progress)
        finally:
            await asyncio.shield(ps.delete_queue(queue.name))  # Ctrl-C must not leave it behind either


async def _rows(queue: Queue, plan: Plan, on_progress: output.OnProgress) -> list[Measure]:
    payload, batch = b"x" * plan.size, plan.batch
    payloads = [payload] * batch
    few = max(1, min(4, plan.concurrency))

    async def push() -> int:
        await queue.push(payload)
        return 1

    async def push_batch() -> int:
        return len(await queue.push_many(payloads))

    async def lease() -> int:
        leased = await queue.lease(batch)
        await leased.ack()
        return len(leased)

    async def deliver() -> int:
        _, leased = await asyncio.gather(queue.push(payload), queue.lease(wait=10))
        await leased.ack()
        return len(leased)

    rows: list[Measure] = []
    works: list[tuple[str, Work, int, bool]] = [
        ("push", push, 1, False),
        ("push", push, plan.concurrency, False),
        (f"push {batch:,}", push_batch, few, False),
        (f"lease + ack {batch:,}", lease, few, True),
        ("push to delivered", deliver, 1, False),
    ]
    for number, (name, work, workers, ends) in enumerate(works):
        on_progress(number, len(works))
        if work is deliver:
            await queue.purge()
        rows.append(await measured(name, work, workers, plan.seconds, plan.size, ends_when_empty=ends))
    return rows


async def measured(
    name: str, work: Work, workers: int, seconds: float, size: int, *, ends_when_empty: bool = False
) -> Measure:
    """Some workers repeat it until the time is up or, with `ends_when_empty`, until there is nothing to do."""
    latencies: list[float] = []
    messages = 0
    started = time.perf_counter()
    until = started + seconds

    async def repeat() -> None:
        nonlocal messages
        while (begun := time.perf_counter()) < until:
            count = await work()
            if not count and ends_when_empty:
                return
            latencies.append(time.perf_counter() - begun)
            messages += count

    await asyncio.gather(*(repeat() for _ in range(workers)))
    return _measure(name, workers, messages, time.perf_counter() - started, size, sorted(latencies))


def _measure(name: str, in_flight: int, messages: int, seconds: float, size: int, latencies: list[float]) -> Measure:
    return Measure(
        name=name,
        in_flight=in_flight,
        messages=messages,
        operations=len(latencies),
        seconds=seconds,
        messages_per_second=messages / seconds,
        bytes_per_second=messages * size / seconds,
        p50_ms=percentile(latencies, 50),
        p90_ms=percentile(latencies, 90),
        p99_ms=percentile(latencies, 99),
        max_ms=percentile(latencies, 100),
    )


def percentile(ascending: list[float], percent: int) -> float:
    """A percentile of some seconds, in ms: the least value that `percent` percent do not exceed."""
    if not ascending:
        return 0.0
    rank = -(-len(ascending) * percent // 100)
    return ascending[max(0, rank - 1)] * 1000


def _row(measure: Measure) -> tuple[Any, ...]:
    times = (f"{seconds:,.2f}" for seconds in (measure.p50_ms, measure.p99_ms, measure.max_ms))
    megabytes = f"{measure.bytes_per_second / 1e6:,.1f}"
    return measure.name, measure.in_flight, measure.messages, round(measure.messages_per_second), megabytes, *times
