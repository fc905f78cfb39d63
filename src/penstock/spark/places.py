"""A place: the data directory or the broker that a url names, and how a job's progress is noted there.

Progress is a consumer group of the queue that is moved as far as the job has come: so its lag can be seen, and
retention waits for it. It is for people and for retention only; what a job has done is in its own checkpoint. So it
never fails a job: what cannot be noted is said in the log, once, and tried again later.

A broker is told at once. A directory that nobody holds is opened for a moment, at most every `DIRECTORY_SECONDS` and
at the end; one that somebody else holds is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import penstock
from penstock.client.sync import Penstock
from penstock.clock import Clock, SystemClock
from penstock.embedded import BlockingSession, Session
from penstock.errors import DirectoryInUse, GroupExists, GroupNotFound, InvalidField, NotADataDirectory, PenstockError
from penstock.model import check_name
from penstock.storage.directory import MARKER

DIRECTORY_SECONDS: Final = 10.0
BROKER_SECONDS: Final = 5.0  # noting progress must not hold a job up for longer
CLIENT: Final = "spark"
_UNREACHED: Final = ("unavailable", "closed", "not_authenticated")  # codes of errors that are not about the queue

Offsets = Mapping[str, int]  # by partition: the next one to be read

_log = logging.getLogger(__name__)


class Place:
    """See the module's rules."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        if not isinstance(url, str) or not url.strip():
            raise InvalidField("url: there is none", hint="give a data directory, or a broker: penstock://host:port")
        self.url = _directory_of(url.strip())
        self.is_broker = "://" in self.url
        self._clock = clock or SystemClock()
        self._handle: Penstock | None = None  # of a broker, kept for the next time
        self._pending: dict[tuple[str, str], dict[str, int]] = {}  # (queue, group): what is not noted yet
        self._noted: dict[tuple[str, str], dict[str, int]] = {}
        self._next_at = 0  # monotonic µs: when a directory may be opened again
        self._said: set[str] = set()  # what the log has already

    def handle(self, *, client: str = CLIENT) -> Penstock:
        """The directory opened, or a connection to the broker; the caller closes it."""
        if self.is_broker:
            return penstock.connect(self.url, client=client)
        self.check()
        try:
            return penstock.open(self.url)
        except DirectoryInUse as error:
            raise DirectoryInUse(
                error.message, hint="if that is a broker, give its url (penstock://host:port) instead of the directory"
            ) from None

    def check(self) -> None:
        """Refuse a directory that holds no data; it would be made by opening it."""
        if not self.is_broker and not (Path(self.url) / MARKER).is_file():
            raise NotADataDirectory(
                f"{self.url} holds no data of Penstock",
                hint="give the directory that `penstock serve --data` or `penstock.open` uses, or a broker's url",
            )

    # progress

    def commit_progress(self, queue: str, group: str, offsets: Offsets) -> None:
        """Note that everything before these offsets is done with; the group is made if it is not there."""
        check_name(group, "group")
        if offsets:
            pending = self._pending.setdefault((queue, group), {})
            pending.update(offsets)
        self._note_pending(now=False)

    def flush(self) -> None:
        """Note what is still to be noted, directory or not."""
        self._note_pending(now=True)

    def finish(self) -> None:
        """The same, and let go of the broker."""
        self.flush()
        if self._handle is not None:
            with suppress(PenstockError):
                self._handle.close()
            self._handle = None

    def _note_pending(self, *, now: bool) -> None:
        for place, offsets in list(self._pending.items()):
            if self._noted.get(place, {}).items() >= offsets.items():
                del self._pending[place]
        if not self._pending:
            return
        if self.is_broker:
            self._tell_broker()
        elif now or self._clock.monotonic() >= self._next_at:
            self._open_directory()

    def _tell_broker(self) -> None:
        try:
            if self._handle is None:
                self._handle = penstock.connect(self.url, client=CLIENT, timeout=BROKER_SECONDS)
            self._note(self._handle)
        except PenstockError as error:
            self._say(f"progress is not noted at {self.url} for now: {error}")

    def _open_directory(self) -> None:
        self._next_at = self._clock.monotonic() + round(DIRECTORY_SECONDS * 1_000_000)
        try:
            self.check()
            with Penstock(BlockingSession(Session(self.url, background=False))) as handle:
                self._note(handle)
        except DirectoryInUse as error:
            self._say(
                f"progress is not noted: {error.message}. If that is a broker, give its url (penstock://host:port): "
                "then the lag of this job can be seen, and retention waits for it"
            )
        except PenstockError as error:
            self._say(f"progress is not noted in {self.url} for now: {error}")

    def _note(self, handle: Penstock) -> None:
        for place, offsets in list(self._pending.items()):
            queue, group = place
            try:
                move_group(handle, queue, group, offsets)
            except PenstockError as error:
                if error.code in _UNREACHED:
                    raise
                self._say(f"progress in queue {queue!r} is not noted: {error}")
            else:
                self._noted.setdefault(place, {}).update(offsets)
            del self._pending[place]

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s", text)


def move_group(handle: Penstock, queue: str, group: str, offsets: Offsets) -> None:
    """Have a group stand at these offsets, whether it is there already or not."""
    place = handle.queue(queue)
    try:
        place.seek(group, dict(offsets))
    except GroupNotFound:
        with suppress(GroupExists):
            place.create_group(group, dict(offsets), observes=True)


def _directory_of(url: str) -> str:
    """`file:` urls are paths; a scheme that is none of ours is refused by name."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme == "file":
        return urlsplit(url).path
    if scheme and scheme not in ("penstock", "http"):
        hint = "give a data directory, or a broker: penstock://host:port"
        raise InvalidField(f"url: {url!r} is neither a directory nor a broker", hint=hint)
    return url
