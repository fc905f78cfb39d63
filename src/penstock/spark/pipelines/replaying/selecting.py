"""Which messages are replayed, and what they look like afterwards: functions from DataFrame to DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidField
from penstock.spark.failures import query_error
from penstock.spark.pipelines.triaging.matching import match

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORIGIN: Final = "penstock-replayed-from"  # header: the id of the message that was replayed
PLACE: Final = ("pushed_at", "queue", "partition", "offset")  # the order in which messages are replayed

_PARTITIONS: Final = "queue string, partition string, {} bigint"

Places = Mapping[tuple[str, str], int]  # (queue, partition): an offset


def after(live: DataFrame, ends: Places) -> DataFrame:
    """The messages of the log that an archive does not cover; `ends` is where it ends."""
    from pyspark.sql import functions as f

    if not ends:
        return live
    rows = [(queue, partition, end) for (queue, partition), end in ends.items()]
    covered = live.sparkSession.createDataFrame(rows, _PARTITIONS.format("covered_end"))
    joined = live.join(f.broadcast(covered), ["queue", "partition"], "left")
    kept = joined.where(f.col("covered_end").isNull() | (f.col("offset") >= f.col("covered_end")))
    return kept.select(*live.columns)


def matching(messages: DataFrame, where: str | None, keys: Sequence[str]) -> DataFrame:
    """The messages that a condition in SQL holds for, and that have one of some keys."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    if keys:
        messages = messages.where(f.col("key").isin(*keys))
    if where is None:
        return messages
    try:
        return messages.where(where)
    except PySparkException as error:
        hint = "columns: " + ", ".join(messages.columns) + "; a payload is bytes: cast(payload as string)"
        raise InvalidField(f"where: {where!r} is not understood: {query_error(str(error))}", hint=hint) from None


def unacked(messages: DataFrame, events: DataFrame, group: str, starts: Places) -> DataFrame:
    """The messages that a group has not acknowledged.

    `starts` is where the log starts: of what is older there are no events, and it was settled by every group, or else
    retention would have kept it. So it is left out.
    """
    from pyspark.sql import functions as f

    acked = events.where((f.col("group") == group) & (f.col("outcome") == "acked"))
    if starts:
        rows = [(queue, partition, start) for (queue, partition), start in starts.items()]
        begun = messages.sparkSession.createDataFrame(rows, _PARTITIONS.format("start_offset"))
        joined = messages.join(f.broadcast(begun), ["queue", "partition"], "left")
        kept = joined.where(f.col("offset") >= f.coalesce("start_offset", f.lit(0)))
        messages = kept.select(*messages.columns)
    return match(messages, acked, "left_anti")


def replayed(messages: DataFrame, *, keep_partition: bool = False) -> DataFrame:
    """The messages as they are pushed: a header tells where each came from; when and whether to deliver is left out."""
    from pyspark.sql import functions as f

    headers = f.map_concat(_other_headers(), f.create_map(f.lit(ORIGIN), id_of()))
    columns = ["payload", "key", "priority", "content_type", "trace_id", "max_attempts"]
    if keep_partition:
        columns.append("partition")
    return messages.select(*columns, headers.alias("headers"))


def id_of() -> Column:
    """The id of a message."""
    from pyspark.sql import functions as f

    return f.concat_ws("/", "queue", "partition", f.col("offset").cast("string"))


def _other_headers() -> Column:
    """The headers without our own, which a message that is replayed again has already."""
    from pyspark.sql import functions as f

    none = f.create_map().cast("map<string,string>")
    return f.map_filter(f.coalesce("headers", none), lambda name, _: name != ORIGIN)
