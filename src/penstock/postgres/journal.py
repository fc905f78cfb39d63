"""The journal in PostgreSQL: the bytes of journal files, one row per group commit, a table per file.

- A row is appended by one statement that also checks the term: if no row was stored, another node has taken over.
- Written is durable: `write` and `sync` are the same, and every level of durability counts as `fsync`.
- When the outcome of a commit is unknown (the connection broke, a deadline passed, PostgreSQL warned that it was not
  replicated), the row is looked up, and the result is trusted only after a synchronous commit in the same term. If the
  row is missing it is sent again; its key prevents a second one.
- A row is sent by a thread that waits for the answer (`sync`), or by an event loop that continues meanwhile
  (`send_commit`, `receive_commit`). Any other answer than success is left to `sync`, which takes over what a loop sent.
- While the store is unavailable, commits wait and are retried. New pushes are refused meanwhile.
- A journal that has less than was confirmed stops for good, and so does one whose term is over.

`append` takes no lock, as in files. `_committing` guards the connection, the position and the counters.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock import limits
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    Closed,
    Damaged,
    Deposed,
    DiskFull,
    PenstockError,
    StorageError,
    StoreRefused,
    StoreUnavailable,
    Unavailable,
)
from penstock.journal import JournalFile, OpenFrame, as_it_is
from penstock.journal.stored import BUFFERS, StoredJournal
from penstock.postgres.clock import Stalls
from penstock.postgres.disk import PostgresDisk
from penstock.postgres.link import Link
from penstock.postgres.links import RENEW, RETRY_SECONDS_MAX, RETRY_SECONDS_MIN, Fenced, is_passing
from penstock.postgres.schema import create_journal_table, journal_table
from penstock.storage import journal_files
from penstock.storage.frames import (
    ENTRIES_BYTES_MAX,
    FRAME,
    HEADER_BYTES,
    Header,
    encode_header,
    frame_head,
)

logger: Final = logging.getLogger("penstock.journal")

ROW_BYTES_MAX: Final = 4 * limits.MIB  # of a row, unless one frame is larger
SENT_BYTES_MAX: Final = 256 * limits.KIB  # that an event loop sends itself; more would keep it from others
PENDING_BYTES_MAX: Final = 64 * limits.MIB  # that may wait while the store does not answer
AGAIN_SECONDS: Final = 0.25  # after which callers may retry, while the store does not answer
COMMITS_KEPT: Final = 4_096  # whose time is remembered
DROP_LOCK: Final = "SET LOCAL lock_timeout = '200ms'"
LOCK_TIMEOUT: Final = "55P03"
UNIQUE: Final = "23505"

APPEND: Final = """
    WITH owner AS (SELECT 1 FROM penstock.shards WHERE shard = $1 AND term = $2 FOR SHARE)
    INSERT INTO {table} (position, sequence, end_sequence, term, data) SELECT $3, $4, $5, $2, $6 FROM owner"""
FIND: Final = "SELECT sequence, end_sequence, term, octet_length(data) FROM {table} WHERE position = $1"
END: Final = "SELECT end_sequence FROM {table} ORDER BY position DESC LIMIT 1"


class Row(NamedTuple):
    """What one commit stores."""

    position: int
    sequence: int
    end_sequence: int
    data: bytes


class PostgresJournal(StoredJournal):
    """The journal of a shard that this process owns.

    `known_durable` is a sequence that something else says was durable: a journal that ends before it has lost frames.
    """

    files_unsealed_max = 4  # a new owner reads them: this bounds how long a takeover takes
    is_remote = True
    _disk: PostgresDisk

    def __init__(
        self,
        disk: PostgresDisk,
        fenced: Fenced,
        shard_id: bytes,
        *,
        known_durable: int = 0,
        file_bytes: int = limits.journal_file_bytes,
        file_frames_max: int = limits.journal_file_frames_max,
        unseal: OpenFrame = as_it_is,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(disk, shard_id, unseal)
        self.on_mark: Callable[[int], object] = lambda sequence: None  # called with the durable sequence
        self.stalls = Stalls(clock or SystemClock())
        self._fenced = fenced
        self._file_bytes = file_bytes
        self._file_frames_max = file_frames_max
        self._gathered_bytes = 0  # in all; the difference to those stored is what waits
        self._stored_bytes = 0
        self._in_flight: Row | None = None  # sent, and not known to be stored
        self._sent: Link | None = None  # where an event loop has sent it, until somebody has received the answer
        self._on_taken: Callable[[], object] = _nothing  # called when it was not the event loop
        self._committing = threading.Lock()
        self._link: Link | None = None
        self._stop = threading.Event()
        self._is_full = False
        self._problem = ""  # why the last commit was not confirmed
        self._commits: deque[tuple[int, int]] = deque(maxlen=COMMITS_KEPT)  # the last sequence of each, and when
        fenced.on_deposed = self.fail
        self._open(known_durable)

    # Appending and committing.

    def append(self, entries: bytes, batch: bytes | memoryview = b"") -> int:
        size = len(entries) + len(batch)
        if self._refusing or size & 7 or size > ENTRIES_BYTES_MAX:
            self._refuse(size)
        self.sequence = sequence = self.sequence + 1
        # One extend, so that the writer never sees half a frame.
        self._pending += (frame_head(entries, sequence, self.durable_sequence, self._seed, batch), entries, batch)
        self._gathered_bytes += size
        return sequence

    def append_written(self, entries: bytes, batch: bytes | memoryview = b"") -> int:
        """Append only: the holder of the shard's lock must not wait for PostgreSQL."""
        return self.append(entries, batch)

    def write(self) -> None:
        self.sync()

    def sync(self) -> None:
        with self._committing:
            self._refuse_if_failed()
            if not self._pending and self._in_flight is None:
                return
            if self._closed:
                raise Closed("the journal is closed")
            self._commit_pending()

    def send_commit(self, on_taken: Callable[[], object]) -> Link | None:
        """Send the next row, when that is all there is to do and nothing is in its way."""
        if not self._committing.acquire(blocking=False):
            return None
        try:
            link = self._link
            if link is None or self._in_flight is not None or self._refusing or not link.has_prepared(b"append"):
                return None
            if self._gathered_bytes - self._stored_bytes > SENT_BYTES_MAX:
                return None
            row = self._next_row()
            return None if row is None else self._send(link, row, on_taken)
        finally:
            self._committing.release()

    def _send(self, link: Link, row: Row, on_taken: Callable[[], object]) -> Link | None:
        self.stalls.commit_waits()
        try:
            is_whole = link.send_prepared(b"append", self._values(row))
        except StorageError as error:
            self._link_lost(error)  # whoever syncs looks it up
            return None
        self._sent = link
        self._on_taken = on_taken if is_whole else _nothing
        return link if is_whole else None

    def receive_commit(self, on_taken: Callable[[], object]) -> bool:
        if not self._committing.acquire(blocking=False):
            return False  # whoever has it receives the answer
        try:
            link, row = self._sent, self._in_flight
            if link is None or row is None or self._on_taken is not on_taken:
                return True  # somebody else has the answer; what is under way now is not the caller's
            changed = link.received()
            if changed is None:
                return False
            self._sent = None
            self._answered(row, changed)
        except StorageError as error:
            self._sent = None
            if _may_be_stored(error):
                self._link_lost(error)
            else:
                self._fail(error)
        finally:
            self._committing.release()
        return True

    def _commit_pending(self) -> None:
        """Store everything gathered by now, row by row; what cannot be stored now is tried again."""
        target = self.sequence
        try:
            if self._sent is not None:
                self._take_answer(self._sent)
            if self._in_flight is not None:
                self._settle(self._in_flight)
            while self.durable_sequence < target and self._pending:
                row = self._next_row()
                if row is None:
                    self._rotate()
                else:
                    self._store(row)
        except (Deposed, Damaged) as error:
            raise self._fail(error) from error
        except StorageError as error:
            # It will not pass by itself; what is stored is a row or none, and nobody knows which.
            raise self._fail(error) from error

    def _next_row(self) -> Row | None:
        """Frames for the next row; None when the next frame belongs into a new file."""
        pending, size, buffers, frames = self._pending, 0, 0, 0
        room, frames_left = self._file_bytes - self._position, self._file_frames_max - self._frames
        while buffers + BUFFERS <= len(pending):
            length = sum(map(len, pending[buffers : buffers + BUFFERS]))
            if frames and size + length > ROW_BYTES_MAX:
                break
            if (size + length > room or frames >= frames_left) and self._frames + frames:
                break
            size, buffers, frames = size + length, buffers + BUFFERS, frames + 1
        if not frames:
            return None
        data = b"".join(pending[:buffers])
        first = self.durable_sequence + 1
        row = Row(self._position, first, first + frames, data)
        self._in_flight = row
        # From here on the row is what has these frames, whatever interrupts.
        del pending[:buffers]
        return row

    def _store(self, row: Row) -> None:
        """Append a row; returns when it is durable."""
        self.stalls.commit_waits()
        try:
            changed = self._connected().execute_prepared(b"append", self._append_sql, self._values(row))
            self._answered(row, changed)
        except StorageError as error:
            self._unanswered(error)
            self._settle(row)

    def _take_answer(self, link: Link) -> None:
        """Wait for the answer to a row that an event loop has sent."""
        row, on_taken = self._in_flight, self._on_taken
        self._sent, self._on_taken = None, _nothing
        assert row is not None
        try:
            self._answered(row, link.wait_for_changes())
        except StorageError as error:
            self._unanswered(error)
        finally:
            on_taken()

    def _answered(self, row: Row, changed: int) -> None:
        """The store has answered; no row is stored where the term is over."""
        if not changed:
            raise self._fenced.deposed()
        self._stored(row)

    def _unanswered(self, error: StorageError) -> None:
        """Forget the link after a failure that leaves open whether a row is stored; raises any other."""
        if not _may_be_stored(error):
            raise error
        self._link_lost(error)

    def _values(self, row: Row) -> tuple[Any, ...]:
        return self._fenced.shard, self._fenced.term, row.position, row.sequence, row.end_sequence, row.data

    def _settle(self, row: Row) -> None:
        """Find out whether a row is stored, and store it if it is not."""
        self._patiently(lambda: self._settle_once(row))
        self._stored(row)

    def _patiently(self, action: Callable[[], None]) -> None:
        """Try something until it works; waits while the store is away, unless everything is being closed."""
        pause = RETRY_SECONDS_MIN
        self.stalls.commit_waits()
        while True:
            try:
                return action()
            except StorageError as error:
                if not _may_be_stored(error):
                    raise
                self._link_lost(error)
                failure = error
            if self._fenced.links.is_given_up or self._stop.wait(pause):
                raise StorageError(f"the journal is closed, and not everything was stored: {failure}")
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    def _settle_once(self, row: Row) -> None:
        link = self._connected()
        self._require_confirmed(link)
        found = link.one(FIND.format(table=self._table), row.position)
        # Only now is what was read to be believed: this waits for whatever is under way, and for the standbys.
        if not link.execute(RENEW, self._fenced.shard, self._fenced.term):
            raise self._fenced.deposed()
        if found is None:
            if not link.execute_prepared(b"append", self._append_sql, self._values(row)):
                raise self._fenced.deposed()
        elif found != (row.sequence, row.end_sequence, self._fenced.term, len(row.data)):
            raise Damaged(f"{self._disk.root}: position {row.position} of {self._table} contains another row")

    def _require_confirmed(self, link: Link) -> None:
        """Refuse a store that has less than was confirmed: a standby that was promoted without its last commits."""
        if self.durable_sequence < self._first_sequence:
            return
        row = link.one(END.format(table=self._table))
        end = 0 if row is None else row[0]
        if end <= self.durable_sequence:
            raise Damaged(
                f"{self._disk.root}: the store has frames up to {max(0, end - 1)}, and {self.durable_sequence} was"
                " confirmed",
                hint="the server lost commits: fail back to the server that has them, or restore a backup",
            )

    def _stored(self, row: Row) -> None:
        frames = row.end_sequence - row.sequence
        self._position = row.position + len(row.data)
        self._frames += frames
        self._stored_bytes += len(row.data) - frames * FRAME.size
        self._in_flight = None
        self.written_sequence = self.durable_sequence = row.end_sequence - 1
        self._is_full = False
        self._problem = ""
        self._commits.append((self.durable_sequence, self.stalls.commit_answered()))

    def _connected(self) -> Link:
        link = self._link
        if link is None or not link.is_open:
            self._link = link = self._fenced.links.new()
        return link

    def _link_lost(self, error: StorageError) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._is_full = isinstance(error, DiskFull)
        if isinstance(error, StoreUnavailable):
            self._fenced.links.note_lost()
        if str(error) != self._problem:  # it is tried several times a second
            self._problem = str(error)
            logger.warning("a commit was not confirmed; checking whether it is stored: %s", error)

    def rotate(self) -> None:
        with self._committing:
            self._refuse_if_failed()
            if self._closed:
                raise Closed("the journal is closed")
            self._commit_pending()
            if self._frames:
                try:
                    self._rotate()
                except StorageError as error:
                    raise self._fail(error) from error

    def finish(self) -> None:
        self._fenced.links.hurry()
        try:
            if self.is_stale() and self.failed is None:
                self._fail(self.stale_refusal())
            self.sync()
        except StorageError as error:
            logger.warning("the last changes could not be stored: %s", error)

    def close(self) -> None:
        if self._closed:
            return
        try:
            if self.failed is None:
                self.finish()
                # A store that went away is no reason to fail: `finish` has logged it, and nobody was promised anything.
                if isinstance(self.failed, Deposed | Damaged):
                    self._refuse_if_failed()
        finally:
            self._closed = self._refusing = True
            self._stop.set()
            with self._committing:
                if self._link is not None:
                    self._link.close()

    # How the store is.

    @property
    def disk_full(self) -> bool:
        """Whether pushes must be refused: there is no room, too much waits, or the store does not answer."""
        waiting = self._gathered_bytes - self._stored_bytes
        return self._is_full or waiting > PENDING_BYTES_MAX or self.is_stale()

    @disk_full.setter
    def disk_full(self, is_full: bool) -> None:
        self._is_full = is_full

    def is_stale(self) -> bool:
        """Whether another node may have taken over without this one knowing."""
        return self.stalls.is_stale()

    def push_refusal(self) -> PenstockError:
        """Why pushes are refused."""
        if self._is_full:
            return DiskFull("PostgreSQL's disk is full; pushes are refused until there is free space")
        return self.stale_refusal()

    def stale_refusal(self) -> PenstockError:
        """Why nothing is answered from memory."""
        hint = "PostgreSQL is unavailable; try again in a moment"
        return Unavailable(f"{self._disk.root} does not answer", retry_after_seconds=AGAIN_SECONDS, hint=hint)

    def confirmed_at(self, sequence: int) -> int:
        """When a frame became durable, by the clock of the shard; frames are asked for in rising order."""
        commits = self._commits
        while len(commits) > 1 and commits[0][0] < sequence:
            commits.popleft()
        return commits[0][1] if commits else 0

    # Files.

    def remove_file(self, file: JournalFile) -> None:
        self._require_oldest(file)
        sql = "UPDATE penstock.journal_files SET dropped = true WHERE shard = $1 AND first_sequence = $2"
        self._fenced.change(lambda link: link.execute(sql, self._fenced.shard, file.first_sequence))
        del self._full[0]
        self._drop_tables()

    def _drop_tables(self) -> None:
        """Drop the tables of files that are gone. Whoever reads one keeps it, until a later round."""
        shard = self._fenced.shard
        sql = "SELECT first_sequence FROM penstock.journal_files WHERE shard = $1 AND dropped ORDER BY 1"
        for (first,) in self._fenced.links.ask(lambda link: link.rows(sql, shard)):
            try:
                self._fenced.change(lambda link, first=first: _drop(link, shard, first))  # type: ignore[misc]
            except StoreRefused as error:
                if error.sqlstate != LOCK_TIMEOUT:
                    raise
                logger.info("a journal table is still being read; it is dropped later")

    # The rest of the seam.

    def check_space(self) -> bool:
        self._drop_tables()
        return self.disk_full

    def mark(self) -> None:
        self.on_mark(self.durable_sequence)

    def free_bytes(self) -> int | None:
        return None

    # Opening.

    def _open(self, known_durable: int) -> None:
        starts = self._disk.journal_files()
        names = [journal_files.name_of(start) for start in starts]
        bounds = zip(names, starts, starts[1:], strict=False)
        self._full = [JournalFile(name, first, end, self._disk.size(name)) for name, first, end in bounds]
        if starts:
            self._continue(starts[-1], known_durable)
        elif known_durable:
            raise Damaged(f"{self._disk.root}: there are no journal files, and sequence {known_durable} was durable")
        else:
            self._start(1)
        self.sequence = self.written_sequence = self.durable_sequence = self._first_sequence + self._frames - 1

    def _continue(self, first_sequence: int, known_durable: int) -> None:
        scan = self._scan(first_sequence)
        if scan.end_sequence <= known_durable:
            raise Damaged(
                f"{self._disk.root}: the store has frames up to {scan.end_sequence - 1}, and {known_durable} was"
                " confirmed",
                hint="the server lost commits: fail back to the server that has them, or restore a backup",
            )
        self._first_sequence, self._position, self._frames = first_sequence, scan.end_position, len(scan.positions)
        self._opened = scan
        self._use_table()

    def _start(self, first_sequence: int) -> None:
        shard, header = self._fenced.shard, encode_header(Header(self._shard_id, self._fenced.term, first_sequence))

        def create(link: Link) -> None:
            for statement in create_journal_table(shard, first_sequence):
                link.execute(statement)
            link.execute(
                "INSERT INTO penstock.journal_files (shard, first_sequence, header) VALUES ($1, $2, $3)"
                " ON CONFLICT (shard, first_sequence) DO NOTHING",
                *(shard, first_sequence, header),
            )

        self._fenced.change(create)
        self._first_sequence, self._position, self._frames = first_sequence, HEADER_BYTES, 0
        self._use_table()

    def _use_table(self) -> None:
        self._table = journal_table(self._fenced.shard, self._first_sequence)
        self._append_sql = APPEND.format(table=self._table)
        if self._link is not None:
            self._link.forget_prepared(b"append")

    def _rotate(self) -> None:
        name = journal_files.name_of(self._first_sequence)
        full = JournalFile(name, self._first_sequence, self.durable_sequence + 1, self._position)
        self._patiently(lambda: self._start(self.durable_sequence + 1))
        self.stalls.commit_answered()
        self._full.append(full)
        self.on_rotate()

    def _fail(self, error: BaseException) -> PenstockError:
        refusal = super()._fail(error)
        self._stop.set()
        return refusal


def _nothing() -> None:
    """Nobody waits."""


def _may_be_stored(error: StorageError) -> bool:
    """Whether it is unknown if a row was stored, so that it must be looked up; other errors are refusals."""
    if isinstance(error, DiskFull):
        return True
    return is_passing(error) or (isinstance(error, StoreRefused) and error.sqlstate == UNIQUE)


def _drop(link: Link, shard: int, first_sequence: int) -> None:
    link.execute(DROP_LOCK)
    link.execute(f"DROP TABLE IF EXISTS {journal_table(shard, first_sequence)}")
    sql = "DELETE FROM penstock.journal_files WHERE shard = $1 AND first_sequence = $2 AND dropped"
    link.execute(sql, shard, first_sequence)
