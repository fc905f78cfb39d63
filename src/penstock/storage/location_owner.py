"""Which data directory writes and removes at a location: one, and none of its copies.

A copy of a data directory names the same objects. If both removed what they do not need any more, each would remove
what the other one still needs. So each opening has a token. It is added to `segments/owner.json` in the data directory,
and then becomes the content of the object `PENSTOCK` at the location. A directory may write and remove there while the
token that it finds is one of its own. The file also says what the directory has that a copy of its files does not
(`place`), so that most copies are refused before they have replaced the token of the original.

There is no conditional write: of two that take a location at once the later one has it, and the other finds that out
before it removes anything. Several tokens are kept, because a request of a process that died may arrive late.
"""

from __future__ import annotations

import secrets
from typing import Final, Protocol

import msgspec

from penstock.errors import DirectoryInUse
from penstock.storage.disk import Disk, ReadableDisk

NAME: Final = "segments/owner.json"
TOKENS_KEPT: Final = 64
TOKEN_BYTES: Final = 16
PREFIX: Final = b"owner="  # before it, `PENSTOCK` had a word of no meaning
CONTENT_BYTES: Final = len(PREFIX) + 2 * TOKEN_BYTES + 1
HINT: Final = (
    "use the original; if it is gone, or this is the original: penstock segments claim; "
    "for a copy that stands alone: restore a backup"
)


class Place(Protocol):
    """A location, as far as its owner matters."""

    number: int
    url: str

    def owner(self) -> str:
        """The token that is there; empty when nobody has the location yet."""

    def set_owner(self, token: str) -> None:
        """Replace it."""


class OwnerFile(msgspec.Struct, frozen=True):
    """What owner.json holds."""

    place: str = ""
    tokens: list[str] = []


def read_owner_file(disk: ReadableDisk) -> OwnerFile:
    """The tokens of a directory; none when the file is missing or damaged, which `penstock segments claim` repairs."""
    try:
        return msgspec.json.decode(disk.read(NAME), type=OwnerFile)
    except (FileNotFoundError, msgspec.MsgspecError):
        return OwnerFile()


def encode_token(token: str) -> bytes:
    """The content of `PENSTOCK`."""
    return PREFIX + token.encode() + b"\n"


def decode_token(content: bytes) -> str:
    """The token in the content of `PENSTOCK`; empty in one from before there were owners."""
    return content.removeprefix(PREFIX).strip().decode("ascii", "replace") if content.startswith(PREFIX) else ""


class Ownership:
    """The locations of one opening of a data directory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._token = secrets.token_hex(TOKEN_BYTES)
        self._tokens: list[str] = []  # as in the file, once a location is taken
        self._taken: set[int] = set()

    def take(self, place: Place, *, claims: bool = False) -> None:
        """Become the owner of a location; `DirectoryInUse` unless it was ours before, nobody's, or `claims`."""
        present, stored, mine = place.owner(), read_owner_file(self._disk), self._disk.place()
        if not claims:
            if stored.place and mine and stored.place != mine:
                raise DirectoryInUse(
                    f"segments: {place.url} belongs to the directory that this is a copy of", hint=HINT
                )
            _require(present, stored.tokens, place)
        older = [token for token in stored.tokens if token not in (present, self._token)]
        self._tokens = [token for token in (*older, present, self._token) if token][-TOKENS_KEPT:]
        self._disk.write_whole(NAME, msgspec.json.encode(OwnerFile(mine, self._tokens)) + b"\n")
        place.set_owner(self._token)
        self._taken.add(place.number)

    def take_once(self, place: Place) -> None:
        """`take`, unless this opening has it already."""
        if place.number not in self._taken:
            self.take(place)

    def check(self, place: Place) -> None:
        """Refuse when another directory has taken the location over since."""
        if place.number in self._taken:
            _require(place.owner(), self._tokens, place)
        else:
            self.take(place)


def _require(present: str, tokens: list[str], place: Place) -> None:
    if present and present not in tokens:
        raise DirectoryInUse(f"segments: {place.url} was taken over by another copy of this data directory", hint=HINT)
