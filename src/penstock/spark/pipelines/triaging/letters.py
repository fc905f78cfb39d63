"""Dead letters as a table: one row per letter, what its headers say in columns, its error as a signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model import DLQ_SUFFIX, Outcome
from penstock.requests import DEAD_ATTEMPTS, DEAD_CONSUMER, DEAD_ERROR, DEAD_GROUP, DEAD_ORIGIN, DEAD_REASON
from penstock.spark.pipelines.triaging.matching import match
from penstock.spark.pipelines.triaging.signatures import signature, signature_id, with_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = ("queue", "partition", "offset", "key", "payload", "headers", "pushed_at")

# Deliveries that end like this leave the letter where it is.
_STILL_THERE: Final = (
    Outcome.RETRIED, Outcome.RELEASED, Outcome.SNOOZED, Outcome.TIMED_OUT, Outcome.INTERRUPTED,
)  # fmt: skip


def dead_letters(messages: DataFrame) -> DataFrame:
    """Letters from the messages of dead-letter queues.

    `id` is their own; `queue`, `partition` and `offset` are those of the message that died; `who` names the letters
    that died in the same queue and consumer group with the same signature.
    """
    from pyspark.sql import functions as f

    header = f.col("headers").__getitem__
    origin = header(DEAD_ORIGIN)
    letters = messages.where(f.col("queue").endswith(DLQ_SUFFIX) & origin.isNotNull()).select(
        f.regexp_extract(origin, "^[^/]+", 0).alias("queue"),
        f.concat_ws("/", "queue", "partition", "offset").alias("id"),
        f.split_part(origin, f.lit("/"), f.lit(2)).alias("partition"),
        f.split_part(origin, f.lit("/"), f.lit(3)).try_cast("bigint").alias("offset"),
        f.coalesce(header(DEAD_GROUP), f.lit("")).alias("group"),
        f.coalesce(header(DEAD_REASON), f.lit("")).alias("reason"),
        f.coalesce(header(DEAD_ERROR), f.lit("")).alias("error"),
        header(DEAD_ATTEMPTS).try_cast("int").alias("attempts"),
        header(DEAD_CONSUMER).alias("consumer"),
        f.col("pushed_at").alias("died_at"),
        "key", "payload", "headers",
    )  # fmt: skip
    # Who died without an error, of waiting too long or of a lost lease, is told apart by the reason.
    no_error = f.concat(f.lit("("), f.col("reason"), f.lit(", no error given)"))
    named = letters.withColumn(
        "signature", with_value(signature(f.col("error")), lambda found: f.when(found != "", found).otherwise(no_error))
    )
    return named.withColumn("who", signature_id(f.concat_ws("\n", "queue", "group", "signature")))


def open_only(messages: DataFrame, events: DataFrame) -> DataFrame:
    """Messages of dead-letter queues that nobody has dealt with, by the events of those queues."""
    from pyspark.sql import functions as f

    still_there = [outcome.name.lower() for outcome in _STILL_THERE]
    return match(messages, events.where(~f.col("outcome").isin(still_there)), "left_anti")
