"""The data directory or the broker that a url names: opening it, in the driver and in tasks, and committing progress.

A url means what it means on the machine where it is used: a path may be missing there, or be another directory; a
broker named by loopback is not there, or is another one. So a task gets the shard's id along with its work, and an
error names the machine on which the url did not hold.

The progress of a job is a consumer group that is moved as far as the job has come: so its lag can be seen, and
retention waits for it. The job's own checkpoint stays the truth, so a failure here never fails a job: it is logged
once, and tried again later. A broker is notified at once. A directory that no process holds is opened for a moment, at
most every `DIRECTORY_SECONDS` and at the end; one that another process holds is left alone.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import penstock
from penstock.client.handles import Penstock
from penstock.clock import Clock, SystemClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import (
    DirectoryInUse,
    GroupExists,
    GroupNotFound,
    InvalidField,
    NotADataDirectory,
    PenstockError,
    Unavailable,
)
from penstock.history import History, is_directory, open_history
from penstock.history.history import CONNECT_SECONDS
from penstock.model import check_name, is_store_url
from penstock.storage.directory import MARKER


def open_planned(url: str, shard: str = "", *, local: bool = True, connect_seconds: float = CONNECT_SECONDS) -> History:
    """The history at a url as a task sees it; it must be that of the shard, when one is named."""
    try:
        history = open_history(url, local=local, connect_seconds=connect_seconds)
    except (NotADataDirectory, Unavailable) as error:
        raise not_here(url, error) from None
    if shard and history.identity != shard:
        history.close()
        raise not_here(url, NotADataDirectory("it is not the one the job was planned on: its data differs"))
    return history


def check_directory(directory: str) -> None:
    """Refuse a directory that is not a data directory on this machine."""
    if not (Path(directory) / MARKER).is_file():
        raise not_here(directory, NotADataDirectory(f"{directory} contains no Penstock data"))


def not_here(url: str, error: PenstockError) -> PenstockError:
    """The error of a task that cannot use a url, with what to do about it."""
    hint = "use a broker's url that is valid on every node of the cluster: penstock://host:port, not localhost"
    if is_directory(url):
        hint = "use the url of a broker, penstock://host:port, or a directory mounted at that path on every node"
    message = f"url: {url} cannot be used on {socket.gethostname()}, where a Spark task runs: {error.message}"
    return type(error)(message, hint=hint)


DIRECTORY_SECONDS: Final = 10.0
BROKER_SECONDS: Final = 5.0  # committing progress must not hold a job up for longer
CLIENT: Final = "spark"
_UNREACHED: Final = ("unavailable", "closed", "not_authenticated")  # codes of errors that are not about the queue

Offsets = Mapping[str, int]  # by partition: the next one to be read

logger: Final = logging.getLogger("penstock.spark")


class Location:
    """A data directory or a broker, and the progress that is to be committed there."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        if not isinstance(url, str) or not url.strip():
            raise InvalidField("url: not given", hint="use a data directory, or a broker: penstock://host:port")
        self.url = _directory_of(url.strip())
        self.is_broker = "://" in self.url and not is_store_url(self.url)
        self._clock = clock or SystemClock()
        self._handle: Penstock | None = None  # of a broker, kept for the next time
        self._pending: dict[tuple[str, str], dict[str, int]] = {}  # (queue, group): not committed yet
        self._committed: dict[tuple[str, str], dict[str, int]] = {}
        self._next_at = 0  # monotonic µs: when a directory may be opened again
        self._warned: set[str] = set()  # what was logged already

    def handle(self, *, client: str = CLIENT) -> Penstock:
        """The directory opened, or a connection to the broker; the caller closes it."""
        if self.is_broker:
            return penstock.connect(self.url, client=client)
        self.check()
        try:
            return penstock.open(self.url)
        except DirectoryInUse as error:
            raise DirectoryInUse(
                error.message, hint="if that is a broker, use its url (penstock://host:port) instead of the directory"
            ) from None

    def check(self) -> None:
        """Refuse a directory that holds no data; opening would create it."""
        if not self.is_broker and not is_store_url(self.url) and not (Path(self.url) / MARKER).is_file():
            raise NotADataDirectory(
                f"{self.url} contains no Penstock data",
                hint="use the directory of `penstock serve --data` or `penstock.open`, or a broker's url",
            )

    # progress

    def commit_progress(self, queue: str, group: str, offsets: Offsets) -> None:
        """Commit that everything before these offsets is done; the group is created if it does not exist."""
        check_name(group, "group")
        if offsets:
            pending = self._pending.setdefault((queue, group), {})
            pending.update(offsets)
        self._commit_pending(now=False)

    def flush(self) -> None:
        """Commit what is still pending, in a directory too."""
        self._commit_pending(now=True)

    def finish(self) -> None:
        """Commit what is still pending, and close the connection."""
        self.flush()
        if self._handle is not None:
            with suppress(PenstockError):
                self._handle.close()
            self._handle = None

    def _commit_pending(self, *, now: bool) -> None:
        for key, offsets in list(self._pending.items()):
            if self._committed.get(key, {}).items() >= offsets.items():
                del self._pending[key]
        if not self._pending:
            return
        if self.is_broker:
            self._commit_to_broker()
        elif now or self._clock.monotonic() >= self._next_at:
            self._commit_to_directory()

    def _commit_to_broker(self) -> None:
        try:
            if self._handle is None:
                self._handle = penstock.connect(self.url, client=CLIENT, timeout=BROKER_SECONDS)
            self._commit(self._handle)
        except PenstockError as error:
            self._warn_once(f"progress could not be committed at {self.url} yet: {error}")

    def _commit_to_directory(self) -> None:
        self._next_at = self._clock.monotonic() + round(DIRECTORY_SECONDS * 1_000_000)
        try:
            self.check()
            with Penstock(BlockingSession(Session(self.url, background=False))) as handle:
                self._commit(handle)
        except DirectoryInUse as error:
            self._warn_once(
                f"progress is not committed: {error.message}. "
                "If that is a broker, use its url (penstock://host:port): "
                "then the lag of this job is visible, and retention waits for it"
            )
        except PenstockError as error:
            self._warn_once(f"progress could not be committed in {self.url} yet: {error}")

    def _commit(self, handle: Penstock) -> None:
        for key, offsets in list(self._pending.items()):
            queue, group = key
            try:
                move_group(handle, queue, group, offsets)
            except PenstockError as error:
                if error.code in _UNREACHED:
                    raise
                self._warn_once(f"progress in queue {queue!r} is not committed: {error}")
            else:
                self._committed.setdefault(key, {}).update(offsets)
            del self._pending[key]

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text)


def move_group(handle: Penstock, queue: str, group: str, offsets: Offsets) -> None:
    """Move a group to these offsets; it is created if it does not exist."""
    target = handle.queue(queue)
    try:
        target.seek(group, dict(offsets))
    except GroupNotFound:
        with suppress(GroupExists):
            target.create_group(group, dict(offsets), observes=True)


def _directory_of(url: str) -> str:
    """`file:` urls are paths; a scheme that is none of ours is refused by name."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme == "file":
        return urlsplit(url).path
    if is_store_url(url):
        return url
    if scheme and scheme not in ("penstock", "http"):
        hint = "use a data directory, or a broker: penstock://host:port"
        raise InvalidField(f"url: {url!r} is neither a directory nor a broker", hint=hint)
    return url
