"""Sketches of times: how many values fell into each of a fixed row of bins, as a map from bin to count.

Neighbouring bins differ by 2 %, so a percentile of a sketch is off by at most 1 % of itself. Sketches add up without
further loss, whatever the order: days are made of hours and hours of minutes. And nothing is drawn by chance, so the
same rows always give the same sketch.
"""

from __future__ import annotations

import math
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

RATIO: Final = 1.02
ERROR_MAX: Final = (RATIO - 1) / (RATIO + 1)
LEAST_MS: Final = 0.001  # one µs: what is less, and what a clock that was set back made negative, counts as this
TYPE: Final = "map<int, bigint>"


def bin_of(value_ms: Column) -> Column:
    """The bin of a value; null for null."""
    return f.ceil(f.log(f.greatest(value_ms, f.lit(LEAST_MS))) / math.log(RATIO)).cast("int")


def value_of(place: int) -> float:
    """The value that stands for all values of this bin."""
    return float(2 / (RATIO + 1) * RATIO**place)


def sketch_of(value_ms: Column, count: Column) -> Column:
    """The sketch of one value that occurs so many times; empty when there is no value."""
    one = f.create_map(bin_of(value_ms), count.cast("bigint"))
    return f.when(value_ms.isNotNull(), one).otherwise(f.create_map()).cast(TYPE)


def percentile(sketch: Column, share: float) -> Column:
    """The value that `share` of all values do not exceed, in milliseconds; null for an empty sketch."""
    total = f.aggregate(f.map_values(sketch), f.lit(0).cast("bigint"), lambda so_far, count: so_far + count)
    # The rank travels with the sum: a column that a lambda mentions would be computed again for every bin.
    start = f.struct(
        f.lit(0).cast("bigint").alias("count"),
        f.lit(None).cast("int").alias("bin"),
        f.ceil(total * f.lit(share)).alias("rank"),
    )

    def step(seen: Column, entry: Column) -> Column:
        count = seen["count"] + entry["value"]
        is_here = seen["bin"].isNull() & (count >= seen["rank"])
        found = f.when(is_here, entry["key"]).otherwise(seen["bin"])
        return f.struct(count.alias("count"), found.alias("bin"), seen["rank"].alias("rank"))

    def value(seen: Column) -> Column:
        return f.round(f.lit(2 / (RATIO + 1)) * f.pow(f.lit(RATIO), seen["bin"]), 3)

    return f.aggregate(f.array_sort(f.map_entries(sketch)), start, step, value)
