"""One connection to PostgreSQL, spoken to at the level of `libpq`.

- The settings that guarantees depend on are set and read back when a link is created, whatever the role or the database
  has configured; no other setting of the session matters.
- A statement has a deadline. When it passes, the socket is closed: a statement is never cancelled, because a commit
  that is cancelled while it waits for its standby is reported as done.
- The outcome of a statement that was sent when a link broke is unknown: `StoreUnavailable`. The same holds for a
  warning 01000, by which PostgreSQL reports a commit that no standby has confirmed.
- A prepared statement can be sent without waiting, by callers that watch the socket. Its answer is checked like others.

For one thread at a time.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from penstock.clock import SystemClock
from penstock.errors import StorageError, StoreUnavailable
from penstock.extras import postgres_extra
from penstock.postgres.target import Target, server_error

Value = int | str | bytes | memoryview | None
Row = tuple[Any, ...]

STATEMENT_SECONDS: Final = 10.0
HURRY_SECONDS: Final = 5.0  # of a statement, when everything is about to be closed
CONNECT_SECONDS: Final = 3
LOOK_MS: Final = 500  # between two looks at the deadline, which may come nearer while a statement is under way
NOT_REPLICATED: Final = "01000"

# What every session has, whatever is configured elsewhere.
SETTINGS: Final = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    # A client that stops in the middle of a transaction must not hold the row of the shard for long, frozen or cut off.
    "idle_in_transaction_session_timeout": "10s",
    "client_min_messages": "warning",
}
# The server notices a peer that is gone; over a socket of its own machine these cannot be set, nor need they.
SETTINGS_OF_TCP: Final = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
FATAL: Final = (b"FATAL", b"PANIC")

_INTEGERS: Final = (20, 21, 23, 26)  # int8, int2, int4, oid
_BYTEA: Final = 17
_BINARY: Final = (bytes, memoryview)  # sent as they are; all else as text
_BOOLEAN: Final = 16

_clock = SystemClock()


class Link:
    """A connection. `statement_seconds` is the deadline of each statement."""

    def __init__(self, target: Target, role: str, *, statement_seconds: float = STATEMENT_SECONDS) -> None:
        with postgres_extra("a store in PostgreSQL"):
            import psycopg
            from psycopg import pq
        self._pq: Any = pq
        self._error_of_libpq: type[Exception] = psycopg.Error
        self._seconds = statement_seconds
        try:
            self._connection: Any = target.hosts.connect(
                lambda conninfo: psycopg.connect(
                    conninfo, autocommit=True, application_name=role, connect_timeout=CONNECT_SECONDS
                ),
                psycopg.Error,
                (psycopg.errors.ConnectionTimeout,),
            )
        except (psycopg.Error, UnicodeError) as error:
            raise server_error(getattr(error, "sqlstate", None), str(error), target) from None
        self._target = target
        self._conn = self._connection.pgconn
        self._conn.nonblocking = 1
        self._conn.notice_handler = self._notice
        self._warned = False
        self._last: Any = None  # of the results of the statement that was sent
        self._deadline = 0
        self._cut_at: int | None = None  # the deadline of what was under way when it became urgent
        self._prepared: set[bytes] = set()
        self._poll = select.poll()
        try:
            self._apply_settings()
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return bool(self._conn.status == self._pq.ConnStatus.OK)

    @property
    def server_version(self) -> int:
        return int(self._conn.server_version)

    @property
    def announced_pid(self) -> int:
        """The backend's process as the server announced it; a pooler announces something else."""
        return int(self._conn.backend_pid)

    def close(self) -> None:
        with suppress(Exception):
            self._conn.finish()

    def hurry(self) -> None:
        """From now on nothing takes longer than `HURRY_SECONDS`, also what is under way; called by any thread."""
        self._seconds = min(self._seconds, HURRY_SECONDS)
        self._cut_at = _clock.monotonic() + round(HURRY_SECONDS * 1_000_000)

    def fileno(self) -> int:
        return int(self._conn.socket)

    # statements

    def rows(self, sql: str, *values: Value) -> list[Row]:
        """Run a statement; its rows."""
        result = self._run(sql, values, None)
        return [self._row(result, index) for index in range(result.ntuples)]

    def one(self, sql: str, *values: Value) -> Row | None:
        """The first row, or None."""
        result = self._run(sql, values, None)
        return self._row(result, 0) if result.ntuples else None

    def execute(self, sql: str, *values: Value) -> int:
        """Run a statement; how many rows it changed."""
        return self._run(sql, values, None).command_tuples or 0

    def execute_prepared(self, name: bytes, sql: str, values: Sequence[Value]) -> int:
        """`execute()` of a statement that is prepared when it is first used."""
        if name not in self._prepared:
            self._begin()
            self._conn.send_prepare(name, sql.encode())
            self._checked(self._result())
            self._prepared.add(name)
        return self._run(sql, values, name).command_tuples or 0

    def forget_prepared(self, name: bytes) -> None:
        """The next use of a name prepares another statement."""
        if name in self._prepared and self.is_open:
            self._prepared.discard(name)
            self.script(f"DEALLOCATE {name.decode()}")

    def script(self, sql: str) -> None:
        """Several statements without values, in one transaction."""
        self._begin()
        self._conn.send_query(sql.encode())
        result = self._result()
        self._warned = False  # no commit that anybody relies on
        self._checked(result)

    def begin(self) -> None:
        self.execute("BEGIN")

    def commit(self) -> None:
        """End a transaction; raises when it was rolled back instead."""
        result = self._run("COMMIT", (), None)
        if result.command_status != b"COMMIT":
            raise StorageError("the transaction was rolled back")

    def rollback(self) -> None:
        """Give up a transaction; a link that is lost has done so already."""
        with suppress(StorageError):
            if self.is_open and self._conn.transaction_status != self._pq.TransactionStatus.IDLE:
                self.execute("ROLLBACK")

    def has_prepared(self, name: bytes) -> bool:
        return name in self._prepared and self.is_open

    def send_prepared(self, name: bytes, values: Sequence[Value]) -> bool:
        """Send a prepared statement and do not wait: whether all of it is on its way.

        `received` or `wait_for_changes` has to follow before anything else is sent.
        """
        self._send("", values, name)
        try:
            return not self._conn.flush()
        except self._error_of_libpq as error:
            raise self._lost(str(error)) from None

    def received(self) -> int | None:
        """How many rows the statement that was sent has changed; None when its answer is not there yet."""
        conn = self._conn
        try:
            conn.consume_input()
            while not conn.is_busy():
                result = conn.get_result()
                if result is None:
                    last, self._last = self._last, None
                    return self._checked(last).command_tuples or 0
                self._last = self._later(self._last, result)
        except self._error_of_libpq as error:
            raise self._lost(str(error)) from None
        return None

    def wait_for_changes(self) -> int:
        """`received`, waiting for the answer up to the deadline of the statement."""
        return self._checked(self._result()).command_tuples or 0

    def _run(self, sql: str, values: Sequence[Value], name: bytes | None) -> Any:
        self._send(sql, values, name)
        return self._checked(self._result())

    def _send(self, sql: str, values: Sequence[Value], name: bytes | None) -> None:
        self._begin()
        texts = [value if type(value) is bytes else _encoded(value) for value in values]
        formats = [int(isinstance(value, _BINARY)) for value in values]
        try:
            if name is None:
                self._conn.send_query_params(sql.encode(), texts, None, formats, 1)
            else:
                self._conn.send_query_prepared(name, texts, formats, 1)
        except self._error_of_libpq as error:
            raise self._lost(str(error)) from None

    def _begin(self) -> None:
        """A statement is about to be sent."""
        self._warned, self._last, self._cut_at = False, None, None
        self._deadline = _clock.monotonic() + round(self._seconds * 1_000_000)

    def _checked(self, result: Any) -> Any:
        """The result of a statement that worked, and whose commit is confirmed."""
        if isinstance(result, StorageError):
            raise result
        if result is None:
            raise self._lost("the reply was lost")
        if self._warned:
            # It is done here, and nobody knows whether it is done anywhere else.
            raise self._lost("PostgreSQL warned that a commit was not replicated")
        return result

    def _result(self) -> Any:
        """Wait for the answer, up to the deadline; the last result, or the error of any."""
        conn, deadline = self._conn, self._deadline
        last, self._last = self._last, None
        try:
            while conn.flush():
                self._wait(select.POLLIN | select.POLLOUT, deadline)
                conn.consume_input()
            while True:
                while conn.is_busy():
                    self._wait(select.POLLIN, deadline)
                    conn.consume_input()
                result = conn.get_result()
                if result is None:
                    return last
                last = self._later(last, result)
        except self._error_of_libpq as error:
            raise self._lost(str(error)) from None
        except StoreUnavailable:
            raise
        except BaseException:
            # Interrupted while it waits: nobody will read the answer, so the connection is of no use.
            self.close()
            raise

    def _later(self, last: Any, result: Any) -> Any:
        """What counts of two results of one statement: the later one, and an error before all."""
        if result.status in (self._pq.ExecStatus.FATAL_ERROR, self._pq.ExecStatus.BAD_RESPONSE):
            return self._error(result)
        return last if isinstance(last, StorageError) else result

    def _wait(self, events: int, deadline: int) -> None:
        self._poll.register(self._conn.socket, events)
        while True:
            cut_at = self._cut_at
            left = (deadline if cut_at is None else min(deadline, cut_at)) - _clock.monotonic()
            if left <= 0:
                raise self._lost("no reply within the deadline")
            if self._poll.poll(min(left / 1000, LOOK_MS)):
                return

    def _error(self, result: Any) -> StorageError:
        field = self._pq.DiagnosticField
        state = result.error_field(field.SQLSTATE)
        message = (result.error_field(field.MESSAGE_PRIMARY) or result.error_message or b"").decode("utf-8", "replace")
        is_fatal = result.error_field(field.SEVERITY_NONLOCALIZED) in FATAL
        if is_fatal or not self.is_open or state is None or state[:2] in (b"57", b"08"):
            # The server ends the connection: shutdown, crash of another backend, terminated by somebody.
            return self._lost(message)
        return server_error(state.decode(), message, self._target)

    def _lost(self, reason: str) -> StoreUnavailable:
        self.close()
        return StoreUnavailable(f"the connection to {self._target.shown} was lost: {reason.strip()}")

    def _notice(self, result: Any) -> None:
        if result.error_field(self._pq.DiagnosticField.SQLSTATE) == NOT_REPLICATED.encode():
            self._warned = True

    def _row(self, result: Any, index: int) -> Row:
        return tuple(
            _decoded(result.get_value(index, column), result.ftype(column)) for column in range(result.nfields)
        )

    def _apply_settings(self) -> None:
        self.script("SET statement_timeout = 0")  # before anything that one of a few milliseconds would end
        names = self.rows("SELECT name FROM pg_catalog.pg_settings WHERE name = ANY($1::text[])", _array(SETTINGS))
        known = {name: SETTINGS[name] for (name,) in names}  # older servers lack some
        wanted = {**known, **SETTINGS_OF_TCP}
        self.script("; ".join(f"SET {name} = '{value}'" for name, value in wanted.items()))
        sql = "SELECT name, current_setting(name) FROM unnest($1::text[]) name"  # one round trip for all
        for name, value in sorted(self.rows(sql, _array(known))):
            if value != SETTINGS[name]:
                raise StorageError(
                    f"{self._target.shown}: {name} is {value!r} and cannot be set to {SETTINGS[name]!r}",
                    hint="connect to PostgreSQL directly, not through a pooler that shares sessions",
                )


def session_name(node: str) -> str:
    """What PostgreSQL shows of the sessions of a node."""
    return f"penstock {node}"[:63]


def _encoded(value: Value) -> bytes | memoryview | None:
    if isinstance(value, str):
        return value.encode()
    return b"%d" % value if isinstance(value, int) else value


def _decoded(data: bytes | None, kind: int) -> Any:
    if data is None:
        return None
    if kind in _INTEGERS:
        return int.from_bytes(data, "big", signed=True)
    if kind == _BYTEA:
        return data
    if kind == _BOOLEAN:
        return data != b"\0"
    return data.decode()


def _array(names: Sequence[str] | dict[str, str]) -> str:
    """A list of plain words as PostgreSQL writes one."""
    return "{" + ",".join(names) + "}"
