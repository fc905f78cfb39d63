"""Reading an archive: exactly the files that its manifest names, as the table of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import InvalidField, QueueNotFound
from penstock.model import suggestion, to_micros
from penstock.spark.pipelines.archiving.manifest import File, Manifest, date_of
from penstock.spark.pipelines.archiving.storing import HOME, MANIFEST, located, read_manifest
from penstock.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_archive(
    spark: SparkSession,
    out: str | Path,
    queues: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """Messages of an archive: those of some queues (names or patterns), pushed from `since` to before `until`.

    The columns are those of the table of messages. Days that are not wanted are not opened.
    """
    from pyspark.sql import functions as f

    out = Path(out)
    found = messages(spark, out, chosen(archive_of(out), queues, since, until))
    if since is not None:
        found = found.where(f.col("pushed_at") >= f.lit(since))
    if until is not None:
        found = found.where(f.col("pushed_at") < f.lit(until))
    return found


def archive_of(out: Path) -> Manifest:
    """The manifest of an archive that must be there."""
    manifest = read_manifest(out)
    if manifest is None:
        hint = f"an archive is a directory with {HOME}/{MANIFEST}, as the archive pipeline makes it"
        raise InvalidField(f"archive: there is none in {out}", hint=hint)
    return manifest


def chosen(
    manifest: Manifest, queues: Sequence[str] | None, since: datetime | None = None, until: datetime | None = None
) -> list[File]:
    """The files that may hold what is wanted."""
    names = names_like(manifest.covered, queues or (), "the archive")
    first = date_of(to_micros(since, "since")) if since is not None else ""
    last = date_of(to_micros(until, "until")) if until is not None else "9"
    return [file for file in manifest.files if file.queue in names and first <= file.date <= last]


def names_like(known: Iterable[str], queues: Sequence[str], where: str) -> list[str]:
    """The queues of these names and patterns, all without any; `QueueNotFound` for a name that is not among them."""
    names = sorted(known)
    found: set[str] = set()
    for pattern in queues or ("*",):
        like = [name for name in names if fnmatchcase(name, pattern)]
        if not like and "*" not in pattern:
            hint = suggestion(pattern, tuple(names)) if names else "there are no queues yet"
            raise QueueNotFound(f"{where} has no queue {pattern!r}", hint=hint)
        found.update(like)
    return sorted(found)


def messages(spark: SparkSession, out: Path, files: Sequence[File]) -> DataFrame:
    """The rows of some files."""
    columns = COLUMNS["messages"]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    if not files:
        return spark.createDataFrame([], schema)
    # Given one by one, files are not searched for columns in their paths.
    return spark.read.schema(schema).parquet(*(str(located(out, file).absolute()) for file in files))
