"""A job on a cluster: `python -m tests.support.cluster_job MASTER URL OUT` reads and writes queues, and tells of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

import penstock.spark
from tests.support.spark_cluster import JAVA

CONF = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JAVA,
    "spark.cores.max": "2",
    # Work begins when both executors are there, so that both take part.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}


def main(master: str, url: str, out: str) -> None:
    """Everything that the test looks at."""
    spark = penstock.spark.session("cluster test", master, **CONF)
    reading = spark.read.format("penstock").option("url", url)
    orders = reading.option("maxPartitionBytes", "1").load("orders")
    found = {
        "workers": folders(orders),
        "total": total(orders),
        "table": total(penstock.spark.table(spark, url, "orders")),
        # Of a load of its own: Spark keeps what it has planned with filters, and uses it for the next query without.
        "filtered": reading.load("orders").where("offset < 10").count(),
    }
    for _ in range(2):  # the second is a job that is run again
        copied = orders.where("offset % 2 = 0").select("payload", "key")
        copied.write.format("penstock").option("url", url).option("jobId", "once").mode("append").save("copied")
    stream(spark, url, Path(out).parent / "checkpoint")
    spark.stop()
    Path(out).write_text(json.dumps(found))


def folders(orders: DataFrame) -> list[str]:
    """The workers, by the directories in which they run what reads the queue."""
    here = F.udf(lambda _: os.getcwd(), "string")
    rows = orders.select(here("offset").alias("folder")).distinct().collect()
    return sorted(next(part for part in Path(row.folder).parts if part.startswith("work")) for row in rows)


def total(orders: DataFrame) -> int:
    """The sum of all payloads."""
    row = orders.selectExpr("sum(cast(cast(payload as string) as bigint)) AS total").first()
    assert row is not None
    return int(row.total)


def stream(spark: SparkSession, url: str, checkpoint: Path) -> None:
    """What there is of a queue, as a stream into another."""
    orders = spark.readStream.format("penstock").option("url", url).load("orders")
    writing = orders.select("payload", "key").writeStream.format("penstock").option("url", url)
    writing = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writing.start("streamed").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
