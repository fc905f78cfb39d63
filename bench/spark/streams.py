"""Streaming: a backlog through an aggregate into another queue, exactly once; and the time a message takes."""

from __future__ import annotations

import threading
from pathlib import Path
from statistics import median
from time import perf_counter, sleep, time

import penstock
from bench.measure import Row, Scale, directory
from bench.server.process import broker
from bench.spark.setting import QUEUE, fill, spark
from penstock.spark import stream_to

BACKLOG = 3_000_000
PER_TRIGGER = 500_000
PER_SECOND = 100
SECONDS = 30


def sustained(scale: Scale) -> list[Row]:
    """Messages per second of a query that counts by key and second, from the first read to the last commit."""
    count = scale(BACKLOG)
    with directory() as path, broker() as served, penstock.connect(served.url) as ps:
        fill(ps.create_queue(QUEUE, partitions=4), count)
        aggregate(served.url, path / "warm", "warm", count=10_000)
        took = aggregate(served.url, path / "checkpoint", "totals", count=PER_TRIGGER)
        out = ps.queue("totals").stats().messages
    what = f"stream of {count:,}: queue → aggregate → queue, {out:,} rows out, exactly once"
    return [Row(what, count / took, "/s", floor=150_000)]


def aggregate(url: str, checkpoint: Path, sink: str, count: int) -> float:
    """Seconds that it takes to go through all there is."""
    source = spark().readStream.format("penstock").option("url", url).option("maxMessagesPerTrigger", str(count))
    grouped = source.load(QUEUE).groupBy("partition", "priority").count()
    rows = grouped.selectExpr("to_json(struct(*)) AS payload", "partition AS key")
    started = perf_counter()
    writer = stream_to(rows, url, sink, checkpoint=checkpoint, mode="update")
    writer.trigger(availableNow=True).start().awaitTermination()
    return perf_counter() - started


def latency(scale: Scale) -> list[Row]:
    """From the push to the message in the output queue, at a hundred messages a second."""
    with directory() as path, broker() as served, penstock.connect(served.url) as ps:
        ps.create_queue(QUEUE), ps.create_queue("copied")
        source = spark().readStream.format("penstock").option("url", served.url).load(QUEUE).select("payload")
        writer = source.writeStream.format("penstock").option("url", served.url)
        query = writer.option("checkpointLocation", str(path / "checkpoint")).start("copied")
        stop = threading.Event()
        pusher = threading.Thread(target=push, args=(served.url, stop))
        pusher.start()
        waits = watch(ps, scale(SECONDS))
        stop.set()
        pusher.join()
        query.stop()
    waits.sort()
    return [
        Row(f"{PER_SECOND}/s, push → in the output queue, p50", 1000 * median(waits), "ms", floor=500, ceiling=True),
        Row("the same, p99", 1000 * waits[int(len(waits) * 0.99)], "ms"),
    ]


def push(url: str, stop: threading.Event) -> None:
    """A message every ten milliseconds that says when it was pushed."""
    with penstock.connect(url) as ps:
        queue = ps.queue(QUEUE)
        while not stop.is_set():
            queue.push(repr(time()).encode())
            sleep(1 / PER_SECOND)


def watch(ps: penstock.Penstock, seconds: float) -> list[float]:
    """How long each message took, once the query has got going."""
    waits: list[float] = []
    queue = ps.queue("copied")
    queue.lease(10_000, wait=60, auto_ack=True)
    started = perf_counter()
    while perf_counter() - started < seconds:
        leased = queue.lease(1_000, wait=1, auto_ack=True)
        now = time()
        if perf_counter() - started > seconds / 5:
            waits += [now - float(delivery.payload) for delivery in leased]
    return waits
