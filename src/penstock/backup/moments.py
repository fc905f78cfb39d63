"""The documents of a backup set: which shard it belongs to, and what each moment consists of."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import msgspec
from crc32c import crc32c

from penstock.errors import Damaged, InvalidField, StorageError
from penstock.model import to_datetime, to_micros

MARKER: Final = "PENSTOCK-BACKUP"
FORMAT: Final = 1
MOMENTS: Final = "moments"
FILES: Final = "files"
ACCESS: Final = "access.sealed"

_ID: Final = re.compile(r"\d{8}T\d{6}\.\d{6}Z")


class StoredFile(msgspec.Struct, frozen=True):
    """A file of the data directory, and the name under which the set holds it."""

    name: str
    bytes: int
    crc32c: int
    stored: str


class Moment(msgspec.Struct, frozen=True):
    """One state of a data directory. Its own checksum is taken while the field is 0."""

    format: int
    id: str
    taken_at: int  # µs
    shard: str
    incarnation: str
    sequence: int  # of the last journal frame in it
    directory_format: int
    version: str  # of the Penstock that took it
    files: list[StoredFile]
    crc32c: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all its files together."""
        return sum(file.bytes for file in self.files)


class Marker(msgspec.Struct, frozen=True):
    """What makes a place a backup set."""

    format: int
    shard: str


def moment_name(id: str) -> str:
    """The name of a moment's document."""
    return f"{MOMENTS}/{id}.json"


def moment_id(taken_at: int, known: set[str]) -> str:
    """An id that sorts by time and that no other moment of the set has."""
    while (id := f"{to_datetime(taken_at):%Y%m%dT%H%M%S.%fZ}") in known:
        taken_at += 1
    return id


def stored_name(incarnation: str, name: str, size: int, tag: int) -> str:
    """Where the set holds a file. A name may be used again with other content, hence the rest."""
    return f"{FILES}/{incarnation}/{name.replace('/', '~')}.{size}-{tag:08x}"


def encode_moment(moment: Moment) -> bytes:
    """The bytes of a moment's document."""
    bare = msgspec.structs.replace(moment, crc32c=0)
    return msgspec.json.encode(msgspec.structs.replace(bare, crc32c=crc32c(msgspec.json.encode(bare))))


def decode_moment(data: bytes, where: str) -> Moment:
    """The inverse of `encode_moment`; `Damaged` when it is not sound."""
    try:
        moment = msgspec.json.decode(data, type=Moment)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged(f"{where} cannot be read") from None
    if moment.format != FORMAT:
        raise StorageError(f"{where}: unknown format {moment.format}", hint="use a newer Penstock")
    if encode_moment(moment) != msgspec.json.encode(moment):
        raise Damaged(f"{where} does not match its checksum")
    return moment


def decode_marker(data: bytes, where: str) -> Marker:
    """The marker of a set."""
    try:
        marker = msgspec.json.decode(data, type=Marker)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged(f"{where} cannot be read") from None
    if marker.format != FORMAT:
        raise StorageError(f"{where}: unknown format {marker.format}", hint="use a newer Penstock")
    return marker


def choose(ids: list[str], at: str | datetime | None) -> str:
    """The newest of some sorted ids; the one named by `at`; or the newest that is not later than an instant."""
    if not ids:
        raise InvalidField("source: the backup set has no moments yet", hint="take one with `penstock backup`")
    if at is None:
        return ids[-1]
    if isinstance(at, str):
        if at in ids:
            return at
        raise InvalidField(f"at: there is no moment {at!r}", hint="`penstock backup list` shows them")
    earlier = [id for id in ids if taken_at(id) <= to_micros(at, "at")]
    if not earlier:
        raise InvalidField(f"at: the first moment is {ids[0]}, which is later", hint="choose a later time")
    return earlier[-1]


def is_moment_id(text: str) -> bool:
    """Whether a text can be the id of a moment."""
    return _ID.fullmatch(text) is not None


def taken_at(id: str) -> int:
    """The instant in an id, µs."""
    return to_micros(datetime.strptime(id, "%Y%m%dT%H%M%S.%f%z"), "id")
