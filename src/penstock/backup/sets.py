"""Writing moments into a backup set, listing, checking and pruning them.

Files that the set has already are not copied again. A new one is a hard link where data directory and set are on one
file system, and a copy otherwise; either way it is read once, and must match the checksum that the data directory's own
manifests have for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from crc32c import crc32c

from penstock.backup.moments import (
    ACCESS,
    FILES,
    FORMAT,
    MARKER,
    MOMENTS,
    Marker,
    Moment,
    StoredFile,
    decode_marker,
    decode_moment,
    encode_moment,
    is_moment_id,
    moment_id,
    moment_name,
    stored_name,
)
from penstock.backup.snapshot import Snapshot, Source
from penstock.backup.targets import Target
from penstock.errors import Damaged, InvalidField, NotADataDirectory, StorageError
from penstock.storage.disk import RealDisk
from penstock.version import VERSION

OnProgress = Callable[[int, int], object]  # bytes done, bytes in all

_OWN: Final = frozenset({MARKER, ACCESS, "lock"})


class BackupSet:
    """The moments at one place."""

    def __init__(self, target: Target) -> None:
        self._target = target

    # looking

    def moments(self) -> list[str]:
        """The ids of all moments, oldest first."""
        self._require_set()
        names = (name.removeprefix(f"{MOMENTS}/").removesuffix(".json") for name in self._target.list(MOMENTS))
        return sorted(name for name in names if is_moment_id(name))

    def moment(self, id: str) -> Moment:
        """One moment."""
        name = moment_name(id)
        try:
            return decode_moment(b"".join(self._target.read(name)), f"{self._target.url}/{name}")
        except FileNotFoundError:
            raise InvalidField(f"at: there is no moment {id!r}", hint="`penstock backup list` shows them") from None

    def read(self, file: StoredFile) -> Iterator[bytes]:
        """The bytes of a file in pieces; `Damaged` at the end if they are not what they were."""
        checked = _Checked(file.name, f"{self._target.url}/{file.stored}", file.bytes, file.crc32c)
        try:
            yield from checked.through(self._target.read(file.stored))
        except FileNotFoundError:
            raise Damaged(f"{self._target.url}/{file.stored} is missing") from None

    def access(self) -> bytes | None:
        """The sealed keys and users; None when the set has none."""
        return b"".join(self._target.read(ACCESS)) if self._target.exists(ACCESS) else None

    def verify(self, on_progress: OnProgress = lambda done, total: None) -> list[str]:
        """Read every file that a moment needs; what is wrong."""
        problems: list[str] = []
        needed: dict[str, StoredFile] = {}
        for id in self.moments():
            try:
                needed |= {file.stored: file for file in self.moment(id).files}
            except (Damaged, StorageError) as error:
                problems.append(error.message)
        done, total = 0, sum(file.bytes for file in needed.values())
        for file in needed.values():
            try:
                for piece in self.read(file):
                    done += len(piece)
                    on_progress(done, total)
            except (Damaged, StorageError) as error:
                problems.append(error.message)
        return problems

    def _require_set(self) -> Marker:
        try:
            return decode_marker(b"".join(self._target.read(MARKER)), f"{self._target.url}/{MARKER}")
        except FileNotFoundError:
            raise NotADataDirectory(
                f"{self._target.url} is not a backup set: it has no {MARKER}", hint="create one with `penstock backup`"
            ) from None

    # writing

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Nobody else changes the set meanwhile."""
        self._target.lock()
        try:
            yield
        finally:
            self._target.close()

    def add(
        self,
        snapshot: Snapshot,
        *,
        access: bytes | None = None,
        on_progress: OnProgress = lambda done, total: None,
        check: Callable[[], object] = lambda: None,
    ) -> Moment:
        """Store a moment. `check` is called between pieces and may raise to give up. The caller is `changing`."""
        self._claim(snapshot.shard)
        copying = _Copying(self._target, snapshot, on_progress, check)
        files = copying.run()
        self._target.sync()
        self._require_stored(files)
        if access is not None:
            self._target.write(ACCESS, [access])
        id = moment_id(snapshot.taken_at, set(self.moments()))
        moment = Moment(
            FORMAT,
            id,
            snapshot.taken_at,
            snapshot.shard,
            snapshot.incarnation,
            snapshot.sequence,
            snapshot.directory_format,
            VERSION,
            files,
        )
        self._target.write(moment_name(id), [encode_moment(moment)])
        self._target.sync()
        return moment

    def prune(self, keep: int | None = None) -> list[str]:
        """Remove all moments but the newest `keep`, and files that none needs; the ids that went."""
        if keep is not None and keep < 1:
            raise InvalidField(f"keep: {keep} is not 1 or more", hint="the newest moment always stays")
        ids = self.moments()
        gone = [] if keep is None else ids[:-keep]
        for id in gone:
            self._target.remove(moment_name(id))
        self._target.sync()  # before the files: what a moment names must be there
        needed = {file.stored for id in ids[len(gone) :] for file in self.moment(id).files}
        for name in self._target.list(FILES):
            if name not in needed:
                self._target.remove(name)
        self._target.sync()
        return gone

    def _claim(self, shard: str) -> None:
        """Make the place a set of this shard; refuse what is something else."""
        if self._target.exists(MARKER):
            if self._require_set().shard != shard:
                raise InvalidField(
                    f"destination: {self._target.url} holds backups of another Penstock", hint="choose another place"
                )
            return
        foreign = sorted(name for name in self._target.list("") if name not in _OWN)
        if foreign:
            raise NotADataDirectory(
                f"{self._target.url} holds {foreign[0]!r} and no {MARKER}", hint="choose an empty or new directory"
            )
        self._target.write(MARKER, [msgspec.json.encode(Marker(FORMAT, shard))])
        self._target.sync()

    def _require_stored(self, files: Iterable[StoredFile]) -> None:
        """Every file is there now. Somebody may have pruned the set meanwhile, where it cannot be locked."""
        stored = self._target.list(FILES)
        for file in files:
            if stored.get(file.stored) != file.bytes:
                raise StorageError(
                    f"{self._target.url}/{file.stored} disappeared while the backup was written", hint="take it again"
                )


class _Copying:
    """Brings the files of one moment into the set."""

    def __init__(
        self, target: Target, snapshot: Snapshot, on_progress: OnProgress, check: Callable[[], object]
    ) -> None:
        self._target = target
        self._snapshot = snapshot
        self._on_progress = on_progress
        self._check = check
        self._stored = target.list(FILES)
        self._may_link = True
        self._done = self._total = 0

    def run(self) -> list[StoredFile]:
        files = [self._named(source) for source in self._snapshot.sources]
        new = [
            (source, file)
            for source, file in zip(self._snapshot.sources, files, strict=True)
            if self._stored.get(file.stored) != file.bytes
        ]
        self._total = sum(file.bytes for _, file in new)
        self._on_progress(0, self._total)
        for source, file in new:
            self._bring(source, file)
        return files

    def _named(self, source: Source) -> StoredFile:
        crc = source.crc32c
        if crc is None:
            crc = 0
            for piece in source.pieces():
                crc = crc32c(piece, crc)
        stored = stored_name(
            self._snapshot.incarnation, source.name, source.size, crc if source.tag is None else source.tag
        )
        return StoredFile(source.name, source.size, crc, stored)

    def _bring(self, source: Source, file: StoredFile) -> None:
        checked = _Checked(file.name, f"{source.disk.root}/{source.at}", file.bytes, file.crc32c)
        if self._may_link and source.data is None and isinstance(source.disk, RealDisk):
            for _ in checked.through(self._counted(source)):
                pass  # read before it has a name in the set: what is damaged must not be taken for sound next time
            self._may_link = self._target.link(file.stored, source.disk.root / source.at)
            if self._may_link:
                return
            self._done -= file.bytes
        self._target.write(file.stored, checked.through(self._counted(source)))

    def _counted(self, source: Source) -> Iterator[bytes]:
        for piece in source.pieces():
            self._check()
            yield piece
            self._done += len(piece)
            self._on_progress(self._done, self._total)


class _Checked:
    """Passes the bytes of a file on, and compares them with what is known of them."""

    def __init__(self, name: str, where: str, size: int, crc: int) -> None:
        self._name = name
        self._where = where
        self._expected = (size, crc)

    def through(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        size = crc = 0
        for piece in pieces:
            size, crc = size + len(piece), crc32c(piece, crc)
            yield piece
        if (size, crc) != self._expected:
            hint = "`penstock doctor` on the data directory, or `penstock backup verify` on the set, shows more"
            raise Damaged(f"{self._where} does not match the checksum of {self._name}", hint=hint)
