"""Writing: a DataFrame into a queue, and a queue into the archive."""

from __future__ import annotations

import penstock
from bench.measure import Row, Scale, directory, per_second
from bench.server.process import broker
from bench.spark.setting import MESSAGES, sealed, spark
from penstock.spark.pipelines.base import Run
from penstock.spark.pipelines.runner import execute, find

ROWS = 2_000_000


def sink(scale: Scale) -> list[Row]:
    """Rows of 100 bytes that Spark has at hand."""
    count = scale(ROWS)
    frame = spark().range(count).selectExpr("lpad(cast(id as string), 100, '0') AS payload").repartition(4).cache()
    frame.count()
    with broker() as served, penstock.connect(served.url) as ps:

        def write(queue: str) -> None:
            frame.write.format("penstock").option("url", served.url).mode("append").save(queue)

        write("warm")
        rate = per_second(count, lambda: write("orders"))
        stored = ps.queue("orders").stats().messages
    frame.unpersist()
    return [Row(f"sink, batch: {stored:,} rows into a broker's queue", rate, "/s", floor=300_000)]


def archive(scale: Scale) -> list[Row]:
    """Everything that is sealed, as a Parquet dataset by queue and date."""
    data, count = sealed(scale), scale(MESSAGES)
    pipeline = find("archive")
    with directory() as out:
        run = Run(spark(), str(data), options=pipeline.options(), out=out)
        rate = per_second(count, lambda: execute(pipeline, run))
    return [Row(f"archive of {count:,} messages", rate, "/s", floor=500_000)]
