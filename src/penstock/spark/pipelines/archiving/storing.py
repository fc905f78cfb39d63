"""The archive's directory: what is staged is put in its place and counts from the moment that the manifest names it.

    _penstock/archive.json         the manifest, replaced as a whole
    _penstock/stage/               files that tasks have written
    _penstock/replaced/            files that compaction has joined into others, for a while
    queue=<name>/date=<day>/…      the files themselves, and all that end in `.parquet`

Stage, rename, replace the manifest: a run that dies anywhere leaves at most files of the generation that never came to
be, and the next run removes those. Compaction moves the old files out of sight before the new one is put in their
place, so that no listing of the directories ever shows a message twice; a run that dies in between has its files put
back by the next one, and whoever goes by the manifest finds them meanwhile (`located`). Nothing else is ever removed
but what compaction replaced a while ago; and without a manifest an archive is not touched at all, because all of its
files would look left over.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import InvalidField, StorageError
from penstock.spark.pipelines.archiving import manifest as manifests
from penstock.spark.pipelines.archiving.manifest import File, Manifest, Range
from penstock.spark.pipelines.state import read_state, sync_directory, write_state

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
        """Get ready to write: read the manifest, remove what a crash has left; the files that were removed."""
        self.manifest = self._read()
        shutil.rmtree(self.stage, ignore_errors=True)
        left = [path for path in self._stored() if manifests.generation_of(path) == self.manifest.generation + 1]
        self._remove(self.out / path for path in left)
        self._restore()
        manifest, old = manifests.forgotten(self.manifest, now - GRACE)
        if old:
            # An archive that was compacted by an earlier version has them in their old places, or without the suffix.
            places = ((self.out / path, hidden(self.out, path), hidden(self.out, path).with_suffix("")) for path in old)
            self._remove(chain.from_iterable(places))
            self._swap(manifest)
        return left

    def claim(self, shard: bytes) -> None:
        """Be the archive of this data; refused if it is that of another, whose offsets are the same numbers."""
        if self.manifest.shard not in ("", shard.hex()):
            raise InvalidField(f"out: {self.out} is an archive of other data", hint="archive to another directory")
        if not self.manifest.shard:
            self.manifest = msgspec.structs.replace(self.manifest, shard=shard.hex())
            write_state(self.out / HOME / MANIFEST, self.manifest)

    def add(self, staged: Iterable[File], covered: Mapping[tuple[str, int, str], Range]) -> list[File]:
        """Take in files that hold these offsets."""
        files = self._place(staged)
        self._swap(manifests.extended(self.manifest, files, covered))
        return files

    def replace(self, lots: Sequence[Sequence[File]], staged: Sequence[File], now: int) -> list[File]:
        """Take in a file for each lot of others that holds what they did."""
        files: list[File] = []
        for lot, file in zip(lots, staged, strict=True):
            self._hide(lot)
            files += self._place([file], len(files))
        self._swap(manifests.joined(self.manifest, [file for lot in lots for file in lot], files, now))
        return files

    def _read(self) -> Manifest:
        found = read_manifest(self.out)
        if found is None:
            if any(manifests.generation_of(path) is not None for path in self._stored()):
                hint = f"restore {HOME}/{MANIFEST} from a backup, or archive to another directory"
                raise InvalidField(f"out: {self.out} holds an archive without its manifest", hint=hint)
            found = Manifest()
            write_state(self.out / HOME / MANIFEST, found)
        return found

    def _stored(self) -> list[str]:
        return sorted(path.relative_to(self.out).as_posix() for path in self.out.glob("queue=*/date=*/*.parquet"))

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def _hide(self, files: Sequence[File]) -> None:
        self._move([(self.out / file.path, hidden(self.out, file.path)) for file in files])

    def _restore(self) -> None:
        """Files that a run has moved out of sight and did not live to replace."""
        files = [(hidden(self.out, file.path), self.out / file.path) for file in self.manifest.files]
        self._move([(source, target) for source, target in files if source.exists()])

    def _move(self, moves: Sequence[tuple[Path, Path]]) -> None:
        for source, target in moves:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
        for folder in {path.parent for move in moves for path in move}:
            sync_directory(folder)

    def _place(self, staged: Iterable[File], first: int = 0) -> list[File]:
        placed: list[File] = []
        folders: set[Path] = {self.out}
        for number, file in enumerate(staged, first):
            path = manifests.path_of(file, self.manifest.generation + 1, number)
            target = self.out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(self.stage / file.path, target)
            except FileNotFoundError:
                hint = "--out must be a directory that all hosts of the cluster share"
                raise StorageError(f"a file that a task has written is not in {self.stage}", hint=hint) from None
            folders |= {target.parent, target.parent.parent}
            placed.append(msgspec.structs.replace(file, path=path))
        for folder in folders:
            sync_directory(folder)
        return placed

    def _swap(self, manifest: Manifest) -> None:
        write_state(self.out / HOME / MANIFEST, manifest)
        self.manifest = manifest


def located(out: Path, file: File) -> Path:
    """Where a file that the manifest names is: in its place, or out of sight while it is being replaced."""
    public = out / file.path
    return public if public.exists() else hidden(out, file.path)


def hidden(out: Path, path: str) -> Path:
    """Where a file is while it is out of sight."""
    return out / HOME / REPLACED / (path + SUFFIX)


def read_manifest(out: Path) -> Manifest | None:
    """The manifest of an archive, if there is one."""
    found = read_state(out / HOME / MANIFEST, Manifest)
    if found is not None and found.format > manifests.FORMAT:
        hint = "use the version of Penstock that wrote it, or a newer one"
        raise InvalidField(f"out: the archive in {out} is of format {found.format}", hint=hint)
    return found
