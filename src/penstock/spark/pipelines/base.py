"""What a pipeline is: a name, typed options, and a run that gives a report.

A pipeline reads tables (`Run.messages`, `Run.events`), never the live broker, and writes files below `Run.out` or
messages to a queue. What it computes is in functions from DataFrame to DataFrame, so that others can use them; `run`
only combines them. A run can be repeated: what is done already is found and left alone.

A field of `Options` is a flag. Its name ends with its unit: `_seconds` takes `5m`, `_bytes` takes `64MiB`. A boolean is
a switch, a tuple may be given several times, `none` is None where that is allowed. Every error names the flag as it is
written: `--gap-seconds`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar, Union, get_args, get_origin

import msgspec

from penstock import refusals
from penstock.clock import SystemClock
from penstock.errors import InvalidField
from penstock.history import absolute_url
from penstock.refusals import suggestion
from penstock.units import instant, seconds, size_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a pipeline: fields with a default and a `Meta(description=…)`; they become flags."""

    def __post_init__(self) -> None:
        """A list is as good as a tuple, and must not differ from one when a later run compares them."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, list):
                msgspec.structs.force_setattr(self, name, tuple(value))


class Table(msgspec.Struct, frozen=True):
    """Part of a report: a small table for people, whose rows are plain values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did: figures by name, tables to read, files it wrote, and notes for people."""

    summary: str
    figures: Mapping[str, Any] = {}
    tables: Sequence[Table] = ()
    files: Sequence[str] = ()
    notes: Sequence[str] = ()


class Progress(Protocol):
    """Where a run reports how far it is."""

    def step(self, what: str, done: float | None = None, total: float | None = None) -> None:
        """Now doing `what`; with numbers when they are known."""


class Silent:
    """Progress that is not shown."""

    def step(self, what: str, done: float | None = None, total: float | None = None) -> None:
        """Show nothing."""


class Run:
    """What a pipeline is given: options, where to write, and the tables of some queues."""

    def __init__(
        self,
        spark: SparkSession | None,
        url: str,
        queues: Sequence[str] = (),
        *,
        options: Any,
        out: Path,
        since: datetime | None = None,
        until: datetime | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.spark: SparkSession = spark  # type: ignore[assignment] # None while the run is only checked
        # As the source will spell it, so that a state which names it fits in any working directory.
        self.url = absolute_url(url)  # of a data directory or a broker
        self.queues = tuple(queues)  # names and patterns
        self.options = options  # the pipeline's own `Options`
        self.out = out
        self.since = since
        self.until = until
        self.progress: Progress = progress or Silent()

    def messages(self, *, queues: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """Messages of the queues between `since` and `until` (pushed_at), only these columns."""
        return self._table("messages", queues, columns)

    def events(self, *, queues: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """Events of the queues between `since` and `until` (settled_at), only these columns."""
        return self._table("events", queues, columns)

    def _table(self, name: str, queues: Sequence[str] | None, columns: Sequence[str] | None) -> DataFrame:
        from penstock.spark import table

        names = self.queues if queues is None else queues
        return table(self.spark, self.url, names or "*", name, self.since, self.until, columns)


class Pipeline(msgspec.Struct, frozen=True):
    """A pipeline that can be named on the command line."""

    name: str
    summary: str  # one line
    explanation: str  # what it reads, does and writes; for `pipeline explain`
    options: type[Options]
    run: Callable[[Run], Report]
    check: Callable[[Run], None] = lambda run: None  # refuses what cannot work, before there is a `run.spark`


Text = str | bool | Sequence[str]
Kind = TypeVar("Kind", bound=Options)


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a pipeline, as a command line shows it."""

    name: str
    flag: str
    metavar: str
    about: str
    default: Any
    type: Any  # what a value must be
    is_required: bool
    is_switch: bool
    is_repeated: bool
    choices: tuple[str, ...]

    @property
    def default_shown(self) -> str:
        """The default as it is written on a command line; empty if there is none."""
        if self.is_required or self.default in (None, (), "") or (self.is_switch and not self.default):
            return ""
        if self.is_repeated:
            return ", ".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default).lower()


def flag(name: str) -> str:
    """How an option is written on a command line."""
    return f"--{name.replace('_', '-')}"


def option_list(kind: type[Options]) -> list[Option]:
    """The options of a pipeline, in their order."""
    return [_option(field) for field in msgspec.structs.fields(kind)]


def parse_options(kind: type[Kind], texts: Mapping[str, Text], now: datetime | None = None) -> Kind:
    """Options from text; those that are not given have their defaults."""
    known = {option.name: option for option in option_list(kind)}
    for name in texts:
        if name not in known:
            raise InvalidField(f"{flag(name)}: there is no such option", hint=suggestion(name, tuple(known)))
    for option in known.values():
        if option.is_required and option.name not in texts:
            raise InvalidField(f"{option.flag} is missing", hint=option.about)
    now = now or datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)
    values = {name: _value(known[name], value, now) for name, value in texts.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise InvalidField(str(error)) from None


def _option(field: msgspec.structs.FieldInfo) -> Option:
    plain, about = _plain(field.type)
    choices = tuple(get_args(plain)) if get_origin(plain) is Literal else ()
    default = None if field.default is msgspec.NODEFAULT else field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    return Option(
        name=field.name,
        flag=flag(field.name),
        metavar=_metavar(field.name, plain, choices),
        about=about,
        default=default,
        type=field.type,
        is_required=field.required,
        is_switch=plain is bool,
        is_repeated=get_origin(plain) in (tuple, list),
        choices=choices,
    )


def _plain(kind: Any) -> tuple[Any, str]:
    """A type without its annotations and without None, and what its annotation says of it."""
    about = ""
    while True:
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            about = next(
                (note.description for note in notes if isinstance(note, msgspec.Meta) and note.description), about
            )
        elif get_origin(kind) in (Union, types.UnionType):
            inner = [kind for kind in get_args(kind) if kind is not type(None)]
            if len(inner) > 1:
                return kind, about
            kind = inner[0]
        else:
            return kind, about


def _metavar(name: str, plain: Any, choices: tuple[str, ...]) -> str:
    if choices:
        return "|".join(choices)
    if name.endswith("_seconds"):
        return "DURATION"
    if name.endswith("_bytes"):
        return "SIZE"
    return {bool: "", int: "NUMBER", float: "NUMBER", datetime: "TIME"}.get(plain, "VALUE")


def _value(option: Option, text: Text, now: datetime) -> Any:
    try:
        value = _parsed(option, text, now)
        return msgspec.convert(value, option.type, strict=False)
    except InvalidField as error:
        raise InvalidField(f"{option.flag}: {error.message}", hint=error.hint) from None
    except msgspec.ValidationError as error:
        raise refusals.refusal(error, option.type, text, whole=option.flag) from None


def _parsed(option: Option, text: Text, now: datetime) -> Any:
    if not isinstance(text, str):
        return text
    if text.lower() == "none" and not option.is_required and option.default is None:
        return None
    plain, _ = _plain(option.type)
    if option.name.endswith("_seconds"):
        return seconds(text)
    if option.name.endswith("_bytes"):
        return size_bytes(text)
    return instant(text, now) if plain is datetime else text
