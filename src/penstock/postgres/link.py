"""One connection to PostgreSQL, spoken to at the level of `libpq`.

- The settings that the promises rest on are set and read back when a link is made, whatever the role or the database
  says; nothing else of the session is relied upon.
- A statement has a deadline. When it passes, the socket is closed: a statement is never cancelled, because a commit
  that is cancelled while it waits for its standby is reported as done.
- What was sent when a link breaks may or may not have happened: `StoreUnavailable` says so. A warning of class 01000,
  which is how PostgreSQL reports a commit that no standby has confirmed, is the same.

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
CONNECT_SECONDS: Final = 3
NOT_REPLICATED: Final = "01000"

# What every session has, whatever is configured elsewhere.
SETTINGS: Final = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_min_messages": "warning",
}

_INTEGERS: Final = (20, 21, 23, 26)  # int8, int2, int4, oid
_BYTEA: Final = 17
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
            self._connection: Any = psycopg.connect(
                target.conninfo, autocommit=True, application_name=role, connect_timeout=CONNECT_SECONDS
            )
        except (psycopg.Error, UnicodeError) as error:
            raise server_error(getattr(error, "sqlstate", None), str(error), target) from None
        self._target = target
        self._conn = self._connection.pgconn
        self._conn.nonblocking = 1
        self._conn.notice_handler = self._notice
        self._warned = False
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
            self._conn.send_prepare(name, sql.encode())
            self._result()
            self._prepared.add(name)
        return self._run(sql, values, name).command_tuples or 0

    def forget_prepared(self, name: bytes) -> None:
        """The next use of a name prepares another statement."""
        if name in self._prepared and self.is_open:
            self._prepared.discard(name)
            self.script(f"DEALLOCATE {name.decode()}")

    def script(self, sql: str) -> None:
        """Several statements without values, in one transaction."""
        self._warned = False
        self._conn.send_query(sql.encode())
        self._result()

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

    def _run(self, sql: str, values: Sequence[Value], name: bytes | None) -> Any:
        self._warned = False
        texts = [_encoded(value) for value in values]
        formats = [int(isinstance(value, bytes | memoryview)) for value in values]
        try:
            if name is None:
                self._conn.send_query_params(sql.encode(), texts, None, formats, 1)
            else:
                self._conn.send_query_prepared(name, texts, formats, 1)
        except self._error_of_libpq as error:
            raise self._lost(str(error)) from None
        result = self._result()
        if self._warned:
            # It is done here, and nobody knows whether it is done anywhere else.
            raise self._lost("PostgreSQL warned that a commit was not replicated")
        return result

    def _result(self) -> Any:
        """Wait for the answer, up to the deadline; the last result, or the error of any."""
        conn, deadline = self._conn, _clock.monotonic() + round(self._seconds * 1_000_000)
        last: Any = None
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
                    break
                last = self._later(last, result)
        except self._error_of_libpq as error:
            raise self._lost(str(error)) from None
        except StoreUnavailable:
            raise
        except BaseException:
            # Interrupted while it waits: nobody will read the answer, so the connection is of no use.
            self.close()
            raise
        if isinstance(last, StorageError):
            raise last
        return last

    def _later(self, last: Any, result: Any) -> Any:
        """What counts of two results of one statement: the later one, and an error before all."""
        if result.status in (self._pq.ExecStatus.FATAL_ERROR, self._pq.ExecStatus.BAD_RESPONSE):
            return self._error(result)
        return last if isinstance(last, StorageError) else result

    def _wait(self, events: int, deadline: int) -> None:
        left = deadline - _clock.monotonic()
        if left <= 0:
            raise self._lost("no answer within the deadline")
        self._poll.register(self._conn.socket, events)
        if not self._poll.poll(left / 1000):
            raise self._lost("no answer within the deadline")

    def _error(self, result: Any) -> StorageError:
        field = self._pq.DiagnosticField
        state = result.error_field(field.SQLSTATE)
        message = (result.error_field(field.MESSAGE_PRIMARY) or result.error_message or b"").decode("utf-8", "replace")
        if not self.is_open or state is None or state[:2] in (b"57", b"08"):
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
        known = {name for (name,) in names}  # older servers lack some
        self.script("; ".join(f"SET {name} = '{value}'" for name, value in SETTINGS.items() if name in known))
        for name in sorted(known):
            row = self.one("SELECT current_setting($1)", name)
            if row is None or row[0] != SETTINGS[name]:
                raise StorageError(
                    f"{self._target.shown}: {name} is {row and row[0]!r} and cannot be set to {SETTINGS[name]!r}",
                    hint="connect to PostgreSQL itself, not through a pooler that shares sessions",
                )


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
