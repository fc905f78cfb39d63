"""A table of one moment, planned so that Spark reads what it can by itself.

Sealed messages are Parquet: Spark's own reader takes only the columns and row groups that a query needs, which no
source written in Python is told. So where the files can be seen from here, they are read by Spark, and the source adds
what was not sealed at that moment. It is asked for offsets, not for a place: what is sealed between now and the query
is read from wherever it is by then. Nothing comes twice, nothing is missed, and nothing newer than the moment is seen.

Everything else (events, tasks, a broker on another machine, a cluster) is the source alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import InvalidField
from penstock.history import History, Moment, QueueView, open_history
from penstock.model import suggestion
from penstock.spark import ranges
from penstock.spark.holding import HOLDER
from penstock.spark.options import SourceOptions, source_options
from penstock.spark.schema import COLUMNS
from penstock.spark.sessions import register
from penstock.storage.directory import MARKER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_OFFSET_MAX: Final = 2**63 - 1
_PLACE: Final = "incarnation * 4294967296 + partition_id"  # a partition, as one number

Places = dict[tuple[int, int], int]  # (queue id, partition id): an offset


def table(
    spark: SparkSession,
    url: str | Path,
    queues: str | Iterable[str],
    table: str = "messages",
    since: datetime | None = None,
    until: datetime | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Messages of some queues (names and patterns), as of now; or with `table="events"` what became of them, or with
    `table="tasks"` the lives of those that are tasks.

    `since` ≤ `pushed_at` < `until`; for events it is `settled_at`, for tasks `at`.
    """
    names = [queues] if isinstance(queues, str) else list(queues)
    given = {"url": str(url), "path": ",".join(names), "table": table}
    given |= {name: _spelt(name, at) for name, at in (("startingTime", since), ("endingTime", until)) if at is not None}
    options = source_options(given)
    given["url"] = options.url  # a directory in full: Spark's processes may be in others
    chosen = _known(columns, options.table)
    register(spark)
    with closing(open_history(options.url)) as history:
        root = _root(spark, history) if options.table == "messages" else None
        sealed = _sealed(history, options, root)
    if options.table != "messages":
        return _from_source(spark, given, chosen)
    if root is None:
        return _from_source(spark, {**given, "endingOffsets": sealed.tail()["endingOffsets"]}, chosen)
    return _from_both(spark, given, chosen, root, sealed)


class Sealed:
    """What of a moment's messages is in Parquet files, and which files these are."""

    def __init__(self, moment: Moment, views: Sequence[QueueView], since: int | None, until: int | None) -> None:
        self.queues = {view.incarnation: view for view in views}
        self.since, self.until = since, until
        extents = [each for each in moment.manifest.extents if each.queue in self.queues]
        self._ends: Places = {}
        for each in extents:
            place = (each.queue, each.partition)
            self._ends[place] = max(self._ends.get(place, 0), each.end_offset)
        self.files = sorted(
            {
                each.file
                for each in extents
                if (since is None or each.pushed_last_at >= since) and (until is None or each.pushed_first_at < until)
            }
        )

    def tail(self) -> dict[str, str]:
        """Options of the source for what is not sealed."""
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for view in self.queues.values():
            parts = {each.name: each for each in view.partitions.values()}
            sealed = {name: self._ends.get((view.incarnation, each.id), 0) for name, each in parts.items()}
            starts[view.name] = {name: max(each.start, sealed[name]) for name, each in parts.items()}
            ends[view.name] = {name: each.end for name, each in parts.items()}
        return {"startingOffsets": _json(starts), "endingOffsets": _json(ends)}

    @property
    def has_tail(self) -> bool:
        return any(
            part.end > max(part.start, self._ends.get((view.incarnation, part.id), 0))
            for view in self.queues.values()
            for part in view.partitions.values()
        )

    def outside(self) -> tuple[Places, Places]:
        """Where files have more than is kept: the first offset of those partitions; and where more than the moment
        has, since the manifest may be a little newer: the end of those.
        """
        parts = {
            (view.incarnation, part.id): part for view in self.queues.values() for part in view.partitions.values()
        }
        starts = {place: part.start for place, part in parts.items() if part.start}
        ends = {place: part.end for place, part in parts.items() if self._ends.get(place, 0) > part.end}
        return starts, ends


def _sealed(history: History, options: SourceOptions, root: Path | None) -> Sealed:
    """What is sealed now, its files held where Spark will read them. They are held before anybody looks for them."""
    hold = None if root is None else HOLDER.hold(root)
    try:
        moment = history.look()
        found = Sealed(moment, ranges.chosen(moment, options.queues), options.since, options.until)
    except BaseException:
        if hold is not None:
            HOLDER.let_go(hold)
        raise
    if hold is not None:
        hold.narrow(found.files)
    return found


def _root(spark: SparkSession, history: History) -> Path | None:
    """The data directory, if Spark's own tasks can read it: they run on this machine, and it is here."""
    try:
        is_local = str(spark.sparkContext.master).startswith("local")
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and says so in its own way
        is_local = False
    root = Path(history.files.root)
    return root if is_local and (root / MARKER).is_file() else None


def _from_source(spark: SparkSession, given: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    return spark.read.format("penstock").options(**given, columns=",".join(columns)).load()


def _from_both(
    spark: SparkSession, given: Mapping[str, str], columns: Sequence[str], root: Path, sealed: Sealed
) -> DataFrame:
    rest = {**given, **sealed.tail()}
    if not sealed.files:
        return _from_source(spark, rest, columns)
    parquet = _from_files(spark, root, sealed).select(*(f"`{name}`" for name in columns))
    return parquet.unionByName(_from_source(spark, rest, columns)) if sealed.has_tail else parquet


def _from_files(spark: SparkSession, root: Path, sealed: Sealed) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    types = {**COLUMNS["messages"], "incarnation": "bigint", "partition_id": "int"}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    found = spark.read.schema(schema).parquet(*(str(root / name) for name in sealed.files))
    found = found.where(F.col("incarnation").isin(list(sealed.queues)))
    for is_kept in _kept(*sealed.outside()):
        found = found.where(is_kept)
    if sealed.since is not None:
        found = found.where(F.col("pushed_at") >= F.timestamp_micros(F.lit(sealed.since)))
    if sealed.until is not None:
        found = found.where(F.col("pushed_at") < F.timestamp_micros(F.lit(sealed.until)))
    return found


def _kept(starts: Places, ends: Places) -> Iterable[Column]:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    if starts:
        yield F.col("offset") >= F.coalesce(_looked_up(starts), F.lit(0))
    if ends:
        yield F.col("offset") < F.coalesce(_looked_up(ends), F.lit(_OFFSET_MAX))


def _looked_up(places: Places) -> Column:
    """The offset of a row's partition; null for a partition that is not among these."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    pairs: list[Any] = []
    for (queue, partition), offset in places.items():
        pairs += [F.lit(queue * 2**32 + partition), F.lit(offset)]
    return F.try_element_at(F.create_map(*pairs), F.expr(_PLACE))


def _known(columns: Sequence[str] | None, table: str) -> Sequence[str]:
    known = tuple(COLUMNS[table])
    for name in columns or ():
        if name not in known:
            raise InvalidField(f"columns: the table {table} has no column {name!r}", hint=suggestion(name, known))
    return known if columns is None else list(dict.fromkeys(columns))


def _spelt(name: str, at: datetime) -> str:
    if at.tzinfo is None:
        raise InvalidField(f"{name}: {at.isoformat()} has no time zone", hint="datetime.now(UTC) has one")
    return at.astimezone(UTC).isoformat()


def _json(offsets: Mapping[str, Mapping[str, int]]) -> str:
    return msgspec.json.encode(offsets).decode()
