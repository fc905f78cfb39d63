"""A store in PostgreSQL: taking its shard over, opening it and releasing it.

A takeover is one statement that raises the term. From then on the former owner can change nothing, whether it knows of
the takeover or not, so a takeover does not wait for it. `membership` decides when a node takes over.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.clock import Clock, SystemClock
from penstock.delivery.entries import Closing, Entry
from penstock.errors import Closed, Deposed, DirectoryInUse, StorageError
from penstock.journal import OpenFrame
from penstock.postgres import schema
from penstock.postgres.checks import check_server
from penstock.postgres.clock import ServerTime, StoreClock
from penstock.postgres.disk import PostgresDisk
from penstock.postgres.journal import PostgresJournal
from penstock.postgres.link import Link, session_name
from penstock.postgres.links import Fenced, Links
from penstock.postgres.membership import BEAT_SECONDS, EMBEDDED, STILL_LOOKS, Looks, Membership, View, look
from penstock.postgres.target import parse_store_url
from penstock.storage.directory import open_directory
from penstock.storage.disk import Disk, RealDisk
from penstock.storage.journal_files import Mark, read_mark, write_mark

logger: Final = logging.getLogger("penstock.store")

_TAKE: Final = """
    UPDATE penstock.shards SET owner = $3, term = term + 1 WHERE shard = $1 AND term = $2 RETURNING term"""
_RELEASE: Final = "UPDATE penstock.shards SET owner = '' WHERE shard = $1 AND term = $2"
_END_BLOCKERS: Final = """
    SELECT pid, CASE WHEN application_name = $2 THEN pg_terminate_backend(pid) END FROM pg_stat_activity
    WHERE pid = ANY(pg_blocking_pids($1::integer))"""
PATIENCE_SECONDS: Final = 0.5  # that a takeover waits for a lock before it looks who holds it


class PostgresStore:
    """One shard in PostgreSQL. `directory` is this node's own, for what can be rebuilt; None keeps that in memory."""

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        node: str = "",
        directory: Path | str | None = None,
        deployment: str = "",
        replicated: bool = False,
        membership: Membership | None = None,
        file_bytes: int | None = None,
        file_frames_max: int | None = None,
    ) -> None:
        self.target = parse_store_url(url, password)
        self.node = node or f"{EMBEDDED}{os.getpid()}-{secrets.token_hex(4)}"
        self.links = Links(self.target, session_name(self.node))
        self.own_disk: Disk | None = None  # once it is open
        self._directory = None if directory is None else Path(directory)
        self.term = 0
        self._deployment = deployment
        self._replicated = replicated
        self._membership = membership  # of the process, when it has one already
        self._own_membership: Membership | None = None
        sizes = {"file_bytes": file_bytes, "file_frames_max": file_frames_max}
        self._sizes = {name: size for name, size in sizes.items() if size is not None}
        self._known_durable = 0  # the highest sequence that any node has confirmed
        self._journal: PostgresJournal | None = None
        self._server_time: ServerTime | None = None  # unless a caller has brought a clock

    @property
    def membership(self) -> Membership:
        """The membership of this process, while the shard is open."""
        membership = self._membership or self._own_membership
        assert membership is not None
        return membership

    def prepare(self) -> schema.Status:
        """Check the server, and create or migrate the tables."""
        check_server(self.links, replicated=self._replicated)
        with self.links.borrowed() as link:
            return schema.prepare(link, self._deployment)

    def open(self) -> bytes:
        """Take the shard over; returns its id."""
        try:
            return self._open()
        except BaseException:
            self.links.close()
            raise

    def _open(self) -> bytes:
        self.prepare()
        with self.links.borrowed() as link:
            row = link.one("SELECT id, term, owner FROM penstock.shards WHERE shard = $1", schema.SHARD)
            if row is None:
                raise StorageError("the store has no shard", hint="create it with `penstock store init`")
            shard_id, term, owner = row
            self.require_free(owner)
            self.take(link, term, owner)
        self.fenced = Fenced(self.links, schema.SHARD, self.term)
        self.disk: Disk = PostgresDisk(self.links, self.fenced)
        identity = open_directory(self.disk, lambda: bytes(shard_id))
        if self._directory is not None:
            self.own_disk = RealDisk(self._directory / identity.hex())  # another store has another one
            self.own_disk.make_directory("")
        return identity

    def require_free(self, owner: str) -> None:
        """Refuse to take the shard from a live node. A process with a membership has checked that already."""
        if owner in ("", self.node) or self._membership is not None:
            return
        looks = Looks()
        for _ in range(STILL_LOOKS + 2):
            looks.saw(self.links.ask(look))
            if looks.is_dead(owner):
                return
            time.sleep(BEAT_SECONDS)
        raise DirectoryInUse(
            f"{self.target.shown} is in use by the node {owner!r}", hint="stop that node, or connect to it"
        )

    def take(self, link: Link, term: int, owner: str) -> None:
        """Raise the term, unless another node has done so; `owner` is the owner until now."""
        with unblocked(self.links, link, owner):
            row = link.one(_TAKE, schema.SHARD, term, self.node)
        if row is None:
            raise DirectoryInUse(f"{self.target.shown} was taken over by another node just now")
        self.term = row[0]
        logger.info("took the shard over", extra={"node": self.node, "term": self.term})

    def clock(self, clock: Clock | None) -> StoreClock:
        """The clock of the shard: the time of the server, or the clock that a caller passes."""
        if clock is not None:
            self._clock = StoreClock(clock)
        else:
            self._server_time = ServerTime(self.links.ask(look).server_us, SystemClock().monotonic())
            self._clock = StoreClock(SystemClock(self._server_time.wall_ns))
        return self._clock

    def open_journal(self, shard_id: bytes, known_durable: int, unseal: OpenFrame) -> PostgresJournal:
        """Open the journal; `Damaged` when it ends before a sequence that is known to be confirmed."""
        assert isinstance(self.disk, PostgresDisk)
        self._journal = journal = PostgresJournal(
            self.disk,
            self.fenced,
            shard_id,
            known_durable=max(known_durable, self._known_durable, self._marked()),
            unseal=unseal,
            clock=self._clock.inner,
            **self._sizes,
        )
        self._clock.stalled_us = journal.stalls.stalled_us
        journal.on_mark = self._mark
        return journal

    def opened(self, latest: int) -> list[Entry]:
        """Entries that must be durable before anything is served. The clock of a promoted server may be behind."""
        self._clock.start_at(latest)
        return [Closing(self._clock.now(), term=self.term, node=self.node)]

    def start(self) -> None:
        """The shard is served from now on: heartbeats show that this node lives, and whether it was deposed."""
        journal = self._journal
        assert journal is not None
        membership = self._membership
        if membership is None:
            membership = self._own_membership = Membership(self.links, self.node)
            membership.monotonic = self._clock.inner.monotonic
            membership.on_look = self.looked
            membership.register("")
            membership.start()
        membership.durable_sequence = lambda: journal.durable_sequence
        journal.stalls.alive()
        journal.stalls.is_watched = True

    def looked(self, view: View, sent_at: int) -> None:
        """A heartbeat has read who owns the shard; `sent_at` is by the monotonic clock."""
        if self._server_time is not None and view.seen_at:
            self._server_time.saw(view.server_us, view.seen_at)
        if self._journal is None:
            return
        if view.term == self.term:
            self._journal.stalls.alive(sent_at)
        else:
            self.fenced.deposed()

    def saw_durable(self, sequence: int) -> None:
        """A node has confirmed frames up to this sequence."""
        self._known_durable = max(self._known_durable, sequence)

    def _marked(self) -> int:
        """How far the journal was durable when this node owned it last."""
        return 0 if self.own_disk is None else read_mark(self.own_disk).durable_sequence

    def _mark(self, sequence: int) -> None:
        if self.own_disk is not None:
            write_mark(self.own_disk, Mark(sequence))

    def close(self) -> None:
        """Release the shard, unless this node was deposed."""
        if self._own_membership is not None:
            self._own_membership.stop()
        elif self._membership is not None:
            self._membership.durable_sequence = lambda: 0
        journal, self._journal = self._journal, None
        if self.term and not isinstance(None if journal is None else journal.failed, Deposed):
            try:
                with self.links.borrowed() as link:
                    link.execute(_RELEASE, schema.SHARD, self.term)
            except (StorageError, Closed) as error:
                logger.warning("the shard could not be released: %s", error)
        self.links.close()


@contextmanager
def unblocked(links: Links, link: Link, owner: str) -> Iterator[None]:
    """While `link` waits for a lock inside the block, sessions of the node `owner` that hold it are ended.

    Such a session may hold the row of the shard while PostgreSQL waits for the rest of a statement from a client that
    is frozen or cut off. Ending it rolls its transaction back, as the server does when it notices the loss by itself.
    The term is raised only once nobody holds the row. A commit that waits for its standbys when it is ended counts as
    done on this server; the commit of the takeover comes after it in the same log and waits for the same standbys.
    """
    row = link.one("SELECT pg_backend_pid()")
    assert row is not None
    over = threading.Event()
    watcher = threading.Thread(
        target=_end_blockers, args=(links, row[0], owner, over), name="penstock-takeover", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _end_blockers(links: Links, pid: int, owner: str, over: threading.Event) -> None:
    while not over.wait(PATIENCE_SECONDS):
        try:
            with links.borrowed() as link:
                ended = link.rows(_END_BLOCKERS, pid, session_name(owner))
        except StorageError as error:
            logger.warning("the takeover waits for the former owner: %s", error, extra={"owner": owner})
            continue
        for session, is_ended in ended:
            about = {"owner": owner, "session": session}
            if is_ended:
                logger.info("ended a session of the former owner that held the shard", extra=about)
            else:
                logger.warning("the takeover waits for a foreign session that holds the shard", extra=about)


def is_connected(link: Link, node: str) -> bool:
    """Whether a node has a connection to this server."""
    sql = "SELECT 1 FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database() LIMIT 1"
    return link.one(sql, session_name(node)) is not None
