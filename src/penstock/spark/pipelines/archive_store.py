"""The directory of an archive: its manifest, the files it names, and reading them.

    _penstock/archive.json         the manifest, replaced as a whole
    _penstock/stage/               files that tasks have written
    _penstock/replaced/            files that compaction has joined into others, for a while
    queue=<name>/date=<day>/…      the files themselves, and all that end in `.parquet`

`covered` in the manifest is the truth about progress: every message of those offsets that the log held is in one of
`files`, once. Offsets belong to one incarnation of a queue. Each change makes a manifest of the next generation, and
the names of files carry the generation they came with.

Stage, rename, replace the manifest: a run that dies anywhere leaves at most files of the generation that never came to
be, and the next run removes those. Compaction moves the old files out of sight before it puts the new one in place, so
no listing of the directories ever shows a message twice; when a run dies in between, the next one moves the files back,
and readers of the manifest find them meanwhile (`located`). Nothing else is removed but what compaction replaced a
while ago; without a manifest an archive is not touched, because all of its files would look left over.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import InvalidField, QueueNotFound, StorageError
from penstock.model import to_micros
from penstock.refusals import suggestion
from penstock.spark import functions as f
from penstock.spark.pipelines.state import read_state, sync_directory, write_state
from penstock.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FORMAT: Final = 1
DAY: Final = 86_400_000_000  # µs

_NAME: Final = re.compile(r"queue=[^/]+/date=[0-9-]+/\d+-(\d+)-\d+\.parquet")

Range = tuple[int, int]  # offsets [first, end)
Partitions = dict[str, list[Range]]  # by name: ranges in order, apart from each other


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one partition in a file: `rows` of them, with offsets in [first, end)."""

    partition: str
    first: int
    end: int
    rows: int


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file: messages of one queue, pushed on one day (UTC), sorted by partition and offset."""

    path: str  # below the archive
    queue: str
    incarnation: int
    date: str
    rows: int
    bytes: int
    raw_bytes: int  # in memory
    crc32c: int
    parts: list[Part]


class Replaced(msgspec.Struct, frozen=True):
    """A file that was joined into another and stays a while for those who read it."""

    path: str
    at: int  # µs UTC


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of the archive, and the offsets they cover."""

    format: int = FORMAT
    shard: str = ""  # whose messages these are: offsets of another shard are about other messages
    generation: int = 0
    covered: dict[str, dict[str, Partitions]] = {}  # queue: incarnation: partitions
    files: list[File] = []
    replaced: list[Replaced] = []

    def ranges_of(self, queue: str, incarnation: int, partition: str) -> list[Range]:
        """The offsets of a partition that are archived."""
        return self.covered.get(queue, {}).get(str(incarnation), {}).get(partition, [])

    def end_of(self, queue: str, incarnation: int, partition: str) -> int:
        """The offset at which archiving of a partition continues; 0 when nothing of it is archived."""
        ranges = self.ranges_of(queue, incarnation, partition)
        return ranges[-1][1] if ranges else 0


def path_of(file: File, generation: int, number: int) -> str:
    """The path of a new file below the archive."""
    return f"queue={file.queue}/date={file.date}/{file.incarnation}-{generation:06d}-{number:04d}.parquet"


def generation_of(path: str) -> int | None:
    """The generation a file came with; None for what is no file of an archive."""
    match = _NAME.fullmatch(path)
    return int(match[1]) if match else None


def extended(manifest: Manifest, files: Sequence[File], covered: Mapping[tuple[str, int, str], Range]) -> Manifest:
    """The manifest after more was archived; `covered` is by queue, incarnation and partition."""
    by_queue = {
        queue: {key: {name: list(ranges) for name, ranges in parts.items()} for key, parts in runs.items()}
        for queue, runs in manifest.covered.items()
    }
    for (queue, incarnation, partition), (first, end) in covered.items():
        ranges = by_queue.setdefault(queue, {}).setdefault(str(incarnation), {}).setdefault(partition, [])
        _extend(ranges, first, end)
    return msgspec.structs.replace(
        manifest, generation=manifest.generation + 1, covered=by_queue, files=[*manifest.files, *files]
    )


def _extend(ranges: list[Range], first: int, end: int) -> None:
    if ranges and ranges[-1][1] >= first:
        assert ranges[-1][1] == first, "offsets are archived once"
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((first, end))


def joined(manifest: Manifest, old: Iterable[File], new: Sequence[File], now: int) -> Manifest:
    """The manifest after some files were joined into others."""
    gone = {file.path for file in old}
    return msgspec.structs.replace(
        manifest,
        generation=manifest.generation + 1,
        files=[*(file for file in manifest.files if file.path not in gone), *new],
        replaced=[*manifest.replaced, *(Replaced(path, now) for path in sorted(gone))],
    )


def forgotten(manifest: Manifest, before: int) -> tuple[Manifest, list[str]]:
    """The manifest without files that were replaced before an instant, and those files."""
    old = [file.path for file in manifest.replaced if file.at < before]
    kept = [file for file in manifest.replaced if file.at >= before]
    return msgspec.structs.replace(manifest, generation=manifest.generation + 1, replaced=kept), old


def date_of(micros: int) -> str:
    """The day of an instant, UTC."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).date().isoformat()


HOME: Final = "_penstock"
MANIFEST: Final = "archive.json"
STAGE: Final = "stage"
REPLACED: Final = "replaced"
SUFFIX: Final = ".replaced"  # whoever looks for *.parquet in all directories does not find them
GRACE: Final = 3_600_000_000  # µs that replaced files stay


class Archive:
    """An archive that one run at a time may write to."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.stage = out / HOME / STAGE
        self.manifest = Manifest()

    def open(self, now: int) -> list[str]:
        """Read the manifest and clean up after a crash. Returns the left-over files that were removed."""
        self.manifest = self._read()
        shutil.rmtree(self.stage, ignore_errors=True)
        left = [path for path in self._stored() if generation_of(path) == self.manifest.generation + 1]
        self._remove(self.out / path for path in left)
        self._restore()
        manifest, old = forgotten(self.manifest, now - GRACE)
        if old:
            # An archive that was compacted by an earlier version has them in their old places, or without the suffix.
            paths = ((self.out / path, hidden(self.out, path), hidden(self.out, path).with_suffix("")) for path in old)
            self._remove(chain.from_iterable(paths))
            self._swap(manifest)
        return left

    def claim(self, identity: str) -> None:
        """Become the archive of this history; refuse if it is that of another, whose offsets are the same numbers."""
        if self.manifest.shard not in ("", identity):
            raise InvalidField(f"out: {self.out} is an archive of different data", hint="archive to another directory")
        if not self.manifest.shard:
            self.manifest = msgspec.structs.replace(self.manifest, shard=identity)
            write_state(self.out / HOME / MANIFEST, self.manifest)

    def add(self, staged: Iterable[File], covered: Mapping[tuple[str, int, str], Range]) -> list[File]:
        """Add staged files that hold these offsets."""
        files = self._move_in(staged)
        self._swap(extended(self.manifest, files, covered))
        return files

    def replace(self, lots: Sequence[Sequence[File]], staged: Sequence[File], now: int) -> list[File]:
        """Replace each lot of files by one staged file with the same messages."""
        files: list[File] = []
        for lot, file in zip(lots, staged, strict=True):
            self._hide(lot)
            files += self._move_in([file], len(files))
        self._swap(joined(self.manifest, [file for lot in lots for file in lot], files, now))
        return files

    def _read(self) -> Manifest:
        manifest = read_manifest(self.out)
        if manifest is None:
            if any(generation_of(path) is not None for path in self._stored()):
                hint = f"restore {HOME}/{MANIFEST} from a backup, or archive to another directory"
                raise InvalidField(f"out: {self.out} contains an archive without a manifest", hint=hint)
            manifest = Manifest()
            write_state(self.out / HOME / MANIFEST, manifest)
        return manifest

    def _stored(self) -> list[str]:
        return sorted(path.relative_to(self.out).as_posix() for path in self.out.glob("queue=*/date=*/*.parquet"))

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def _hide(self, files: Sequence[File]) -> None:
        self._move([(self.out / file.path, hidden(self.out, file.path)) for file in files])

    def _restore(self) -> None:
        """Move back files that a run has moved out of sight and died before it replaced them."""
        files = [(hidden(self.out, file.path), self.out / file.path) for file in self.manifest.files]
        self._move([(source, target) for source, target in files if source.exists()])

    def _move(self, moves: Sequence[tuple[Path, Path]]) -> None:
        for source, target in moves:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
        for folder in {path.parent for move in moves for path in move}:
            sync_directory(folder)

    def _move_in(self, staged: Iterable[File], first: int = 0) -> list[File]:
        placed: list[File] = []
        folders: set[Path] = {self.out}
        for number, file in enumerate(staged, first):
            path = path_of(file, self.manifest.generation + 1, number)
            target = self.out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(self.stage / file.path, target)
            except FileNotFoundError:
                hint = "--out must be a directory that all hosts of the cluster share"
                raise StorageError(f"a file written by a Spark task is not in {self.stage}", hint=hint) from None
            folders |= {target.parent, target.parent.parent}
            placed.append(msgspec.structs.replace(file, path=path))
        for folder in folders:
            sync_directory(folder)
        return placed

    def _swap(self, manifest: Manifest) -> None:
        write_state(self.out / HOME / MANIFEST, manifest)
        self.manifest = manifest


def located(out: Path, file: File) -> Path:
    """The path of a file that the manifest names: in its place, or out of sight while it is being replaced."""
    public = out / file.path
    return public if public.exists() else hidden(out, file.path)


def hidden(out: Path, path: str) -> Path:
    """Where a file is while it is out of sight."""
    return out / HOME / REPLACED / (path + SUFFIX)


def read_manifest(out: Path) -> Manifest | None:
    """The manifest of an archive, if there is one."""
    manifest = read_state(out / HOME / MANIFEST, Manifest)
    if manifest is not None and manifest.format > FORMAT:
        hint = "use the version of Penstock that wrote it, or a newer one"
        raise InvalidField(f"out: the archive in {out} has the unknown format {manifest.format}", hint=hint)
    return manifest


def read_archive(
    spark: SparkSession,
    out: str | Path,
    queues: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """Messages of an archive: those of some queues (names or patterns), pushed from `since` to before `until`.

    The columns are those of the table of messages. Files of other days are not opened.
    """
    out = Path(out)
    frame = messages(spark, out, chosen(archive_of(out), queues, since, until))
    if since is not None:
        frame = frame.where(f.col("pushed_at") >= f.lit(since))
    if until is not None:
        frame = frame.where(f.col("pushed_at") < f.lit(until))
    return frame


def archive_of(out: Path) -> Manifest:
    """The manifest of an archive that must exist."""
    manifest = read_manifest(out)
    if manifest is None:
        hint = f"an archive is a directory with {HOME}/{MANIFEST}, written by the pipeline `archive`"
        raise InvalidField(f"archive: no archive in {out}", hint=hint)
    return manifest


def chosen(
    manifest: Manifest, queues: Sequence[str] | None, since: datetime | None = None, until: datetime | None = None
) -> list[File]:
    """The files that may hold messages of these queues and times."""
    names = names_like(manifest.covered, queues or (), "the archive")
    first = date_of(to_micros(since, "since")) if since is not None else ""
    last = date_of(to_micros(until, "until")) if until is not None else "9"
    return [file for file in manifest.files if file.queue in names and first <= file.date <= last]


def names_like(known: Iterable[str], queues: Sequence[str], where: str) -> list[str]:
    """The queues of these names and patterns, all without any; `QueueNotFound` for a name that is not among them."""
    names = sorted(known)
    chosen: set[str] = set()
    for pattern in queues or ("*",):
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching and "*" not in pattern:
            hint = suggestion(pattern, tuple(names)) if names else "there are no queues yet"
            raise QueueNotFound(f"{where} has no queue {pattern!r}", hint=hint)
        chosen.update(matching)
    return sorted(chosen)


def messages(spark: SparkSession, out: Path, files: Sequence[File]) -> DataFrame:
    """The rows of some files."""
    columns = COLUMNS["messages"]
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    if not files:
        return spark.createDataFrame([], schema)
    # Given one by one, files are not searched for columns in their paths.
    return spark.read.schema(schema).parquet(*(str(located(out, file).absolute()) for file in files))
