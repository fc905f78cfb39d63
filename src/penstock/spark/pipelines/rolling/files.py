"""Where roll-ups lie: Parquet files by grain and date, and the state that says which of them count.

    rollup.json                                            the state; replaced as a whole, so a run counts or does not
    tables/grain=minute/date=2026-11-16/00000007.parquet   one file per grain and date, named by the run that wrote it

A date that a run touches is written anew as a whole. Files of a run that died are removed by the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import InvalidField
from penstock.spark.pipelines.state import read_state, write_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = 1


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """How far a partition has been counted."""

    end_offset: int
    pushed_last_us: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the tables hold."""

    format: int = FORMAT
    url: str
    key_prefix: str | None = None
    queues: tuple[str, ...] = ()
    generation: int = 0  # runs that have written something
    dates: dict[str, int] = {}  # the run that wrote each date last
    cursors: dict[str, dict[str, Cursor]] = {}  # by queue and partition
    settled_last_us: int = 0


class RollupFiles:
    """The files of one roll-up."""

    def __init__(self, out: Path) -> None:
        self.out = out.absolute()  # Spark's own directory may be another
        self.folder = self.out / "tables"
        self._path = self.out / "rollup.json"

    def open(self, url: str, key_prefix: str | None, *, is_rebuild: bool) -> State:
        """The state to go on from. What a run that died has left is removed."""
        source = url if "://" in url else str(Path(url).resolve())
        found = read_state(self._path, State)
        state = State(url=source, key_prefix=key_prefix, generation=found.generation if found else 0)
        state = found if found and not is_rebuild else state
        for name, was, wanted in (("url", state.url, source), ("key-prefix", state.key_prefix, key_prefix)):
            if was != wanted:
                hint = "give another directory with --out, or begin again with --rebuild"
                raise InvalidField(f"--{name}: {self.out} was made with {was}, not {wanted}", hint=hint)
        shutil.rmtree(self._staged, ignore_errors=True)
        if not is_rebuild:
            self._sweep(state)
        return state

    def replace(self, before: State, after: State, fresh: DataFrame, recounted: DataFrame) -> State:
        """Put fresh rows to those that are there; minutes (queue, minute_us) that were recounted replace theirs."""
        from pyspark.sql import functions as f

        touched = [date for date, generation in after.dates.items() if generation == after.generation]
        stored = self.minutes(fresh.sparkSession, before, touched).withColumn("minute_us", f.unix_micros("bucket"))
        pushes = stored.where(f.col("group").isNull())
        kept = stored.where(f.col("group").isNotNull()).join(recounted, ["queue", "minute_us"], "left_anti")
        self._stage(pushes.unionByName(kept).drop("minute_us").unionByName(fresh))
        self._move(after.generation)
        write_state(self._path, after)
        self._sweep(after)
        return after

    def minutes(self, spark: SparkSession, state: State, dates: Sequence[str] | None = None) -> DataFrame:
        """Stored rows of minutes, without percentiles; of all dates or of these."""
        from penstock.spark.pipelines.rolling.frames import ROW

        return self.tables(spark, state, dates).where("grain = 'minute'").select(*ROW)

    def tables(self, spark: SparkSession, state: State, dates: Sequence[str] | None = None) -> DataFrame:
        """Everything that counts, with the columns `grain` and `date`."""
        wanted = state.dates if dates is None else {date: state.dates[date] for date in dates if date in state.dates}
        names = [f"grain=*/date={date}/{_name(generation)}" for date, generation in wanted.items()]
        found = [str(path) for name in names for path in self.folder.glob(name)]
        if not found:
            from penstock.spark.pipelines.rolling.frames import table_schema

            return spark.createDataFrame([], table_schema(spark))
        return spark.read.option("basePath", str(self.folder)).parquet(*found)

    @property
    def is_drawn(self) -> bool:
        """Whether the report is as new as the tables: a run may have died between the two."""
        report = self.out / "report.html"
        return report.exists() and report.stat().st_mtime_ns >= self._path.stat().st_mtime_ns

    @property
    def _staged(self) -> Path:
        return self.out / ".staged"

    def _stage(self, minutes: DataFrame) -> None:
        from pyspark.sql import functions as f

        from penstock.spark.pipelines.rolling.frames import GRAINS, fold, with_percentiles

        date = f.date_format("bucket", "yyyy-MM-dd").alias("date")
        whole = with_percentiles(fold(minutes, *GRAINS)).select("*", date).repartition("grain", "date")
        ordered = whole.sortWithinPartitions("grain", "date", "bucket", "queue", "group", "key_prefix")
        ordered.write.partitionBy("grain", "date").parquet(str(self._staged))

    def _move(self, generation: int) -> None:
        staged = sorted(self._staged.glob("grain=*/date=*/*.parquet"))
        if not staged:
            hint = "with workers on other machines, --out must be a directory that all of them share"
            raise InvalidField(f"--out: what Spark has written to {self.out} is not to be seen here", hint=hint)
        for path in staged:
            place = self.folder / path.relative_to(self._staged).parent / _name(generation)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
        shutil.rmtree(self._staged, ignore_errors=True)

    def _sweep(self, state: State) -> None:
        for path in self.folder.glob("grain=*/date=*/*.parquet"):
            date = path.parent.name.removeprefix("date=")
            if state.dates.get(date) is None or path.name != _name(state.dates[date]):
                path.unlink()


def _name(generation: int) -> str:
    return f"{generation:08d}.parquet"
