"""Options of the source and of the sink: text from Spark, parsed once into typed values.

Spark passes every option as text. Names are camelCase as Spark's own are, in any case; an unknown one is refused with
the closest known name, since an option that is silently ignored is a filter that silently does not apply.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

import msgspec

from penstock import units
from penstock.clock import SystemClock
from penstock.errors import InvalidField
from penstock.history import Slice, absolute_url
from penstock.refusals import suggestion
from penstock.urls import has_secret, masked

Table = Literal["messages", "events", "tasks"]
Payload = Literal["binary", "string", "json", "none"]
Headers = Literal["map", "list", "none"]
Part = Literal["all", "sealed", "tail"]
Mode = Literal["observe", "consume"]
# `earliest`, `latest`, or offsets by partition, or by queue and partition.
Offsets = Literal["earliest", "latest"] | dict[str, int | dict[str, int]]

T = TypeVar("T", bound=msgspec.Struct)

PARTITION_BYTES: Final = 128 * 2**20

# What Spark adds by itself, and what belongs to a query or to a table of SQL.
_IGNORED: Final = frozenset(
    {"serialization.format", "queryname", "checkpointlocation", "provider", "location", "owner", "external", "comment"}
)
_AGAIN: Final = "option."  # of a table of SQL, Spark says each option twice


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a read. docs/spark.md explains each."""

    url: str
    queues: tuple[str, ...]  # names and patterns
    table: Table = "messages"
    starting_offsets: Offsets = "earliest"
    ending_offsets: Offsets = "latest"
    since: int | None = None  # µs: pushed_at of messages, settled_at of events, at of tasks
    until: int | None = None
    columns: tuple[str, ...] | None = None
    payload: Payload = "binary"
    payload_schema: str | None = None
    headers: Headers = "map"
    part: Part = "all"
    partition_bytes_max: int = PARTITION_BYTES
    fail_on_data_loss: bool = True
    is_local: bool = True
    group: str | None = None
    mode: Mode = "observe"
    messages_per_trigger_max: int | None = None
    lease_seconds: float = 60.0
    slices: tuple[Slice, ...] | None = None  # what to read, planned before; nothing else of the above counts then


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a write. docs/spark.md explains each."""

    url: str
    queue: str
    sink_id: str | None = None
    job_id: str | None = None
    batch_id: int | None = None
    is_reset: bool = False
    checkpoint_location: str | None = None


class _Option(NamedTuple):
    """Which field an option becomes, and how its text is read."""

    field: str
    parse: Callable[[str], Any]


def source_options(texts: Mapping[str, str]) -> SourceOptions:
    """Options of a read; `InvalidField` names the one that is wrong."""
    return _parsed(SourceOptions, _SOURCE, texts, "load('orders'), load('orders,returns') or load('orders.*')")


def sink_options(texts: Mapping[str, str]) -> SinkOptions:
    """Options of a write; `InvalidField` names the one that is wrong."""
    return _parsed(SinkOptions, _SINK, texts, "save('orders') or start('orders')")


def option_names() -> dict[str, tuple[str, ...]]:
    """The options of a read and of a write, for a test of the documentation."""
    return {"source": tuple(name for name in _SOURCE if name != _SLICES), "sink": tuple(_SINK)}


def spelt_slices(slices: Sequence[Slice]) -> str:
    """Slices as the value of an option: what `table()` has planned, for the source to read."""
    return base64.b64encode(msgspec.msgpack.encode(slices)).decode()


def _parsed(kind: type[T], known: Mapping[str, _Option], texts: Mapping[str, str], where: str) -> T:
    by_case = {name.lower(): name for name in known}
    values: dict[str, Any] = {}
    for name, text in texts.items():
        spelt = by_case.get(name.lower())
        if spelt is None:
            if name.lower() not in _IGNORED and not name.lower().startswith(_AGAIN):
                raise InvalidField(f"{name}: there is no such option", hint=_suggestion(name, tuple(known)))
            continue
        option = known[spelt]
        try:
            value = option.parse(text)
        except InvalidField as error:
            raise InvalidField(f"{spelt}: {error.message}", hint=error.hint) from None
        if values.setdefault(option.field, value) != value:
            raise InvalidField("queue: path and queue differ", hint="give the queue once")
    return kind(**_complete(kind, values, where))


def _complete(kind: type[msgspec.Struct], values: dict[str, Any], where: str) -> dict[str, Any]:
    if "url" not in values:
        hint = "option('url', …) is a data directory or the address of a broker: penstock://localhost:7710"
        if not values:
            hint += "; Spark passes no options for a table that declares its columns: omit the columns"
        raise InvalidField("url: required, to locate the queues", hint=hint)
    missing = [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in values]
    if missing:
        raise InvalidField("queue: not given", hint=f"write {where}, or option('queue', 'orders')")
    return values


def _suggestion(name: str, known: tuple[str, ...]) -> str:
    """The suggestion for an unknown name, whatever its case, as Spark's options are."""
    hint = suggestion(name.lower(), tuple(option.lower() for option in known))
    for option in known:
        if repr(option.lower()) in hint:
            return hint.replace(repr(option.lower()), repr(option))
    return f"known: {', '.join(known)}"


# parsing of values


def _url(text: str) -> str:
    if not text.strip():
        raise InvalidField("it is empty", hint="a data directory, or penstock://localhost:7710")
    if has_secret(text):
        hint = "remove it: Spark shows options in its plans. Tasks read it from PGPASSFILE or PGPASSWORD where they run"
        raise InvalidField(f"{masked(text)} contains a password", hint=hint)
    # Tasks may run in other directories than the program that names this one.
    return absolute_url(text)


def _names(text: str) -> tuple[str, ...]:
    """`a,b`, or a JSON list, which is what Spark makes of several paths."""
    parts = msgspec.json.decode(text, type=list[str]) if text.startswith("[") else text.split(",")
    names = tuple(part.strip() for part in parts if part.strip())
    if not names:
        raise InvalidField("it is empty", hint="write names, separated by commas")
    return names


def _word(kind: Any) -> Callable[[str], str]:
    known = get_args(kind)

    def parse(text: str) -> str:
        if text.lower() not in known:
            raise InvalidField(f"{text!r} is not one of {', '.join(known)}", hint=suggestion(text.lower(), known))
        return text.lower()

    return parse


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidField(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise InvalidField(f"{text!r} is not a number from {least}")
        return int(text)

    return parse


def _size(text: str) -> int:
    size = units.size_bytes(text)
    if size < 1:
        raise InvalidField(f"{text!r} is too small", hint="64 to 128 MiB are right for most")
    return size


def _instant(text: str) -> int:
    now = datetime.fromtimestamp(SystemClock().now() / 1_000_000, UTC)
    return round(units.instant(text, now).timestamp() * 1_000_000)


def _planned(text: str) -> tuple[Slice, ...]:
    return msgspec.msgpack.decode(base64.b64decode(text), type=tuple[Slice, ...])


def _offsets(text: str) -> Offsets:
    if text.lower() in ("earliest", "latest"):
        return "earliest" if text.lower() == "earliest" else "latest"
    try:
        offsets = msgspec.json.decode(text, type=dict[str, int | dict[str, int]])
    except msgspec.DecodeError:
        offsets = {}
    numbers = [value for part in offsets.values() for value in (part.values() if isinstance(part, dict) else [part])]
    if not numbers or min(numbers) < 0:
        hint = 'use earliest, latest, {"0": 1000} by partition, or {"orders": {"0": 1000}} by queue and partition'
        raise InvalidField(f"{text!r} is not a set of offsets", hint=hint)
    return offsets


_URL: Final = _Option("url", _url)
_SLICES: Final = "slices"  # internal: from `table()` to the source
_SOURCE: Final = {
    "url": _URL,
    "path": _Option("queues", _names),
    "paths": _Option("queues", _names),
    "queue": _Option("queues", _names),
    "table": _Option("table", _word(Table)),
    "startingOffsets": _Option("starting_offsets", _offsets),
    "endingOffsets": _Option("ending_offsets", _offsets),
    "startingTime": _Option("since", _instant),
    "endingTime": _Option("until", _instant),
    "columns": _Option("columns", _names),
    "payload": _Option("payload", _word(Payload)),
    "payloadSchema": _Option("payload_schema", str.strip),
    "headers": _Option("headers", _word(Headers)),
    "part": _Option("part", _word(Part)),
    "maxPartitionBytes": _Option("partition_bytes_max", _size),
    "failOnDataLoss": _Option("fail_on_data_loss", _truth),
    "local": _Option("is_local", _truth),
    "group": _Option("group", str.strip),
    "mode": _Option("mode", _word(Mode)),
    "maxMessagesPerTrigger": _Option("messages_per_trigger_max", _number(1)),
    "leaseSeconds": _Option("lease_seconds", units.seconds),
    _SLICES: _Option("slices", _planned),
}
_SINK: Final = {
    "url": _URL,
    "path": _Option("queue", str.strip),
    "queue": _Option("queue", str.strip),
    "sinkId": _Option("sink_id", str.strip),
    "jobId": _Option("job_id", str.strip),
    "batchId": _Option("batch_id", _number(0)),
    "resetSink": _Option("is_reset", _truth),
    "checkpointLocation": _Option("checkpoint_location", str.strip),
}
