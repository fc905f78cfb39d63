"""What the messages of a group share and others do not.

A fact says something about a group when nearly all of the group have it and few outside do. Outside is the healthy
traffic of the same queue; where there is none to compare with, the other groups of that queue. A field that the others
have and the group has not is a fact too: `lacks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipelines.triaging.facts import ALL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HEALTHY: Final = ""  # who the healthy messages are
GAP_MIN: Final = 0.5  # how much more often than outside
FACTS_SHOWN: Final = 5

# What says more comes first when two facts separate a group equally well.
_KINDS: Final = ("value", "lacks", "is", "has", "prefix", "header", "from")
_FACT: Final = ("queue", "path", "kind", "value")


def telling_facts(counts: DataFrame, share_min: float) -> DataFrame:
    """Facts that at least `share_min` of a group have and few outside do.

    `counts` as `count_facts` gives them. Gives queue, who, path, kind, value, share, share_healthy and share_others
    (null where there is nobody to compare with).
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    is_dead = f.col("who") != HEALTHY
    sizes = counts.where(f.col("kind") == ALL).select("queue", "who", f.col("n").alias("total"))
    every = counts.where(f.col("kind") != ALL).unionByName(_lacking(counts, sizes))
    every = every.join(f.broadcast(_with_totals(sizes)), ["queue", "who"])
    alike = Window.partitionBy(*_FACT)
    n_dead = f.sum(f.when(is_dead, f.col("n")).otherwise(0)).over(alike)
    n_healthy = f.sum(f.when(is_dead, 0).otherwise(f.col("n"))).over(alike)
    shares = every.select(
        "queue",
        "who",
        "path",
        "kind",
        "value",
        _share(f.col("n"), f.col("total")).alias("share"),
        _share(n_healthy, f.col("total_healthy")).alias("share_healthy"),
        _share(n_dead - f.col("n"), f.col("total_dead") - f.col("total")).alias("share_others"),
    ).where(is_dead & (f.col("share") >= share_min))
    outside = f.coalesce("share_healthy", "share_others")
    return shares.where(outside.isNull() | (f.col("share") - outside >= GAP_MIN))


def _with_totals(sizes: DataFrame) -> DataFrame:
    """Beside each group, how many dead and healthy messages its queue has."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    total = f.col("total")
    is_dead = f.col("who") != HEALTHY
    queue = Window.partitionBy("queue")
    return sizes.withColumns(
        {
            "total_dead": f.sum(f.when(is_dead, total).otherwise(0)).over(queue),
            "total_healthy": f.sum(f.when(is_dead, 0).otherwise(total)).over(queue),
        }
    )


def _share(part: Column, whole: Column) -> Column:
    from pyspark.sql import functions as f

    return f.when(whole > 0, part / whole)


def _lacking(counts: DataFrame, sizes: DataFrame) -> DataFrame:
    """For every field that anybody has, how many have it not."""
    from pyspark.sql import functions as f

    having = counts.where("kind = 'has'").select("queue", "who", "path", "n")
    paths = having.select("queue", "path").distinct()
    lacking = paths.join(f.broadcast(sizes), "queue").join(having, ["queue", "who", "path"], "left")
    n = f.col("total") - f.coalesce("n", f.lit(0))
    return lacking.select(
        "queue", "who", "path", f.lit("lacks").alias("kind"), f.lit("").alias("value"), n.alias("n")
    ).where("n > 0")


def most_telling(facts: Iterable[Any]) -> list[Any]:
    """The few facts of one group worth showing, best first: none that follows from another."""
    ranked = sorted(facts, key=_rank)
    is_compared = any(_outside(fact) is not None for fact in ranked)
    chosen: list[Any] = []
    for fact in ranked:
        # With nobody to compare with, only a value is worth a word: every message has fields and types.
        if (is_compared or fact.kind == "value") and not any(_follows(fact, other) for other in chosen):
            chosen.append(fact)
    return chosen[:FACTS_SHOWN]


def _outside(fact: Any) -> float | None:
    return fact.share_healthy if fact.share_healthy is not None else fact.share_others  # type: ignore[no-any-return]


def _rank(fact: Any) -> tuple[float, int, str, str]:
    return -(fact.share - (_outside(fact) or 0.0)), _KINDS.index(fact.kind), fact.path, fact.value


def _follows(fact: Any, known: Any) -> bool:
    """Whether a known fact says it already: the same field, or one inside a field that is missing or new."""
    inside = known.kind in ("lacks", "has") and fact.path.startswith((f"{known.path}.", f"{known.path}["))
    return fact.path == known.path or inside
