"""`window`: a stream from one queue to another, window by window, declared by a spec in TOML or in Python.

It runs as a stream that continues where it was stopped, its state in RocksDB; or over history, to preview the windows.
On a stream a window is emitted once, when the watermark (the latest event time seen, less the lateness) has passed its
end; events that come later than that are dropped. In a batch nothing is late and every window is emitted.

In a spec, names are fields of the JSON payload, with dots for fields inside fields; `message.key` and the like are
columns of the message itself. `checked` refuses, by name, everything that can be known to be wrong without the data.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock import limits, refusals
from penstock.errors import InvalidField, PenstockError
from penstock.model import CONTENT_TYPE_NAMES, ContentType, check_name
from penstock.refusals import suggestion
from penstock.spark import functions as f
from penstock.spark.failures import query_error
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.state import read_state, write_state
from penstock.spark.pipelines.streams import follow, start_stream, stream_reader
from penstock.units import plural, seconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


Duration = str | int | float
FieldType = Literal["text", "int", "float", "bool", "time"]

PUSHED_AT: Final = "pushed_at"
MESSAGE: Final = "message."
MESSAGE_COLUMNS: Final = (
    "queue", "partition", "offset", "key", "headers", "priority", "pushed_at", "trace_id", "producer",
)  # fmt: skip
FUNCTIONS: Final = (
    "count", "sum", "avg", "min", "max", "stddev", "first", "last", "collect", "approx_distinct", "p50", "p95", "p99",
)  # fmt: skip
# Functions that take any value; all others want numbers.
OF_ANYTHING: Final = ("count", "first", "last", "collect", "approx_distinct")
ABOUT_SPECS: Final = "docs/pipelines.md shows a whole spec"
START: Final = "window_start"
END: Final = "window_end"
_PERCENTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
_FIELD: Final = re.compile(r"[^.`\s]+(?:\.[^.`\s]+)*")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How time is cut. Durations are seconds, or text such as `5m`."""

    type: Literal["tumbling", "sliding", "session"]
    size: Duration | None = None  # of tumbling and sliding windows
    slide: Duration | None = None  # how far apart sliding windows start
    gap: Duration | None = None  # the silence that ends a session


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a window."""

    function: str
    field: str | None = None
    name: str | None = None

    @property
    def shown(self) -> str:
        """Its name in the payload."""
        return self.name or (f"{self.function}_{self.field}" if self.field else self.function)

    @property
    def percentile(self) -> float | None:
        """The share that a function like `p95` asks for."""
        match = _PERCENTILE.fullmatch(self.function)
        return float(match[1]) / 100 if match else None


class WindowSpec(msgspec.Struct, frozen=True, kw_only=True):
    """From one queue to another, window by window."""

    source: str
    sink: str
    window: Shape
    aggregates: tuple[Aggregate, ...] = (Aggregate(function="count"),)
    keys: tuple[str, ...] = ()
    event_time: str = PUSHED_AT  # a field of the payload, or when the message was pushed
    lateness: Duration = 0.0  # how long a window waits for events that come late
    filter: str | None = None  # SQL over the fields
    fields: Mapping[str, FieldType] = {}  # what the filter names, and fields that are not what their use suggests
    mode: Literal["append", "update"] = "append"


def load_spec(path: Path) -> WindowSpec:
    """A spec from a TOML file."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidField(f"spec: there is no file {path}", hint=ABOUT_SPECS) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidField(f"spec: {path} is not TOML: {error}", hint=ABOUT_SPECS) from None
    except OSError as error:
        raise InvalidField(f"spec: {path} cannot be read: {error.strerror}", hint=ABOUT_SPECS) from None
    return spec_from(raw)


def spec_from(raw: Mapping[str, Any]) -> WindowSpec:
    """A spec from plain values; every refusal names the field."""
    _refuse_unknown(raw, WindowSpec, "")
    _refuse_unknown(raw.get("window"), Shape, "window.")
    aggregates = raw.get("aggregates")
    for number, aggregate in enumerate(aggregates if isinstance(aggregates, list | tuple) else ()):
        _refuse_unknown(aggregate, Aggregate, f"aggregates[{number}].")
    try:
        return checked(msgspec.convert(raw, WindowSpec))
    except msgspec.ValidationError as error:
        raise refusals.refusal(error, WindowSpec, raw, whole="spec") from None


def _refuse_unknown(raw: Any, kind: type[msgspec.Struct], prefix: str) -> None:
    for name in raw if isinstance(raw, Mapping) else ():
        if name not in kind.__struct_fields__:
            hint = suggestion(str(name), kind.__struct_fields__)
            raise InvalidField(f"{prefix}{name}: there is no such field", hint=hint)


def checked(spec: WindowSpec) -> WindowSpec:
    """Return the spec; `InvalidField` names what is wrong with it."""
    for name in ("source", "sink"):
        try:
            check_name(getattr(spec, name), name)
        except PenstockError as error:
            raise InvalidField(error.message, hint=error.hint) from None
    if spec.source == spec.sink:
        raise InvalidField(f"sink: {spec.sink!r} is also the source, so windows would be counted again endlessly")
    _check_shape(spec)
    seconds_of(spec.lateness, "lateness", is_zero_allowed=True)
    _check_aggregates(spec)
    for name in (*spec.keys, *spec.fields):
        _check_field(name, "keys" if name in spec.keys else "fields")
    if spec.event_time != PUSHED_AT:
        _check_field(spec.event_time, "event_time")
    return spec


def _check_shape(spec: WindowSpec) -> None:
    shape = spec.window
    needed = {"tumbling": ("size",), "sliding": ("size", "slide"), "session": ("gap",)}[shape.type]
    for name in ("size", "slide", "gap"):
        value = getattr(shape, name)
        if name in needed and value is None:
            raise InvalidField(f"window.{name}: a {shape.type} window needs it", hint=f'{name} = "5m"')
        if name not in needed and value is not None:
            raise InvalidField(
                f"window.{name}: a {shape.type} window does not have it", hint=f"it has {', '.join(needed)}"
            )
        if value is not None:
            seconds_of(value, f"window.{name}")
    if shape.type == "sliding" and seconds_of(shape.slide, "window.slide") > seconds_of(shape.size, "window.size"):
        raise InvalidField("window.slide: longer than the size, so events between two windows would be lost")
    if shape.type == "session" and spec.mode == "update":
        raise InvalidField("mode: sessions can merge, so they are emitted only when they have ended", hint="use append")


def _check_aggregates(spec: WindowSpec) -> None:
    if not spec.aggregates:
        raise InvalidField("aggregates: there are none", hint='[[aggregates]] with function = "count"')
    names = [START, END, *spec.keys]
    for number, aggregate in enumerate(spec.aggregates):
        where = f"aggregates[{number}]"
        if aggregate.function not in FUNCTIONS and not aggregate.percentile:
            hint = f"any percentile is written like p99.9; {suggestion(aggregate.function, FUNCTIONS)}"
            raise InvalidField(f"{where}.function: there is no {aggregate.function!r}", hint=hint)
        if aggregate.field is None and aggregate.function != "count":
            raise InvalidField(f"{where}.field: {aggregate.function} needs one")
        if aggregate.field is not None:
            _check_field(aggregate.field, f"{where}.field")
        if aggregate.shown in names:
            hint = f'name = "{aggregate.shown}_2"'
            raise InvalidField(f"{where}.name: {aggregate.shown!r} exists already", hint=hint)
        names.append(aggregate.shown)


def _check_field(name: str, where: str) -> None:
    if not _FIELD.fullmatch(name):
        raise InvalidField(f"{where}: {name!r} is not the name of a field", hint="fields inside fields are a.b.c")
    if name == MESSAGE[:-1]:
        raise InvalidField(f"{where}: {name!r} stands for the message, so a field of that name cannot be used")
    column = name.removeprefix(MESSAGE)
    if name.startswith(MESSAGE) and column.split(".")[0] not in MESSAGE_COLUMNS:
        hint = suggestion(column, MESSAGE_COLUMNS)
        raise InvalidField(f"{where}: messages have no {column!r}", hint=hint)


def seconds_of(value: Duration | None, where: str, *, is_zero_allowed: bool = False) -> float:
    """A duration in seconds."""
    try:
        duration = seconds(str(value))
    except InvalidField as error:
        raise InvalidField(f"{where}: {error.message}", hint=error.hint) from None
    if duration < 0.001 and not (is_zero_allowed and duration == 0):
        raise InvalidField(f"{where}: {value!r} is shorter than a millisecond")
    return duration


def types_of(spec: WindowSpec) -> dict[str, FieldType]:
    """The fields of the payload that a spec needs, and what they are taken to be."""
    types: dict[str, FieldType] = dict.fromkeys((name for name in spec.keys), "text")
    for aggregate in spec.aggregates:
        if aggregate.field is not None and (aggregate.function not in OF_ANYTHING or aggregate.field not in types):
            types[aggregate.field] = "text" if aggregate.function in OF_ANYTHING else "float"
    if spec.event_time != PUSHED_AT:
        # As text, since it may be a number too.
        types[spec.event_time] = "text"
    types |= {name: kind for name, kind in spec.fields.items() if name != spec.event_time}
    return {name: kind for name, kind in types.items() if not name.startswith(MESSAGE)}


__all__ = ["PIPELINE", "WindowSpec", "windowed"]

FILE: Final = "window.json"
_STATE: Final = "spark.sql.streaming.stateStore."
STATE_SETTINGS: Final = {
    f"{_STATE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true",
}


class WindowOptions(Options, frozen=True, kw_only=True):
    """Options of `window`."""

    spec: Annotated[str, Meta(description="A TOML file, or module:NAME of a WindowSpec in Python.")]
    available_now: Annotated[bool, Meta(description="Process the existing messages, then stop.")] = False
    preview: (
        Annotated[int, Meta(description="Show this number of windows over history, without pushing.", ge=1)] | None
    ) = None
    trigger_seconds: Annotated[float, Meta(description="The interval of micro-batches.", ge=0)] = 1.0
    messages_max: Annotated[int, Meta(description="The maximum number of messages per micro-batch.", ge=1)] | None = (
        None
    )


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The url and the spec that a directory's checkpoint belongs to."""

    url: str
    spec: WindowSpec


class StreamCounts:
    """What a query has done so far, added up over its micro-batches."""

    def __init__(self) -> None:
        self._batches: dict[int, dict[str, int]] = {}
        self.watermark: str | None = None

    def add(self, progress: Mapping[str, Any]) -> None:
        """Add one micro-batch, unless it is known already."""
        counts = {"late": sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"])}
        for observed in progress.get("observedMetrics", {}).values():
            counts |= {name: int(value or 0) for name, value in observed.items()}
        # Spark repeats the last batch, with nothing in it, while it waits.
        if progress["batchId"] not in self._batches or progress["numInputRows"]:
            self._batches[progress["batchId"]] = counts
        self.watermark = progress.get("eventTime", {}).get("watermark") or self.watermark

    @property
    def figures(self) -> dict[str, int]:
        """All batches together."""
        names = ("messages", "unwanted", "untimed", "late", "windows")
        return {name: sum(batch.get(name, 0) for batch in self._batches.values()) for name in names}


def run(run: Run) -> Report:
    """Run a spec, as a stream or as a preview."""
    options: WindowOptions = run.options
    spec = find_spec(options.spec)
    if options.preview is not None:
        return _preview(run, spec, options.preview)
    _keep(run, spec)
    with _settings(run.spark):
        return _stream(run, spec)


def check(run: Run) -> None:
    """Refuse a spec that is none, queues beside it, and a stream with an end."""
    if run.queues:
        raise InvalidField("queue: the spec names the queue", hint="omit --queue")
    find_spec(run.options.spec)
    if run.options.preview is None and run.until is not None:
        raise InvalidField("until: a stream has no end", hint="use --preview to see windows over past messages")


def find_spec(name: str) -> WindowSpec:
    """A spec from a file, or from a module as `module:NAME`."""
    module, colon, attribute = name.partition(":")
    if not colon or name.endswith(".toml"):
        return load_spec(Path(name))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        spec = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise InvalidField(f"spec: {module!r} cannot be imported: {error}") from None
    if not isinstance(spec, WindowSpec):
        raise InvalidField(
            f"spec: {name} is not a WindowSpec", hint="NAME = WindowSpec(source=…, sink=…, window=Shape(…))"
        )
    return checked(spec)


def _keep(run: Run, spec: WindowSpec) -> None:
    """Note what the checkpoint belongs to. The state of one spec means nothing to another."""
    now, path = Kept(url=run.url, spec=spec), run.out / FILE
    before = read_state(path, Kept)
    if before is not None and before != now:
        changed = [name for name in WindowSpec.__struct_fields__ if getattr(before.spec, name) != getattr(spec, name)]
        what = f"{', '.join(changed)} changed" if changed else f"it ran on {before.url}"
        hint = "use another --out to start over, or remove that directory"
        raise InvalidField(f"spec: {what} since {run.out} was created, so its state cannot be used", hint=hint)
    write_state(path, now)


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """State in RocksDB rather than in Java's heap, with small checkpoints, whatever the session says."""
    before = {name: spark.conf.get(name, None) for name in STATE_SETTINGS}
    for name, value in STATE_SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            spark.conf.unset(name) if earlier is None else spark.conf.set(name, earlier)


def stream_of(messages: DataFrame, spec: WindowSpec) -> DataFrame:
    """`windowed`, with what is counted on the way."""
    events = events_of(messages, spec).observe(
        "events",
        f.count("*").alias("messages"),
        f.count_if(~f.col(ACCEPTED)).alias("unwanted"),
        f.count_if(f.col(ACCEPTED) & f.col(EVENT_AT).isNull()).alias("untimed"),
    )
    return as_messages(windows(events, spec), spec).observe("windows", f.count("*").alias("windows"))


def group_of(spec: WindowSpec) -> str:
    """The consumer group that shows how far a stream is."""
    return f"window.{spec.sink}"[: limits.name_length_max]


def _stream(run: Run, spec: WindowSpec) -> Report:
    frame = stream_of(stream_reader(run, group_of(spec)).load(spec.source), spec)
    name, checkpoint = f"window {spec.source} to {spec.sink}", (run.out / "checkpoint").absolute()
    query = start_stream(run, frame, spec.sink, name=name, mode=spec.mode, checkpoint=checkpoint)
    counts = StreamCounts()
    follow(run, query, counts.add, lambda: "{messages:,} messages, {windows:,} windows".format(**counts.figures))
    return _report(run, spec, counts)


def _report(run: Run, spec: WindowSpec, counts: StreamCounts) -> Report:
    figures = counts.figures
    notes = [f"the next run continues from {run.out}"]
    if spec.mode == "append" and counts.watermark:
        notes.append(f"windows that end after {counts.watermark} are still open")
    if figures["late"]:
        notes.append(
            f"{figures['late']:,} messages arrived too late for their window and were dropped; consider more lateness"
        )
    if figures["untimed"]:
        notes.append(f"{figures['untimed']:,} messages have no time in {spec.event_time!r} and are not in any window")
    came = f"{plural(figures['messages'], 'message')} of {spec.source} became"
    has_new = figures["messages"] or figures["windows"]
    return Report(
        summary=(
            f"{came} {plural(figures['windows'], 'window')} in {spec.sink}"
            if has_new
            else f"nothing new in {spec.source}"
        ),
        figures={**figures, "watermark": counts.watermark},
        files=[str(run.out / FILE)],
        notes=notes,
    )


def _preview(run: Run, spec: WindowSpec, count: int) -> Report:
    windows_ = windows(events_of(run.messages(queues=[spec.source]), spec), spec)
    rows = (
        as_messages(windows_.orderBy("window_start", *(f"`{name}`" for name in spec.keys)), spec).limit(count).collect()
    )
    shown = [msgspec.json.decode(row.payload) for row in rows]
    table = Table("Windows", tuple(windows_.columns), [tuple(window.values()) for window in shown])
    return Report(
        summary=f"{len(shown)} windows of {spec.source}; nothing was pushed",
        figures={"windows": len(shown)},
        tables=[table] if shown else [],
    )


# windows, as functions from DataFrame to DataFrame


EVENT_AT: Final = "_event_at"
ACCEPTED: Final = "_accepted"
TYPES: Final = {"text": "string", "int": "bigint", "float": "double", "bool": "boolean", "time": "timestamp"}
TIMES: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
COLLECTED_MAX: Final = 1_000  # values in one list

_NUMBER: Final = r"^\s*-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*$"


def windowed(messages: DataFrame, spec: WindowSpec) -> DataFrame:
    """Messages of the source in, messages for the sink out: `key`, and `payload` as JSON text."""
    return as_messages(windows(events_of(messages, spec), spec), spec)


def events_of(messages: DataFrame, spec: WindowSpec) -> DataFrame:
    """The fields that a spec needs, the event time (null when a message has none) and whether the filter accepts it."""
    needed = types_of(spec)
    schema = _schema(needed)
    columns = [f.struct(*(name for name in MESSAGE_COLUMNS if name in messages.columns)).alias(MESSAGE[:-1])]
    if schema:
        columns.append(f.from_json(f.col("payload").cast("string"), schema).alias("_json"))
    fields = messages.select(*columns)
    if schema:
        fields = fields.select(MESSAGE[:-1], "_json.*")
    at = f.col(f"{MESSAGE}{PUSHED_AT}") if spec.event_time == PUSHED_AT else _time(_field(spec.event_time))
    return fields.select("*", at.alias(EVENT_AT), _accepted(fields, spec).alias(ACCEPTED))


def _schema(types: dict[str, Any]) -> str:
    """The fields as a type of Spark's, nested by their dots; "" when there are none."""
    tree: dict[str, Any] = {}
    for name, kind in sorted(types.items()):
        *above, last = name.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise InvalidField(f"fields: {name!r} is inside a field that is itself used as a value")
        node[last] = TYPES[kind]
    return _ddl(tree) if tree else ""


def _ddl(tree: dict[str, Any]) -> str:
    parts = ((name, _ddl(kind) if isinstance(kind, dict) else kind) for name, kind in tree.items())
    return f"struct<{', '.join(f'`{name}`: {kind}' for name, kind in parts)}>"


def _field(name: str) -> Column:
    return f.col(".".join(f"`{part}`" for part in name.split(".")))


def _time(text: Column) -> Column:
    """RFC 3339 text, or seconds, milliseconds or microseconds since 1970, distinguished by their size."""
    number = f.when(text.rlike(_NUMBER), text.try_cast("double"))
    size = f.abs(number)
    micros = f.when(size < 1e11, number * 1e6).when(size < 1e14, number * 1e3).otherwise(number)
    return f.coalesce(f.timestamp_micros(f.round(micros).cast("bigint")), text.try_cast("timestamp"))


def _accepted(fields: DataFrame, spec: WindowSpec) -> Column:
    from pyspark.errors import AnalysisException, ParseException

    if spec.filter is None:
        return f.lit(True)
    try:
        condition = f.expr(spec.filter)
        kind = fields.select(condition).schema[0].dataType.simpleString()
    except (AnalysisException, ParseException) as error:
        hint = 'declare the fields that it uses: [fields] total = "float"; columns of the message are message.key …'
        raise InvalidField(f"filter: {query_error(str(error))}", hint=hint) from None
    if kind != "boolean":
        raise InvalidField(f"filter: its type is {kind}, not boolean")
    return f.coalesce(condition, f.lit(False))


def windows(events: DataFrame, spec: WindowSpec) -> DataFrame:
    """One row per window and key: window_start, window_end, the keys, the aggregates."""
    lateness = f"{round(seconds_of(spec.lateness, 'lateness', is_zero_allowed=True) * 1000)} milliseconds"
    timed = events.where(f.col(ACCEPTED) & f.col(EVENT_AT).isNotNull()).withWatermark(EVENT_AT, lateness)
    keys = [_field(name).alias(f"_key{number}") for number, name in enumerate(spec.keys)]
    figures = [_figure(aggregate).alias(f"_figure{number}") for number, aggregate in enumerate(spec.aggregates)]
    grouped = timed.groupBy(_window(spec).alias("_window"), *keys, *_no_key(spec)).agg(*figures)
    named = [f.col(f"_key{number}").alias(name) for number, name in enumerate(spec.keys)]
    named += [f.col(f"_figure{number}").alias(aggregate.shown) for number, aggregate in enumerate(spec.aggregates)]
    return grouped.select(f.col("_window.start").alias(START), f.col("_window.end").alias(END), *named)


def _window(spec: WindowSpec) -> Column:
    def interval(name: str) -> str:
        return f"{round(seconds_of(getattr(spec.window, name), f'window.{name}') * 1000)} milliseconds"

    if spec.window.type == "session":
        return f.session_window(EVENT_AT, interval("gap"))
    if spec.window.type == "sliding":
        return f.window(EVENT_AT, interval("size"), interval("slide"))
    return f.window(EVENT_AT, interval("size"))


def _no_key(spec: WindowSpec) -> list[Column]:
    """Spark has no sessions over a stream without a key: one that is always the same, and that it cannot fold away."""
    if spec.keys or spec.window.type != "session":
        return []
    return [(f.unix_micros(EVENT_AT) * 0).alias("_no_key")]


def _figure(aggregate: Aggregate) -> Column:
    if aggregate.field is None:
        return f.count("*")
    field, at = _field(aggregate.field), f.col(EVENT_AT)
    if aggregate.percentile is not None:
        return f.percentile_approx(field, aggregate.percentile)
    match aggregate.function:
        case "first":
            return f.min_by(field, at)
        case "last":
            return f.max_by(field, at)
        case "collect":
            return f.slice(f.sort_array(f.collect_list(field)), 1, COLLECTED_MAX)
        case "approx_distinct":
            return f.approx_count_distinct(field)
        case name:
            plain = {"count": f.count, "sum": f.sum, "avg": f.avg, "min": f.min, "max": f.max, "stddev": f.stddev}
            return plain[name](field)


def as_messages(rows: DataFrame, spec: WindowSpec) -> DataFrame:
    """Windows as messages: the key is that of the group, the payload a JSON object."""
    payload = f.to_json(f.struct("*"), {"ignoreNullFields": "false", "timestampFormat": TIMES})
    keys = [f.col(f"`{name}`").cast("string") for name in spec.keys]
    key = f.concat_ws("/", *(f.coalesce(column, f.lit("null")) for column in keys))
    key = key if len(keys) > 1 else keys[0] if keys else f.lit(None).cast("string")
    content_type = f.lit(CONTENT_TYPE_NAMES[ContentType.JSON])
    return rows.select(key.alias("key"), payload.alias("payload"), content_type.alias("content_type"))


PIPELINE: Final = Pipeline(
    name="window",
    summary="Aggregate tumbling, sliding and session windows over event time, from one queue to another.",
    explanation=(
        "A spec in TOML or Python declares what to read, the fields to group by, the windows and what to compute. It "
        "runs as a stream. When the watermark (the latest event time minus the lateness) passes the end of a window, "
        "the window is pushed to the sink as one JSON message with its start, end, keys and figures; in mode update, "
        "whenever it changes. Events that arrive later are dropped and counted. Each window is pushed exactly once, "
        "even if the run is killed: the checkpoint in the directory of the run (--out) records the progress.\n\n"
        "--available-now processes the existing messages and stops; the next run continues. --preview 20 shows windows "
        "over history without pushing anything, which helps to write a spec."
    ),
    options=WindowOptions,
    run=run,
    check=check,
)
