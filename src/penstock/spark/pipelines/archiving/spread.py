"""Work spread over the executors: one task for each piece of it, whose results come back as bytes.

It is an ordinary function of a DataFrame with one row in each partition, so it works wherever DataFrames do, Spark
Connect included. What is sent are small values; results of an attempt that failed never arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.spark.failures import cause, shown_plainly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

TASKS_DEFAULT: Final = 8

Work = Callable[[T], Iterator[bytes]]
Spread = Callable[[Sequence[T], Work[T]], list[bytes]]  # how work is done; tests do it at once


def over(spark: SparkSession) -> Spread[T]:
    """A way to have work done by the executors of a session."""
    from pyspark.sql import functions as f

    def spread(pieces: Sequence[T], work: Work[T]) -> list[bytes]:
        if not pieces:
            return []

        @shown_plainly
        def act(number: int) -> list[bytes]:
            return list(work(pieces[number]))

        count = len(pieces)
        acting = f.udf(act, "array<binary>", useArrow=False)
        try:
            rows = spark.range(0, count, 1, count).select(acting("id").alias("results")).collect()
        except Exception as error:
            ours = cause(error)
            if ours is None:
                raise
            raise ours from None
        return [bytes(result) for row in rows for result in row.results]

    return spread


def at_once(spark: SparkSession) -> int:
    """How many tasks run at once, as far as can be known: Spark Connect does not tell."""
    context = getattr(spark, "sparkContext", None)
    return context.defaultParallelism if context is not None else TASKS_DEFAULT
