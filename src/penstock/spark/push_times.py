"""When the messages of sealed events were pushed, looked up only where a query wants to know.

The events in a file do not say it. It is a function of Spark's, so that a query without these columns never calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.history.push_times import PushTimes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def can_look_up() -> bool:
    """Whether Spark has functions of Arrow columns: since 4.1."""
    from pyspark.sql import functions

    return hasattr(functions, "arrow_udf")


def with_push_times(events: DataFrame, url: str) -> DataFrame:
    """Events with `pushed_at`, `wait_ms` and `processing_ms`."""
    from pyspark.sql import functions

    F: Any = functions  # noqa: N806 - everybody's name for it; its stubs know nothing of Arrow yet
    pushed = F.arrow_udf(_lookup(url), "bigint")("incarnation", "partition", "first_offset")
    leased = F.unix_micros("leased_at")
    return events.withColumns(
        {
            "pushed_at": F.timestamp_micros(pushed),
            "wait_ms": (leased - pushed) / F.lit(1000.0),
            "processing_ms": (F.unix_micros("settled_at") - leased) / F.lit(1000.0),
        }
    )


def _lookup(url: str) -> Any:
    """A function of columns that Spark calls in its own processes, once for all batches of a task."""

    def look_up(batches: Iterator[tuple[pa.Array, pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        from penstock.spark.tasks import open_planned

        with closing(open_planned(url)) as history:
            history.look()
            for incarnation, partition, first_offset in batches:
                columns = {"incarnation": incarnation, "partition": partition, "first_offset": first_offset}
                yield PushTimes.of_moment(history).of_table(pa.table(columns))

    # Spark reads the types to see how it is to be called, and they are not written out here.
    look_up.__annotations__ = {
        "batches": Iterator[tuple[pa.Array, pa.Array, pa.Array]],
        "return": Iterator[pa.Array],
    }
    return look_up
