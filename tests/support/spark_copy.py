"""A streaming query from one queue to another, as a program of its own that can be killed.

Its arguments are a url, a folder for its checkpoint, and how many messages are a batch. It copies what is in the queue
`in` to the queue `out`, and ends. Each batch that is done is a line.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryListener

import penstock.spark
from tests.support.spark_cluster import JAVA

CONF = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": JAVA}
STARTS_MAX = 10


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class _Tell(StreamingQueryListener):
    """A line for each batch."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        _say("started")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        _say(f"batch {event.progress.batchId}")

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        return

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        return


def main(url: str, folder: str, batch: str) -> None:
    # Tasks whose worker is killed are tried again; so is a query whose driver has lost one.
    spark = penstock.spark.session("copy", "local[2,4]", **CONF)
    spark.sparkContext.setLogLevel("FATAL")
    spark.streams.addListener(_Tell())
    source = spark.readStream.format("penstock").options(url=url, maxMessagesPerTrigger=batch)
    writer = (
        source.load("in")
        .select("payload", "key")
        .writeStream.format("penstock")
        .options(url=url, checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
    )
    for _ in range(STARTS_MAX):
        try:
            writer.start("out").awaitTermination()
            break
        except StreamingQueryException as error:
            _say(f"failed: {error}".splitlines()[0])
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
