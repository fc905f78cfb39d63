"""The sealed part of a directory as tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def sealed(
    spark: SparkSession, url: str, name: str, queues: Sequence[str], since: datetime | None, until: datetime | None
) -> DataFrame:
    """Messages or events of the queues, as users see them."""
    from pyspark.sql import functions as f

    messages = spark.read.parquet(str(Path(url) / "segments" / "messages"))
    found, time = messages, "pushed_at"
    if name == "events":
        found, time = spark.read.parquet(str(Path(url) / "segments" / "events")), "settled_at"
        first = messages.select("queue", "incarnation", "partition", f.col("offset").alias("first_offset"), "pushed_at")
        found = (
            found.join(first, ["queue", "incarnation", "partition", "first_offset"], "left")
            .withColumn("wait_ms", _ms("leased_at", "pushed_at"))
            .withColumn("processing_ms", _ms("settled_at", "leased_at"))
        )
    liked = (f.col("queue").rlike("^" + each.replace(".", r"\.").replace("*", ".*") + "$") for each in queues)
    found = found.where(reduce(or_, liked))
    if since is not None:
        found = found.where(f.col(time) >= f.lit(since))
    if until is not None:
        found = found.where(f.col(time) < f.lit(until))
    return found.select(*COLUMNS[name])


def _ms(later: str, earlier: str):  # type: ignore[no-untyped-def]
    from pyspark.sql import functions as f

    return (f.unix_micros(later) - f.unix_micros(earlier)).cast("double") / 1000


COLUMNS = {
    "messages": [
        "queue",
        "partition",
        "offset",
        "key",
        "payload",
        "headers",
        "priority",
        "pushed_at",
        "available_at",
        "expires_at",
        "dedup_key",
        "trace_id",
        "producer",
        "content_type",
        "max_attempts",
    ],
    "events": [
        "queue",
        "group",
        "partition",
        "first_offset",
        "last_offset",
        "count",
        "outcome",
        "attempt",
        "consumer",
        "leased_at",
        "settled_at",
        "error",
        "pushed_at",
        "wait_ms",
        "processing_ms",
    ],
}
