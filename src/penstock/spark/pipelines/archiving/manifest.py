"""The archive's manifest: which files count, and which offsets of which queue they cover.

`covered` is the truth about progress: every message of those offsets that the log held is in one of `files`, once. A
queue that was deleted and made again is another one, told apart by its incarnation. Nothing here touches a file; each
change gives a new manifest of the next generation, and the names of files carry the generation that they came with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

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
    """All of the archive."""

    format: int = FORMAT
    shard: str = ""  # whose messages these are: offsets of other data say nothing of them
    generation: int = 0
    covered: dict[str, dict[str, Partitions]] = {}  # queue: incarnation: partitions
    files: list[File] = []
    replaced: list[Replaced] = []


def ranges_of(manifest: Manifest, queue: str, incarnation: int, partition: str) -> list[Range]:
    """The offsets of a partition that are archived."""
    return manifest.covered.get(queue, {}).get(str(incarnation), {}).get(partition, [])


def end_of(manifest: Manifest, queue: str, incarnation: int, partition: str) -> int:
    """Where archiving of a partition goes on."""
    ranges = ranges_of(manifest, queue, incarnation, partition)
    return ranges[-1][1] if ranges else 0


def path_of(file: File, generation: int, number: int) -> str:
    """Where a file goes."""
    return f"queue={file.queue}/date={file.date}/{file.incarnation}-{generation:06d}-{number:04d}.parquet"


def generation_of(path: str) -> int | None:
    """The generation that a file came with; None for what is no file of an archive."""
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
    old = [each.path for each in manifest.replaced if each.at < before]
    kept = [each for each in manifest.replaced if each.at >= before]
    return msgspec.structs.replace(manifest, generation=manifest.generation + 1, replaced=kept), old


def date_of(micros: int) -> str:
    """The day of an instant, UTC."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).date().isoformat()
