"""The manifest: which segment files count, and where every sealed message lies in them.

    segments/manifest.arrow            the top layer, and which parts lie below it
    segments/manifest-<number>.arrow   a part: a layer that is never altered

A layer adds files and extents to those below it, and lists which of theirs are gone. It is an Arrow IPC file with one
row per extent. Its schema metadata holds two texts: `penstock.manifest`, JSON with the files, their sizes and
checksums, the names of the queues, and in the top layer how far the journal is sealed and what the parts are; and
`penstock.check`, the CRC32C of the whole file, computed with the eight digits as zeros.

The top layer is replaced whole or not at all, so that is the moment at which a seal, a removal or a compaction happens:
files that it names are complete and synced before it is written, files that it no longer names are removed after. When
it has grown it becomes a part; parts of about the same size are merged. So a change costs what it changes, however much
is sealed. As long as there are no parts, the format is 1, as it was before there were any. A layer that has an extent
with gaps is of format 3, and has a column for the number of stored rows.

`CurrentManifest` holds the manifest in force. A swap that failed midway may or may not have happened. Then files of
both manifests must stay, so nothing is changed any more until the directory is opened again. Files that no manifest
names are swept: what a crash left behind, what retention or compaction gave up. A pinned one stays until a later sweep.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
import pyarrow as pa
from crc32c import crc32c

from penstock import limits
from penstock.clock import Clock
from penstock.errors import Damaged, OutcomeUnknown, StorageError, Unavailable
from penstock.storage import pins
from penstock.storage.disk import TEMPORARY_SUFFIX, ReadableDisk
from penstock.storage.extents import Extent, Extents
from penstock.storage.schema import EVENT_TIMES, SCHEMAS, TASKS
from penstock.storage.segment_files import DIRECTORY, FILE_NAME, SegmentFiles

NAME: Final = "segments/manifest.arrow"
PART_NAME: Final = re.compile(r"manifest-(\d{20})\.arrow")
FORMAT: Final = 1
FORMAT_OF_PARTS: Final = 2
FORMAT_OF_GAPS: Final = 3  # a layer in which some extents have gaps
FOREVER: Final = limits.instant_us_max

_META: Final = b"penstock.manifest"
_CHECK: Final = re.compile(rb"crc32c=([0-9a-f]{8})")
_CHECK_EMPTY: Final = b"crc32c=00000000"
_WIDE: Final = {"file": pa.dictionary(pa.int32(), pa.string()), "row_group": pa.int32(), "row": pa.int32()}
_SCHEMA_OF_GAPS: Final = pa.schema(
    [pa.field(n, _WIDE.get(n, pa.int64()), nullable=False) for n in Extent.__struct_fields__]
)
_SCHEMA: Final = _SCHEMA_OF_GAPS.remove(_SCHEMA_OF_GAPS.get_field_index("rows"))


class RowGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes of a row group: from the end of the one before it (0 for the first) to `end`."""

    end: int
    crc32c: int
    flags: int = 0  # batch columns that some message in it may have


class EventsOf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an events file holds of one queue."""

    queue: int
    rows: int
    settled_last_at: int


class SegmentFile(msgspec.Struct, frozen=True):
    """One Parquet file. The footer lies between the end of the last row group and the end of the file."""

    name: str
    table: str
    rows: int
    bytes: int
    crc32c: int
    first_sequence: int
    end_sequence: int
    row_groups: list[RowGroup]
    footer_crc32c: int
    events: list[EventsOf] = []

    def row_group_bounds(self, index: int) -> tuple[int, int]:
        """First byte and end of a row group."""
        return (self.row_groups[index - 1].end if index else 0), self.row_groups[index].end

    @property
    def footer_position(self) -> int:
        return self.row_groups[-1].end if self.row_groups else 0


class Gone(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a layer takes away from those below it."""

    files: list[str] = []  # with all their extents
    queues: list[int] = []  # with all that they have
    starts: list[tuple[int, int, int]] = []  # queue, partition, and the offset up to which extents are gone

    def __len__(self) -> int:
        return len(self.files) + len(self.queues) + len(self.starts)


class Layer(msgspec.Struct, frozen=True):
    """Files and extents, with the names of their queues. Extents are sorted."""

    queues: dict[int, str] = {}
    files: dict[str, SegmentFile] = {}
    extents: list[Extent] = []
    gone: Gone = Gone()

    def __len__(self) -> int:
        """How much there is to write."""
        return len(self.extents) + len(self.files) + len(self.gone)


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A layer in a file of its own: its name, the length of the layer, and the checksum that its file must have."""

    file: str
    length: int
    crc32c: int


class Root(msgspec.Struct, frozen=True):
    """What manifest.arrow holds: the top layer over the parts, which are named from the lowest upwards."""

    sealed_sequence: int = 0
    top: Layer = Layer()
    parts: list[Part] = []


class Manifest(msgspec.Struct, frozen=True):
    """One state of the sealed segments. Extents are sorted; every file that they name is in `files`."""

    sealed_sequence: int = 0
    queues: dict[int, str] = {}  # the name of every queue of an extent or an events file
    files: dict[str, SegmentFile] = {}
    extents: list[Extent] = []


class _Meta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON beside the extents."""

    format: int
    sealed_sequence: int
    queues: dict[int, str]
    files: list[SegmentFile]
    gone: Gone | None = None
    parts: list[Part] = []


def over(below: Layer, above: Layer, *, is_lowest: bool) -> Layer:
    """Two layers as one. The lowest layer need not list what is gone: there is nothing below it."""
    files, queues = set(above.gone.files), set(above.gone.queues)
    starts = {(queue, partition): start for queue, partition, start in above.gone.starts}
    stays = [
        extent
        for extent in below.extents
        if extent.file not in files
        and extent.queue not in queues
        and extent.end_offset > starts.get((extent.queue, extent.partition), 0)
    ]
    return Layer(
        queues={id: name for id, name in below.queues.items() if id not in queues} | above.queues,
        files={name: file for name, file in below.files.items() if name not in files} | above.files,
        extents=sorted([*stays, *above.extents]) if stays else above.extents,
        gone=Gone() if is_lowest else _both(below.gone, above.gone),
    )


def _both(older: Gone, newer: Gone) -> Gone:
    starts: dict[tuple[int, int], int] = {}
    for queue, partition, start in [*older.starts, *newer.starts]:
        starts[queue, partition] = max(start, starts.get((queue, partition), 0))
    return Gone(
        files=[*dict.fromkeys([*older.files, *newer.files])],
        queues=[*dict.fromkeys([*older.queues, *newer.queues])],
        starts=[(*partition, start) for partition, start in starts.items()],
    )


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest in one layer."""
    return encode_root(Root(manifest.sealed_sequence, Layer(manifest.queues, manifest.files, manifest.extents)))


def encode_root(root: Root) -> bytes:
    """The bytes of manifest.arrow."""
    return _encode(root.top, root.sealed_sequence, root.parts, FORMAT_OF_PARTS if root.parts else FORMAT)


def encode_part(layer: Layer) -> bytes:
    """The bytes of a part."""
    return _encode(layer, 0, [], FORMAT_OF_PARTS)


def _encode(layer: Layer, sealed_sequence: int, parts: list[Part], version: int) -> bytes:
    has_gaps = any(extent.rows for extent in layer.extents)
    version = FORMAT_OF_GAPS if has_gaps else version
    meta = _Meta(version, sealed_sequence, layer.queues, list(layer.files.values()), layer.gone or None, parts)
    schema = _SCHEMA_OF_GAPS if has_gaps else _SCHEMA
    schema = schema.with_metadata({_META: msgspec.json.encode(meta), b"penstock.check": _CHECK_EMPTY})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(_rows(layer.extents, schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data.replace(_CHECK_EMPTY, b"crc32c=%08x" % crc32c(data))


def decode_root(data: bytes, name: str = NAME) -> Root:
    """The inverse of `encode_root`, and of `encode_part`, whose layer is the top; `Damaged` if a single bit differs."""
    checksums = set(_CHECK.findall(data))
    if len(checksums) != 1 or crc32c(_CHECK.sub(_CHECK_EMPTY, data)) != int(checksums.pop(), 16):
        raise Damaged(f"{name} does not match its checksum")
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        table = reader.read_all()
    meta = msgspec.json.decode(table.schema.metadata[_META], type=_Meta)
    if meta.format not in (FORMAT, FORMAT_OF_PARTS, FORMAT_OF_GAPS):
        expected = f"not {FORMAT} to {FORMAT_OF_GAPS}"
        raise Damaged(f"{name} has format {meta.format}, {expected}", hint="it was written by another version")
    layer = Layer(meta.queues, {file.name: file for file in meta.files}, _extents(table), meta.gone or Gone())
    return Root(meta.sealed_sequence, layer, meta.parts)


def whole(root: Root, parts: Iterable[Layer]) -> Manifest:
    """All layers together."""
    merged, *layers = [*parts, root.top]
    for layer in layers:
        merged = over(merged, layer, is_lowest=True)
    return Manifest(root.sealed_sequence, merged.queues, merged.files, merged.extents)


def read_part(disk: ReadableDisk, part: Part) -> Layer:
    """Read a part, and check that it is the one that the root names."""
    try:
        data = disk.read(part.file)
    except FileNotFoundError:
        raise Damaged(f"{part.file} is missing") from None
    if crc32c(data) != part.crc32c:
        raise Damaged(f"{part.file} does not match its checksum")
    return decode_root(data, part.file).top


def read_root(disk: ReadableDisk) -> Root | None:
    """The top layer, None when there is none yet."""
    try:
        return decode_root(disk.read(NAME))
    except FileNotFoundError:
        return None


def part_files(disk: ReadableDisk) -> list[str]:
    """The files of all parts, needed or not."""
    directory = NAME.rpartition("/")[0]
    try:
        names = disk.list(directory)
    except FileNotFoundError:
        return []
    return [f"{directory}/{name}" for name in names if PART_NAME.fullmatch(name.removesuffix(TEMPORARY_SUFFIX))]


def read(disk: ReadableDisk, known: dict[Part, Layer] | None = None) -> Manifest | None:
    """The manifest of a data directory, None when there is none yet. Needs no lock: any process may read it.

    Parts in `known` are not read again; afterwards it has those that count.
    """
    before: Root | None = None
    parts = {} if known is None else known
    while (root := read_root(disk)) is not None:
        try:
            layers = {part: parts.get(part) or read_part(disk, part) for part in root.parts}
        except Damaged:
            # A part may have gone since the layer that names it was read.
            if root == before:
                raise
            before = root
        else:
            parts.clear()
            parts.update(layers)
            return whole(root, layers.values())
    return None


def _rows(extents: Sequence[Extent], schema: pa.Schema) -> pa.RecordBatch:
    rows: Any = map(msgspec.structs.astuple, extents)
    columns: Any = list(zip(*rows, strict=True))[: len(schema)] if extents else [()] * len(schema)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _extents(table: pa.Table) -> list[Extent]:
    names = table["file"].unify_dictionaries().combine_chunks()
    columns = [table[name].to_numpy().tolist() for name in table.schema.names if name != "file"]
    index = Extent.__struct_fields__.index("file")
    dictionary = names.dictionary.to_pylist()
    columns.insert(index, [dictionary[code] for code in names.indices.to_pylist()])
    return list(map(Extent, *columns))


def extents_in(manifest: Manifest, names: Iterable[str]) -> dict[str, list[Extent]]:
    """The extents in some files, those of each in the order of its rows."""
    extents_of: dict[str, list[Extent]] = {name: [] for name in names}
    for extent in manifest.extents:
        if extent.file in extents_of:
            extents_of[extent.file].append(extent)
    for extents in extents_of.values():
        extents.sort(key=lambda extent: (extent.row_group, extent.row))
    return extents_of


def queues_with_history(manifest: Manifest) -> dict[int, int]:
    """When the oldest message that is kept was pushed, by queue."""
    oldest: dict[int, int] = {}
    for extent in manifest.extents:
        oldest[extent.queue] = min(oldest.get(extent.queue, extent.pushed_first_at), extent.pushed_first_at)
    return oldest


def needed_events(file: SegmentFile, oldest: dict[int, int], since: int = FOREVER) -> list[int]:
    """The queues whose events in this file may be about a message that is kept.

    A message is settled after it is pushed, so what was settled before the oldest kept message was pushed is about
    messages that are gone. Changes of tasks are also needed while the task index keeps them: those from `since` on.
    """
    return [
        events.queue
        for events in file.events
        if (events.queue in oldest and events.settled_last_at >= oldest[events.queue])
        or (file.table == TASKS and events.settled_last_at >= since)
    ]


DIRECTORIES: Final = tuple(f"{DIRECTORY}/{table}" for table in SCHEMAS)
TOP_MAX: Final = 4_096  # files, extents and what is gone, from which on the top layer becomes a part

NO_STARTS: Final[Mapping[tuple[int, int], int]] = MappingProxyType({})

logger: Final = logging.getLogger("penstock.storage")


class CurrentManifest:
    """Holds the manifest in force. One thread at a time may change or sweep."""

    def __init__(self, disk: SegmentFiles, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._failed: BaseException | None = None
        # Changes of tasks from this instant on are kept, even when the messages are gone.
        self.tasks_since: Callable[[], int] = lambda: 0
        for directory in (*DIRECTORIES, pins.DIRECTORY):
            disk.make_directory(directory)
        self._root = self._open()
        manifest = read(disk) or Manifest()
        self._part_next = 1 + max([_number(part.file) for part in self._root.parts], default=0)
        self.queues, self.files, self.extents = manifest.queues, manifest.files, Extents(manifest.extents)
        disk.listed = self.files
        self.task_queues = {
            about.queue for file in manifest.files.values() for about in _tasks_in(file)
        }  # had tasks once

    @property
    def sealed_sequence(self) -> int:
        return self._root.sealed_sequence

    @property
    def manifest(self) -> Manifest:
        """The whole manifest, as a value."""
        return Manifest(self.sealed_sequence, dict(self.queues), dict(self.files), list(self.extents))

    def check(self) -> None:
        """Refuse to change anything after a swap whose outcome is unknown."""
        if self._failed is not None:
            raise OutcomeUnknown("a swap of the segments' manifest failed midway") from self._failed

    def change(self, change: Layer, removed: Sequence[Extent] = (), sealed_sequence: int | None = None) -> None:
        """Put a layer on top. `removed` are the extents that it takes away, sorted."""
        self.check()
        sequence = self.sealed_sequence if sealed_sequence is None else sealed_sequence
        top = over(self._root.top, change, is_lowest=not self._root.parts)
        if len(top) > TOP_MAX:
            top, parts = Layer(), self._with_part(top)
        else:
            parts = self._root.parts
        before, old = self._stored_crc32c(), self._root
        self._disk.add_leftovers(change.gone.files)
        try:
            self._disk.write_whole(NAME, encode_root(Root(sequence, top, parts)))
            # Inside the try: interrupted before or amid these lines, nobody would know what is in force.
            self._root = Root(sequence, top, parts)
            self._apply(change, removed)
        except BaseException as error:
            if self._stored_crc32c() != before:
                self._failed = error
                self.check()
            raise
        for part in old.parts:
            if part not in parts:
                self._remove(part.file)

    def _apply(self, change: Layer, removed: Sequence[Extent]) -> None:
        """In this order: a concurrent reader finds messages in the file where they were, or where they are now."""
        self.queues |= change.queues
        self.files |= change.files
        self.task_queues |= {about.queue for file in change.files.values() for about in _tasks_in(file)}
        self.extents.add(change.extents)
        self.extents.remove(removed)
        for queue in change.gone.queues:
            self.queues.pop(queue, None)
        for name in change.gone.files:
            self.files.pop(name, None)

    def _with_part(self, layer: Layer) -> list[Part]:
        """The parts once a layer has become the highest of them, merged with those that are not much larger."""
        parts = list(self._root.parts)
        while parts and parts[-1].length < 2 * len(layer):
            below = read_part(self._disk, parts.pop())
            layer = over(below, layer, is_lowest=not parts)
        name, data = f"{DIRECTORY}/manifest-{self._part_next:020d}.arrow", encode_part(layer)
        self._part_next += 1
        self._disk.write_whole(name, data)
        return [*parts, Part(name, len(layer), crc32c(data))]

    def trim(self, starts: Mapping[tuple[int, int], int] = NO_STARTS, gone: Collection[int] = ()) -> int:
        """Drop extents wholly below a start and queues that are gone; returns how many messages those were.

        Files and names that nothing needs any more are dropped with them.
        """
        removed = [extent for queue in gone for extent in self.extents.of_queue(queue)]
        moved = [(*partition, start) for partition, start in sorted(starts.items()) if partition[0] not in gone]
        removed += [
            extent for queue, partition, start in moved for extent in self.extents.below(queue, partition, start)
        ]
        oldest, used = dict[int, int](), set[str]()
        for extent in self.extents:
            if extent.queue in gone or extent.end_offset <= starts.get((extent.queue, extent.partition), 0):
                continue
            oldest[extent.queue] = min(oldest.get(extent.queue, extent.pushed_first_at), extent.pushed_first_at)
            used.add(extent.file)
        since = self.tasks_since()
        kept = {
            name: file
            for name, file in self.files.items()
            if name in used or (file.table in EVENT_TIMES and needed_events(file, oldest, since))
        }
        about = set(oldest) | {events.queue for file in kept.values() for events in file.events}
        files, queues = self.files.keys() - kept.keys(), self.queues.keys() - about
        if removed or files or queues:
            self.change(Layer(gone=Gone(sorted(files), sorted(queues), moved)), sorted(removed))
        return sum(extent.stored_rows for extent in removed)

    def sweep(self) -> tuple[int, int]:
        """Remove files that no manifest names and no pin holds; returns how many, and how many bytes."""
        self.check()
        unnamed = [name for name in [*self._on_disk(), *self._disk.leftovers] if name not in self.files]
        held = pins.held(self._disk, self._clock.now()) if unnamed else pins.Held()
        removable = self._disk.removable(name for name in unnamed if name not in held)
        sizes = {name: self._remove(name) for name in removable}
        removed = {name: size for name, size in sizes.items() if size is not None}
        self._disk.clear_leftovers(removed)
        return len(removed), sum(removed.values())

    def _remove(self, name: str) -> int | None:
        """Remove a file; returns its size, or None when it could not be removed."""
        try:
            length = self._disk.size(name)
            self._disk.remove(name)
        except FileNotFoundError:
            return None if self._disk.is_of_this_opening(name) else 0
        except (OSError, StorageError, Unavailable) as error:
            logger.warning("%s is no longer needed but could not be removed: %s", name, error)
            return None
        return length

    def _on_disk(self) -> list[str]:
        """Segment files, and what was being written when a process died."""
        return [
            f"{directory}/{name}"
            for directory in DIRECTORIES
            for name in self._disk.list(directory)
            if FILE_NAME.fullmatch(name.removesuffix(TEMPORARY_SUFFIX))
        ]

    def _open(self) -> Root:
        root = read_root(self._disk)
        if root is not None:
            # It may have been renamed into place by a process that died before it could make that durable.
            self._disk.sync_directory(DIRECTORY)
            for name in set(part_files(self._disk)) - {part.file for part in root.parts}:
                self._remove(name)
            return root
        # The empty manifest is written before the first file, so files without one mean that it was lost.
        if self._disk.book.locations or any(name.endswith(".parquet") for name in self._on_disk()):
            raise Damaged(f"{NAME} is missing, and there are segment files that it should name")
        self._disk.write_whole(NAME, encode_root(Root()))
        return Root()

    def _stored_crc32c(self) -> int | None:
        try:
            return crc32c(self._disk.read(NAME))
        except (OSError, StorageError):
            return None


def _number(name: str) -> int:
    """The number of a part."""
    match = PART_NAME.search(name)
    return int(match[1]) if match else 0


def _tasks_in(file: SegmentFile) -> Sequence[EventsOf]:
    return file.events if file.table == TASKS else ()
