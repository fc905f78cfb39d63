"""`spark.read.format("penstock").load(…)`, planned as `penstock.spark.table` plans it.

Spark does not tell a source written in Python which columns a query needs, and the filters that it tells are kept for
the next query of the same DataFrame, which is wrong. Its own Parquet reader knows both. So `load` of Spark's reader is
wrapped here: what the files alone can answer is handed to `tables.frame`, everything else to Spark as before. Streams,
Spark Connect and tables of SQL are not touched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.failures import is_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.readwriter import DataFrameReader

SOURCE: Final = "penstock"

# Options that mean the same to both; with any other it is the source that reads.
_SHARED: Final = frozenset(("url", "path", "paths", "queue", "table", "startingtime", "endingtime", "columns"))
_MARK: Final = "_load_by_source"

Load = Callable[..., "DataFrame"]


def plan_ahead() -> None:
    """Wrap `load`, once for all sessions of this process."""
    from pyspark.sql.readwriter import DataFrameReader

    if not hasattr(DataFrameReader, _MARK) and not is_worker():
        setattr(DataFrameReader, _MARK, DataFrameReader.load)
        DataFrameReader.load = _wrapped(DataFrameReader.load)  # type: ignore[method-assign]


def load_by_source(reader: DataFrameReader) -> DataFrame:
    """What `load` does without us."""
    load: Load = getattr(reader, _MARK, reader.load)
    return load()


def _wrapped(load: Load) -> Load:
    @functools.wraps(load)
    def load_planned(self: DataFrameReader, path: Any = None, *args: Any, **options: Any) -> DataFrame:
        given = None if args else _shared_options(self.options(**_apart(self, options)), path)
        if given is None:
            return load(self, path, *args)
        from penstock.spark.tables import frame

        return frame(self._spark, given)

    return load_planned


def _apart(reader: DataFrameReader, options: dict[str, Any]) -> dict[str, Any]:
    """The options among the keywords of `load`; the others are said to the reader."""
    for name in ("format", "schema"):
        value = options.pop(name, None)
        if value is not None:
            getattr(reader, name)(value)
    return options


def _shared_options(reader: DataFrameReader, path: Any) -> dict[str, str] | None:
    """The options of a read that the files can answer; None for any other read."""
    java: Any = reader._jreader
    if java.source() != SOURCE or java.userSpecifiedSchema().isDefined():
        return None
    given = dict(_pairs(java.extraOptions()))
    if path is not None:
        given["path"] = path if isinstance(path, str) else ",".join(path)
    return given if _SHARED.issuperset(name.lower() for name in given) else None


def _pairs(options: Any) -> list[tuple[str, str]]:
    found = []
    pairs = options.originalMap().iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found.append((pair._1(), pair._2()))
    return found
