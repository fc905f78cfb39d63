"""Facts about messages, so that groups of them can be compared: which fields they have, with which values.

A fact is (path, kind, value). Kinds: `value` (currency = null), `has` (the field is there), `is` (its type, or that it
is empty or negative), `prefix` (of the key), `header`, `from` (partition, priority, producer, consumer). Each counts
once per message, however often a list repeats it; `all`, which every message has, counts the messages themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    from pyspark.sql import functions as f

    # Not Arrow's kind of function: those ask for pandas.
    found = f.udf(facts_of, _FACTS, useArrow=False)(*INPUT[2:])
    return (
        messages.select("queue", "who", f.explode(found).alias("fact"))
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
    for place, char in enumerate(key):
        if not char.isalpha():
            return key[: place + (not char.isdigit())]
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
