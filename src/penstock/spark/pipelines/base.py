"""What a pipeline is: a name, typed options, and a run that gives a report.

A pipeline reads tables (`Run.messages`, `Run.events`), never the live broker, and writes files below `Run.out` or
messages to a queue. What it computes is in functions from DataFrame to DataFrame, so that others can use them; `run`
only combines them. A run can be repeated: what is done already is found and left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.history import absolute_url

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
