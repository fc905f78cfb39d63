"""Windows over event time, as functions from DataFrame to DataFrame; batches and streams alike.

On a stream a window is given out once, when the watermark (the latest event time seen, less the lateness) has passed
its end; events that come later than that are dropped. In a batch nothing is late and every window is given out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.errors import InvalidField
from penstock.model import CONTENT_TYPE_NAMES, ContentType
from penstock.spark.failures import query_error
from penstock.spark.pipelines.windowing.spec import (
    END,
    MESSAGE,
    MESSAGE_COLUMNS,
    PUSHED_AT,
    START,
    Aggregate,
    WindowSpec,
    seconds_of,
    types_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EVENT_AT: Final = "_event_at"
WANTED: Final = "_wanted"
TYPES: Final = {"text": "string", "int": "bigint", "float": "double", "bool": "boolean", "time": "timestamp"}
TIMES: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
COLLECTED_MAX: Final = 1_000  # values in one list

_NUMBER: Final = r"^\s*-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*$"


def windowed(messages: DataFrame, spec: WindowSpec) -> DataFrame:
    """Messages of the source in, messages for the sink out: `key`, and `payload` as JSON text."""
    return as_messages(windows(events_of(messages, spec), spec), spec)


def events_of(messages: DataFrame, spec: WindowSpec) -> DataFrame:
    """The fields that a spec needs, the event time (null when a message has none) and whether the filter wants it."""
    from pyspark.sql import functions as f

    needed = types_of(spec)
    schema = _schema(needed)
    columns = [f.struct(*(name for name in MESSAGE_COLUMNS if name in messages.columns)).alias(MESSAGE[:-1])]
    if schema:
        columns.append(f.from_json(f.col("payload").cast("string"), schema).alias("_json"))
    fields = messages.select(*columns)
    if schema:
        fields = fields.select(MESSAGE[:-1], "_json.*")
    at = f.col(f"{MESSAGE}{PUSHED_AT}") if spec.event_time == PUSHED_AT else _time(_field(spec.event_time))
    return fields.select("*", at.alias(EVENT_AT), _wanted(fields, spec).alias(WANTED))


def _schema(types: dict[str, Any]) -> str:
    """The fields as a type of Spark's, nested by their dots; "" when there are none."""
    tree: dict[str, Any] = {}
    for name, kind in sorted(types.items()):
        *above, last = name.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise InvalidField(f"fields: {name!r} is inside a field that is used as a value itself")
        place[last] = TYPES[kind]
    return _ddl(tree) if tree else ""


def _ddl(tree: dict[str, Any]) -> str:
    parts = ((name, _ddl(kind) if isinstance(kind, dict) else kind) for name, kind in tree.items())
    return f"struct<{', '.join(f'`{name}`: {kind}' for name, kind in parts)}>"


def _field(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col(".".join(f"`{part}`" for part in name.split(".")))


def _time(text: Column) -> Column:
    """RFC 3339 text, or seconds, milliseconds or microseconds since 1970, told apart by their size."""
    from pyspark.sql import functions as f

    number = f.when(text.rlike(_NUMBER), text.try_cast("double"))
    size = f.abs(number)
    micros = f.when(size < 1e11, number * 1e6).when(size < 1e14, number * 1e3).otherwise(number)
    return f.coalesce(f.timestamp_micros(f.round(micros).cast("bigint")), text.try_cast("timestamp"))


def _wanted(fields: DataFrame, spec: WindowSpec) -> Column:
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    if spec.filter is None:
        return f.lit(True)
    try:
        wanted = f.expr(spec.filter)
        kind = fields.select(wanted).schema[0].dataType.simpleString()
    except (AnalysisException, ParseException) as error:
        hint = (
            'say what the fields are that it names: [fields] total = "float"; columns of the message are message.key …'
        )
        raise InvalidField(f"filter: {query_error(str(error))}", hint=hint) from None
    if kind != "boolean":
        raise InvalidField(f"filter: it gives {kind}, not true or false")
    return f.coalesce(wanted, f.lit(False))


def windows(events: DataFrame, spec: WindowSpec) -> DataFrame:
    """One row per window and key: window_start, window_end, the keys, the aggregates."""
    from pyspark.sql import functions as f

    lateness = f"{round(seconds_of(spec.lateness, 'lateness', is_zero_allowed=True) * 1000)} milliseconds"
    timed = events.where(f.col(WANTED) & f.col(EVENT_AT).isNotNull()).withWatermark(EVENT_AT, lateness)
    keys = [_field(name).alias(f"_key{number}") for number, name in enumerate(spec.keys)]
    figures = [_figure(each).alias(f"_figure{number}") for number, each in enumerate(spec.aggregates)]
    grouped = timed.groupBy(_window(spec).alias("_window"), *keys, *_no_key(spec)).agg(*figures)
    named = [f.col(f"_key{number}").alias(name) for number, name in enumerate(spec.keys)]
    named += [f.col(f"_figure{number}").alias(each.shown) for number, each in enumerate(spec.aggregates)]
    return grouped.select(f.col("_window.start").alias(START), f.col("_window.end").alias(END), *named)


def _window(spec: WindowSpec) -> Column:
    from pyspark.sql import functions as f

    def interval(name: str) -> str:
        return f"{round(seconds_of(getattr(spec.window, name), f'window.{name}') * 1000)} milliseconds"

    if spec.window.type == "session":
        return f.session_window(EVENT_AT, interval("gap"))
    if spec.window.type == "sliding":
        return f.window(EVENT_AT, interval("size"), interval("slide"))
    return f.window(EVENT_AT, interval("size"))


def _no_key(spec: WindowSpec) -> list[Column]:
    """Spark has no sessions over a stream without a key: one that is always the same, and that it cannot fold away."""
    from pyspark.sql import functions as f

    if spec.keys or spec.window.type != "session":
        return []
    return [(f.unix_micros(EVENT_AT) * 0).alias("_no_key")]


def _figure(aggregate: Aggregate) -> Column:
    from pyspark.sql import functions as f

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


def as_messages(found: DataFrame, spec: WindowSpec) -> DataFrame:
    """Windows as messages: the key is that of the group, the payload a JSON object."""
    from pyspark.sql import functions as f

    payload = f.to_json(f.struct("*"), {"ignoreNullFields": "false", "timestampFormat": TIMES})
    keys = [f.col(f"`{name}`").cast("string") for name in spec.keys]
    key = f.concat_ws("/", *(f.coalesce(each, f.lit("null")) for each in keys))
    key = key if len(keys) > 1 else keys[0] if keys else f.lit(None).cast("string")
    content_type = f.lit(CONTENT_TYPE_NAMES[ContentType.JSON])
    return found.select(key.alias("key"), payload.alias("payload"), content_type.alias("content_type"))
