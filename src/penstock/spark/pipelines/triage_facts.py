"""Facts about messages, and those that a group of dead letters shares and other messages do not.

A fact is (path, kind, value). Kinds: `value` (currency = null), `has` (the field is there), `is` (its type, or that it
is empty or negative), `prefix` (of the key), `header`, `from` (partition, priority, producer, consumer). Each counts
once per message, however often a list repeats it; `all`, which every message has, counts the messages themselves.

A fact says something about a group when nearly all of the group have it and few outside do. Outside is the healthy
traffic of the same queue; where there is none to compare with, the other groups of that queue. A field that the others
have and the group has not is a fact too: `lacks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


Fact = tuple[str, str, str]

DEPTH_MAX: Final = 6
FACTS_MAX: Final = 300  # of one message
ITEMS_MAX: Final = 50  # of one list
VALUE_CHARS_MAX: Final = 80

INPUT: Final = ("queue", "who", "partition", "key", "payload", "headers", "priority", "producer", "consumer")
ALL: Final = "all"
_FACTS: Final = "array<struct<path: string, kind: string, value: string>>"


def count_facts(messages: DataFrame) -> DataFrame:
    """How many messages have each fact, for every `queue` and `who` (which group of messages it is)."""
    # Not Arrow's kind of function: those ask for pandas.
    facts = f.udf(facts_of, _FACTS, useArrow=False)(*INPUT[2:])
    return (
        messages.select("queue", "who", f.explode(facts).alias("fact"))
        .groupBy("queue", "who", "fact.path", "fact.kind", "fact.value")
        .agg(f.count("*").alias("n"))
    )


def facts_of(
    partition: str | None,
    key: str | None,
    payload: bytes | None,
    headers: dict[str, str] | None,
    priority: int | None,
    producer: int | None,
    consumer: str | None,
) -> list[Fact]:
    """Everything that can be said about one message."""
    origin = {"partition": partition, "priority": priority, "producer": producer, "consumer": consumer}
    facts: set[Fact] = {(name, "from", str(value)) for name, value in origin.items() if value not in (None, "")}
    facts.add(("", ALL, ""))
    facts |= {(name, "header", _cut(value or "")) for name, value in (headers or {}).items() if _is_own(name)}
    if key and (prefix := key_prefix(key)):
        facts.add(("key", "prefix", prefix))
    try:
        _walk("", msgspec.json.decode(payload or b""), 0, facts)
    except (msgspec.DecodeError, UnicodeDecodeError):
        facts.add(("payload", "is", "not JSON" if payload else "empty"))
    return list(facts)


def _is_own(header: str) -> bool:
    return not header.startswith("penstock-")


def key_prefix(key: str) -> str:
    """A key up to its first digit or separator: what keys of one kind have in common."""
    for index, char in enumerate(key):
        if not char.isalpha():
            return key[: index + (not char.isdigit())]
    return key


def _walk(path: str, value: Any, depth: int, facts: set[Fact]) -> None:
    if len(facts) >= FACTS_MAX:
        return
    where = path or "payload"
    if path:
        facts.add((where, "has", ""))
    facts.update((where, "is", what) for what in _what(value))
    if isinstance(value, dict):
        for name, inner in value.items() if depth < DEPTH_MAX else ():
            _walk(f"{path}.{name}" if path else name, inner, depth + 1, facts)
    elif isinstance(value, list):
        for inner in value[:ITEMS_MAX] if depth < DEPTH_MAX else ():
            _walk(f"{path}[]", inner, depth + 1, facts)
    else:
        facts.add((where, "value", _cut(msgspec.json.encode(value).decode())))


def _what(value: Any) -> Iterator[str]:
    """The type of a value, and what is odd about it. Null is a value and needs no type."""
    if isinstance(value, bool):
        yield "a boolean"
    elif isinstance(value, int | float):
        yield "a number"
        if value < 0:
            yield "negative"
    elif value is not None:
        yield "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
        if not value:
            yield "empty"


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"


def in_words(path: str, kind: str, value: str) -> str:
    """A fact for people to read."""
    match kind:
        case "has":
            return f"{path} is there"
        case "lacks":
            return f"{path} is missing"
        case "is":
            return f"{path} is {value}"
        case "prefix":
            return f'key starts with "{value}"'
        case "header":
            return f"header {path} = {value}"
        case _:
            return f"{path} = {value}"


HEALTHY: Final = ""  # who the healthy messages are
GAP_MIN: Final = 0.5  # how much more often than outside
FACTS_SHOWN: Final = 5

# What says more comes first when two facts separate a group equally well.
_KINDS: Final = ("value", "lacks", "is", "has", "prefix", "header", "from")
_FACT: Final = ("queue", "path", "kind", "value")


def telling_facts(counts: DataFrame, share_min: float) -> DataFrame:
    """Facts that at least `share_min` of a group have and few outside do.

    `counts` as `count_facts` gives them. Gives queue, who, path, kind, value, share, share_healthy and share_others
    (null where there is nothing to compare with).
    """
    from pyspark.sql import Window

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
    return f.when(whole > 0, part / whole)


def _lacking(counts: DataFrame, sizes: DataFrame) -> DataFrame:
    """For every field that any message has, how many messages lack it."""
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
        # With nothing to compare with, only a value is worth showing: every message has fields and types.
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
