"""The spec of a window pipeline, in TOML or in Python: what to read, how to cut time, what to compute.

Names are fields of the JSON payload, with dots for fields inside fields; `message.key` and the like are columns of the
message itself. `checked` refuses, by name, everything that can be known to be wrong without the data.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from penstock.errors import InvalidField, PenstockError
from penstock.model import check_name, suggestion
from penstock.units import seconds

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
        text, _, location = str(error).partition(" - at ")
        where = location.strip("`").removeprefix("$.") or "spec"
        raise InvalidField(f"{where}: {text}", hint=ABOUT_SPECS) from None


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
        raise InvalidField(f"sink: {spec.sink!r} is the source too: windows would be counted again without end")
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
            raise InvalidField(f"window.{name}: a {shape.type} window has none", hint=f"it has {', '.join(needed)}")
        if value is not None:
            seconds_of(value, f"window.{name}")
    if shape.type == "sliding" and seconds_of(shape.slide, "window.slide") > seconds_of(shape.size, "window.size"):
        raise InvalidField("window.slide: it is longer than the size, so events between two windows would be lost")
    if shape.type == "session" and spec.mode == "update":
        raise InvalidField("mode: sessions grow together, so they are emitted when they are over", hint="use append")


def _check_aggregates(spec: WindowSpec) -> None:
    if not spec.aggregates:
        raise InvalidField("aggregates: nothing is computed", hint='[[aggregates]] with function = "count"')
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
            raise InvalidField(f"{where}.name: {aggregate.shown!r} is there already", hint=hint)
        names.append(aggregate.shown)


def _check_field(name: str, where: str) -> None:
    if not _FIELD.fullmatch(name):
        raise InvalidField(f"{where}: {name!r} is not the name of a field", hint="fields inside fields are a.b.c")
    if name == MESSAGE[:-1]:
        raise InvalidField(f"{where}: {name!r} is the message itself, so a field of that name cannot be used")
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
