"""The files of sealed segments, wherever they are kept: in the data directory, or at a location that a URL names.

    segments/<table>/<file>            in the data directory
    segments/at-<number>/<table>/…     at a location: the object <url>/<shard id>/<table>/<file>
    segments/locations.json            which location a number means, where new files go, and what may be left over

So a name alone says where a file is, and the manifest, which lists names, stays the truth about which files count. The
manifest, its parts and pins are always in the data directory. One line of JSON, one with its CRC32C.

Nothing is looked for at a location. A name is put on the list of leftovers, durably, before its object is written, and
before a manifest without it comes into force; so each object of this shard is named by the manifest, or on the list, or
both. The sweep removes what is only on the list. Names are never used twice: each has the number of the opening (with a
journal in PostgreSQL, the term) and a number within it. So an object that was once given up cannot count again, an
upload that arrives late cannot replace anything, and no directory removes what another one, a copy of it, has written.
What both name is removed by the one of them that owns the location: see `location_owner`.
"""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from crc32c import crc32c

from penstock import limits
from penstock.clock import Clock, SystemClock
from penstock.errors import Damaged, InvalidField, PenstockError, StorageError, Unavailable
from penstock.storage.block_cache import BlockCache, BlockReader, key_of
from penstock.storage.disk import Bytes, Disk, File, ReadableDisk
from penstock.storage.location_owner import CONTENT_BYTES, Ownership, decode_token, encode_token
from penstock.storage.objects import LOCAL, Objects, check_url, is_refusal, open_objects
from penstock.storage.schema import SCHEMAS

DIRECTORY: Final = "segments"
BOOK_NAME: Final = f"{DIRECTORY}/locations.json"
FILE_NAME: Final = re.compile(r"(\d{20})-(\d+)(?:-(\d+))?\.parquet")
# An object that is always there, so that a missing one can be told from a missing location; it says whose it is.
PROOF: Final = "PENSTOCK"
PROBE: Final = "probe"  # always of this name: what a crash leaves of it, the next attempt removes
FORMAT: Final = 1
PAUSE_US_MIN: Final = 250_000  # after a failure, before the location is asked again
PAUSE_US_MAX: Final = 15_000_000

_PROBE_HINT: Final = (
    "check the URL, that the bucket exists, and the credentials in the environment: objects below the prefix must be "
    "written, read, listed and removed"
)
_LOCATED: Final = re.compile(rf"{DIRECTORY}/at-([1-9]\d*)(?:/(.+))?")
logger: Final = logging.getLogger("penstock.storage")

Connect = Callable[[str], Objects]
T = TypeVar("T")


class SegmentOptions(msgspec.Struct, frozen=True):
    """Where new files go, and how much of those elsewhere is cached."""

    url: str | None = None  # None: where they went before
    cache_bytes: int = limits.segments_cache_bytes_default
    claims: bool = False  # take the locations over, whichever directory has them

    @classmethod
    def of(cls, url: str | Path | None, cache_bytes: int = limits.segments_cache_bytes_default) -> SegmentOptions:
        """Checked; `InvalidField` names what is wrong."""
        is_number = isinstance(cache_bytes, int) and not isinstance(cache_bytes, bool)
        if not is_number or not 0 <= cache_bytes <= limits.segments_cache_bytes_max:
            expected = f"is not a number of bytes from 0 to {limits.segments_cache_bytes_max}"
            raise InvalidField(f"segments_cache_bytes: {cache_bytes!r} {expected}", hint="0 disables the cache")
        return cls(url if url is None or url == LOCAL else check_url(str(url)), cache_bytes)


KEPT: Final = SegmentOptions()


class LocationEntry(msgspec.Struct, frozen=True):
    """One location that files of a directory may be at."""

    number: int
    url: str
    shard: str  # the id under whose prefix they are


class Book(msgspec.Struct, frozen=True):
    """What locations.json holds."""

    format: int = FORMAT
    openings: int = 0
    current: int = 0  # where new files go; 0: the data directory
    locations: list[LocationEntry] = []
    leftovers: list[str] = []

    def number_of(self, url: str, shard: str) -> int:
        """The number of a location, 0 when it is not known."""
        return next((entry.number for entry in self.locations if (entry.url, entry.shard) == (url, shard)), 0)


def read_book(disk: ReadableDisk) -> Book:
    """The locations of a data directory; an empty book when there is none."""
    try:
        data = disk.read(BOOK_NAME)
    except FileNotFoundError:
        return Book()
    text, _, check = data.partition(b"\n")
    if check.strip() != b"crc32c=%08x" % crc32c(text):
        raise Damaged(f"{BOOK_NAME} does not match its checksum")
    book = msgspec.json.decode(text, type=Book)
    if book.format != FORMAT:
        raise StorageError(f"{BOOK_NAME}: this version does not know format {book.format}")
    return book


def write_book(disk: Disk, book: Book) -> None:
    """Replace the book."""
    text = msgspec.json.encode(book)
    disk.write_whole(BOOK_NAME, text + b"\ncrc32c=%08x\n" % crc32c(text))


def location_number(name: str) -> int:
    """The location where a file is; 0 for one in the data directory."""
    match = _LOCATED.fullmatch(name)
    return 0 if match is None else int(match[1])


def is_located(name: str) -> bool:
    """Whether a name is that of a file at a location."""
    return location_number(name) > 0


class Location:
    """The objects of one shard at one location.

    After a failure nothing is asked of it for a moment, longer each time; then one caller tries, and the others get the
    error at once until that one has had an answer.
    """

    def __init__(self, entry: LocationEntry, objects: Objects, clock: Clock) -> None:
        self.entry = entry
        self.number, self.url = entry.number, entry.url
        self._objects = objects
        self._clock = clock
        self._trouble: tuple[int, Unavailable] | None = None  # until when, on the monotonic clock
        self._pause_us = PAUSE_US_MIN
        self._trying = threading.Lock()

    def put(self, key: str, data: Bytes) -> None:
        self._asked(lambda: self._objects.put(self._key(key), data))

    def read(self, key: str, position: int, length: int) -> bytes:
        return self._found(lambda: self._objects.read(self._key(key), position, length))

    def size(self, key: str) -> int:
        return self._found(lambda: self._objects.size(self._key(key)))

    def list(self, prefix: str) -> list[str]:
        return self._asked(lambda: self._objects.list(self._key(prefix)))

    def remove(self, key: str) -> None:
        """Remove an object; `FileNotFoundError` when it is not there."""
        self._found(lambda: self._objects.remove(self._key(key)))

    def path(self, key: str) -> Path | None:
        return self._objects.path(self._key(key))

    def probe(self, token: str) -> None:
        """Write, read, list and remove a small object: whatever will be needed later is refused now."""
        key, data = PROBE, token.encode()
        self._trouble = None
        try:
            self.put(key, data)
            present = self.list("")
            is_sound = self.read(key, 0, len(data) + 1) == data and key in present
            if PROOF not in present:
                self.put(PROOF, data)
            self.remove(key)
        except FileNotFoundError:
            is_sound = False
        if not is_sound:
            raise Unavailable(
                f"segments: what was written to {self.entry.url} cannot be read, listed and removed there"
            )

    def check(self) -> None:
        """Raise `Unavailable` unless the location answers, and is the one that it was."""
        self._proof()

    def owner(self) -> str:
        """The token of the directory that has it; empty when none has. Raises as `check` does."""
        return decode_token(self._proof())

    def _proof(self) -> bytes:
        self._trouble = None
        try:
            return self._asked(lambda: self._objects.read(self._key(PROOF), 0, CONTENT_BYTES))
        except FileNotFoundError:
            raise Unavailable(
                f"segments: {self.entry.url} contains no data of this shard",
                hint="check that it is mounted and still the same bucket",
            ) from None

    def set_owner(self, token: str) -> None:
        self.put(PROOF, encode_token(token))

    def _key(self, key: str) -> str:
        return f"{self.entry.shard}/{key}" if key else self.entry.shard

    def _found(self, operation: Callable[[], T]) -> T:
        """A missing object is believed only while the location itself is there."""
        try:
            return self._asked(operation)
        except FileNotFoundError:
            self.check()
            raise

    def _asked(self, operation: Callable[[], T]) -> T:
        trouble = self._trouble
        if trouble is None:
            return self._tried(operation)
        if self._clock.monotonic() < trouble[0] or not self._trying.acquire(blocking=False):
            raise Unavailable(trouble[1].message, hint=trouble[1].hint)
        try:
            return self._tried(operation)
        finally:
            self._trying.release()

    def _tried(self, operation: Callable[[], T]) -> T:
        try:
            result = operation()
        except Unavailable as error:
            failure = Unavailable(f"segments: {self.entry.url} cannot be used: {error.message}", hint=error.hint)
            self._trouble = self._clock.monotonic() + self._pause_us, failure
            self._pause_us = min(2 * self._pause_us, PAUSE_US_MAX)
            raise failure from error
        except FileNotFoundError:
            self._trouble, self._pause_us = None, PAUSE_US_MIN
            raise
        self._trouble, self._pause_us = None, PAUSE_US_MIN
        return result


class ReadableSegments:
    """A `ReadableDisk` that also has the files at locations. `listed` tells the sizes of files that count."""

    def __init__(
        self,
        disk: ReadableDisk,
        *,
        cache: BlockReader | None = None,
        connect: Connect = open_objects,
        clock: Clock | None = None,
    ) -> None:
        self.root = disk.root
        self.listed: Mapping[str, Any] = {}
        self._readable = disk
        self._blocks = cache
        self._connect = connect
        self._clock = clock or SystemClock()
        self._book: Book | None = None
        self._locations: dict[int, Location] = {}
        self._opening = threading.Lock()

    @property
    def book(self) -> Book:
        if self._book is None:
            self._book = read_book(self._readable)
        return self._book

    def location(self, number: int) -> Location:
        """The location that a number means."""
        with self._opening:
            if number not in self._locations:
                entries = {entry.number: entry for entry in self.book.locations}
                if number not in entries:  # since the book was read
                    self._book = read_book(self._readable)
                    entries = {entry.number: entry for entry in self._book.locations}
                if number not in entries:
                    raise Damaged(f"{BOOK_NAME} does not name location {number}")
                self._locations[number] = self._opened(entries[number])
            return self._locations[number]

    def _opened(self, entry: LocationEntry) -> Location:
        return Location(entry, self._connect(entry.url), self._clock)

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        found = self._find(name)
        if found is None:
            return self._readable.read(name, position, length)
        location, key = found
        if length is None:
            length = max(0, self.size(name) - position)
        if self._blocks is None:
            return location.read(key, position, length)
        return self._blocks.read(name, position, length, lambda start, size: location.read(key, start, size))

    def exists(self, name: str) -> bool:
        found = self._find(name)
        if found is None:
            return self._readable.exists(name)
        try:
            found[0].size(found[1])
        except FileNotFoundError:
            return bool(found[0].list(found[1]))
        return True

    def size(self, name: str) -> int:
        found = self._find(name)
        if found is None:
            return self._readable.size(name)
        known = self.listed.get(name)
        return found[0].size(found[1]) if known is None else int(known.bytes)

    def list(self, directory: str) -> list[str]:
        found = self._find(directory)
        return self._readable.list(directory) if found is None else found[0].list(found[1])

    def open_input(self, name: str) -> Any:
        if not is_located(name):
            return self._readable.open_input(name)
        return pa.PythonFile(RangedFile(self.read, name, self.size(name)), mode="r")

    def path(self, name: str) -> Path | None:
        """Where any program on this machine can read a file; None when it cannot."""
        found = self._find(name)
        return Path(self.root) / name if found is None else found[0].path(found[1])

    def directories(self) -> Sequence[str]:
        """Where segment files may be: the directories of this disk, then those at locations."""
        roots = [DIRECTORY, *(f"{DIRECTORY}/at-{entry.number}" for entry in self.book.locations)]
        return [f"{root}/{table}" for root in roots for table in SCHEMAS]

    def _find(self, name: str) -> tuple[Location, str] | None:
        match = _LOCATED.fullmatch(name)
        return None if match is None else (self.location(int(match[1])), match[2] or "")


class SegmentFiles(ReadableSegments):
    """A `Disk` that keeps segment files where its book says. Everything else is in the data directory.

    `term` numbers this opening, where the names of files must say who wrote them; 0: the book counts openings as soon
    as there is a location, and files in the data directory keep their short names.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        connect: Connect = open_objects,
        clock: Clock | None = None,
        term: int = 0,
    ) -> None:
        super().__init__(disk, connect=connect, clock=clock)
        self._disk = disk
        self.cache: BlockCache | None = None
        self.term = term
        self._numbers = count()
        self._owners = Ownership(disk)

    def keep_cache(self, cache: BlockCache | None) -> None:
        """Keep what is read and written at locations in this cache too."""
        self.cache = self._blocks = cache

    # Which location is in use.

    def use(self, url: str, identity: str, before_first: Callable[[], object], token: str) -> None:
        """Keep new files at a location, or again in the data directory. A new location must prove itself first.

        `identity` is the prefix of this history there. `before_first` is called before the book names its first
        location.
        """
        if url == LOCAL:
            if self.book.current:
                self._write(msgspec.structs.replace(self.book, current=0))
            return
        number = self.book.number_of(url, identity)
        if number == 0:
            number = 1 + max((entry.number for entry in self.book.locations), default=0)
            entry = LocationEntry(number, url, identity)
            location = self._opened(entry)
            try:
                location.probe(token)
            except Unavailable as error:
                raise Unavailable(error.message, hint=_PROBE_HINT) from error
            self._owners.take(location)
            before_first()
            self._locations[number] = location
            self._write(msgspec.structs.replace(self.book, current=number, locations=[*self.book.locations, entry]))
        elif self.book.current != number:
            self._write(msgspec.structs.replace(self.book, current=number))

    def begin(self, *, claims: bool = False) -> None:
        """Count the opening, and take the location. One that is away is waited for later, and taken then.

        `claims`: take all locations over, whichever directory has them.
        """
        if claims:
            for entry in self.book.locations:
                self._owners.take(self.location(entry.number), claims=True)
        if self.book.current == 0:
            return
        if self.term == 0:
            # By the clock, so that it is another one in a copy of the directory, and when the book was lost.
            openings = max(self.book.openings + 1, self._clock.now() // 1_000_000)
            self._write(msgspec.structs.replace(self.book, openings=openings))
            self.term = openings
        try:
            self._owners.take_once(self.location(self.book.current))
        except Unavailable as error:
            if is_refusal(error):
                raise
            logger.warning("the location of sealed segments does not answer; retrying later: %s", error)

    def check_current(self) -> None:
        """Raise `Unavailable` when new files cannot be written, `DirectoryInUse` when another directory writes them."""
        if self.book.current:
            self._owners.check(self.location(self.book.current))

    def new_name(self, table: str, first_sequence: int, number: int) -> str:
        """A name for a new file. `number` counts within one seal; it is all that short names have."""
        if self.book.current == 0 and self.term == 0:
            return f"{DIRECTORY}/{table}/{first_sequence:020d}-{number}.parquet"
        directory = f"{DIRECTORY}/at-{self.book.current}" if self.book.current else DIRECTORY
        return f"{directory}/{table}/{first_sequence:020d}-{next(self._numbers)}-{self.term}.parquet"

    def next_name(self, table: str, first_sequence: int) -> str:
        """A name that no file of this first sequence has, pinned ones included."""
        if self.book.current or self.term:
            return self.new_name(table, first_sequence, 0)
        prefix = f"{first_sequence:020d}"
        matches = [FILE_NAME.match(name) for name in self._disk.list(f"{DIRECTORY}/{table}") if name.startswith(prefix)]
        return self.new_name(table, first_sequence, 1 + max((int(match[2]) for match in matches if match), default=-1))

    def is_current(self, name: str) -> bool:
        """Whether a file is where new ones go."""
        return location_number(name) == self.book.current

    # What may be left over at locations.

    @property
    def leftovers(self) -> Sequence[str]:
        """Files at locations that are to be removed unless the manifest names them."""
        return list(self.book.leftovers)

    def add_leftovers(self, names: Iterable[str]) -> None:
        """Put files on the list before they are written, or before they are given up."""
        added = [name for name in names if is_located(name)]
        if added:
            still = [name for name in self.book.leftovers if name not in self.listed and name not in added]
            self._write(msgspec.structs.replace(self.book, leftovers=[*still, *added]))

    def clear_leftovers(self, gone: Collection[str]) -> None:
        """Take files off the list that are removed, or that count.

        What was not there stays on the list until the next opening: an upload that failed may still arrive.
        """
        still = [name for name in self.book.leftovers if name not in gone and name not in self.listed]
        if len(still) < len(self.book.leftovers):
            self._write(msgspec.structs.replace(self.book, leftovers=still))

    def removable(self, names: Iterable[str]) -> list[str]:
        """Files that may be removed: none at a location that another directory has taken over, or that is away."""
        names, refused = list(names), set()
        for number in {location_number(name) for name in names} - {0}:
            try:
                self._owners.check(self.location(number))
            except (StorageError, Unavailable) as error:
                logger.warning("files that are not needed any more are left where they are: %s", error)
                refused.add(number)
        return [name for name in names if location_number(name) not in refused]

    def is_of_this_opening(self, name: str) -> bool:
        match = FILE_NAME.fullmatch(name.rpartition("/")[2])
        return match is not None and int(match[3] or 0) == self.term

    def _write(self, book: Book) -> None:
        write_book(self._disk, book)
        self._book = book

    # The disk.

    def write_whole(self, name: str, data: Bytes) -> None:
        found = self._find(name)
        if found is None:
            self._disk.write_whole(name, data)
            return
        location, key = found
        self._owners.take_once(location)
        self.add_leftovers([name])
        location.put(key, data)
        if self.cache is not None:
            self.cache.fill(name, data)

    def remove(self, name: str) -> None:
        found = self._find(name)
        if found is None:
            self._disk.remove(name)
            return
        if self.cache is not None:
            key = key_of(name)
            self.cache.drop(lambda other: other == key)
        self._owners.take_once(found[0])
        found[0].remove(found[1])

    def sweep_cache(self) -> None:
        """Drop what is cached of files that do not count any more."""
        if self.cache is not None:
            kept = {key_of(name) for name in self.listed if is_located(name)}
            self.cache.drop(lambda key: key not in kept)

    def open(self, name: str, *, create_bytes: int | None = None) -> File:
        return self._disk.open(name, create_bytes=create_bytes)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def make_directory(self, name: str) -> None:
        if not is_located(name):
            self._disk.make_directory(name)

    def sync_directory(self, name: str) -> None:
        if not is_located(name):
            self._disk.sync_directory(name)

    def map(self, name: str) -> memoryview:
        return memoryview(self.read(name)) if is_located(name) else self._disk.map(name)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def total_bytes(self) -> int:
        return self._disk.total_bytes()

    def place(self) -> str:
        return self._disk.place()

    def lock(self) -> None:
        self._disk.lock()

    def close(self) -> None:
        self._disk.close()


def segment_files(disk: Disk) -> SegmentFiles:
    """The files of a data directory, at its locations too; `disk` itself when it has them already."""
    return disk if isinstance(disk, SegmentFiles) else SegmentFiles(disk)


def cache_of(disk: Disk, bytes_max: int) -> BlockCache | None:
    """A cache in a data directory; None when it may hold nothing, or cannot be made."""
    if not bytes_max:
        return None
    try:
        return BlockCache(disk, bytes_max)
    except (PenstockError, OSError) as error:
        logger.warning("the segment cache is unavailable: %s", error)
        return None


class RangedFile(io.RawIOBase):
    """A file as pyarrow reads it, fetched in ranges. What was fetched last is kept: a row group is read for its
    checksum, then column by column.
    """

    def __init__(self, read: Callable[[str, int, int], bytes], name: str, size: int) -> None:
        super().__init__()
        self._read = read
        self._name = name
        self._size = size
        self._position = 0
        self._kept = (0, b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + position
        return self._position

    def read(self, length: int | None = -1) -> bytes:
        end = self._size if length is None or length < 0 else min(self._size, self._position + length)
        start, kept = self._kept
        if not start <= self._position <= end <= start + len(kept):
            start, kept = self._position, self._read(self._name, self._position, end - self._position)
            self._kept = (start, kept)
        data = kept[self._position - start : end - start]
        self._position += len(data)
        return data
