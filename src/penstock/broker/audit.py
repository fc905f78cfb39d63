"""What the broker adds to the audit log: who asks, and what happens too often for a record each.

Denials, logins, failed logins and exports are counted, by who, whence and what. The first of a kind is written within a
second; those that follow within a minute (logins: an hour) are one more record at its end. All that is due is one
frame, at most one a second, which nobody waits for and which is not synced by itself. So the audit log grows no faster
whatever anybody tries, and neither does memory: beyond `LINES_MAX` lines at a time the rest is counted as one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access import Client
from penstock.embedded.audited import EMBEDDED, is_gathered
from penstock.errors import NotAuthenticated, NotAuthorised, PenstockError
from penstock.model_audit import Caller
from penstock.operations import Action, Operation
from penstock.shard.audit import Draft
from penstock.telemetry.logs import request_id

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger: Final = logging.getLogger("penstock.broker")

LINES_MAX: Final = 1_000
SECOND: Final = 1_000_000
WINDOW_US: Final = 60 * SECOND
LOGIN_WINDOW_US: Final = 3_600 * SECOND
CLAIM_LENGTH_MAX: Final = 100  # of a name that nobody has proved
OTHERS: Final = "(others)"
Key = tuple[str, ...]


class Line:
    """What happened alike, since it was written last."""

    __slots__ = ("count", "draft", "first_at", "last_at", "quiet_until", "window_us")

    def __init__(self, window_us: int) -> None:
        self.window_us = window_us
        self.quiet_until = 0  # monotonic; nothing is written before
        self.count = 0
        self.first_at = self.last_at = 0
        self.draft: Draft | None = None

    def add(self, draft: Draft, now: int) -> None:
        """One more; the latest is the example of all."""
        self.first_at = now if not self.count else self.first_at
        self.last_at, self.draft = now, draft
        self.count += 1

    def take(self, monotonic: int) -> Draft:
        """The record of all that was counted."""
        assert self.draft is not None
        draft = self.draft
        draft.count, draft.first_at, draft.last_at = self.count, self.first_at, self.last_at
        self.count, self.draft, self.quiet_until = 0, None, monotonic + self.window_us
        return draft


class Lines:
    """Counts what happens alike. Time is an argument; any thread may add."""

    def __init__(self) -> None:
        self._lines: dict[Key, Line] = {}
        self._lock = threading.Lock()
        self._forget_at = 0  # not sooner: looking through all of them for each new one would cost too much

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, key: Key, draft: Draft, window_us: int, now: int, monotonic: int) -> int:
        """Count it; returns when it may be written."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                if len(self._lines) >= LINES_MAX and monotonic >= self._forget_at:
                    self._forget(monotonic)
                if len(self._lines) >= LINES_MAX:
                    key = (OTHERS,)
                    draft = Draft(Caller(OTHERS), draft.what)
                line = self._lines.setdefault(key, Line(window_us))
            line.add(draft, now)
            return line.quiet_until

    def _forget(self, monotonic: int) -> None:
        self._forget_at = monotonic + SECOND
        for key in [key for key, line in self._lines.items() if not line.count and line.quiet_until <= monotonic]:
            del self._lines[key]

    def take(self, monotonic: int, *, everything: bool = False) -> list[Draft]:
        """What is due, oldest first."""
        with self._lock:
            counted = [line for line in self._lines.values() if line.count]
            due = [line for line in counted if everything or line.quiet_until <= monotonic]
            due.sort(key=lambda line: line.first_at)
            return [line.take(monotonic) for line in due]

    def next_at(self) -> int | None:
        """When something is due next, monotonic; None when nothing is counted."""
        with self._lock:
            return min((line.quiet_until for line in self._lines.values() if line.count), default=None)


class Audit:
    """The audit log, as the broker uses it. When it is off, everything here does nothing."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = broker.session.audit
        self._clock = broker.clock
        # Apart, so that who fills one does not crowd out the others.
        self._denials, self._failed_logins, self._logins, self._exports = (Lines() for _ in range(4))
        self._all = (self._denials, self._failed_logins, self._logins, self._exports)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0  # monotonic
        self._written_at = -SECOND  # monotonic
        self._is_writing = False
        self._is_arming = False  # `_arm` is called in a moment

    @property
    def is_on(self) -> bool:
        return self._log.is_on

    def caller(self, client: Client) -> Caller:
        """Who asks, as a record has it."""
        if not self.is_on:
            return EMBEDDED
        return Caller(
            client.principal.name, client.credential, client.address, client.protocol, client.name, request_id()
        )

    # what is counted

    def denied(self, client: Client, action: Action, queue: str, error: PenstockError) -> None:
        """Somebody may not do this."""
        if self.is_on and isinstance(error, NotAuthorised):
            draft = Draft(self.caller(client), "denied", queue, {"action": str(action)})
            draft.outcome = error.code
            self._count(self._denials, (client.principal.name, client.address, str(action)), draft)

    def login(self, client: Client) -> None:
        """A connection, or a request where connections mean nothing, was authenticated."""
        if self.is_on:
            key = (client.principal.name, client.address, client.protocol)
            self._count(self._logins, key, Draft(self.caller(client), "login"), LOGIN_WINDOW_US)

    def failed_login(self, address: str, protocol: str, *, credential: str = "", claimed: str = "") -> None:
        """Somebody has not proved who they are. `claimed` is the name, or the id of the key, that they gave."""
        if self.is_on:
            claimed = claimed[:CLAIM_LENGTH_MAX]
            caller = Caller("", credential, address, protocol, request_id=request_id())
            draft = Draft(caller, "failed_login", arguments={"claimed": claimed} if claimed else {})
            draft.outcome = NotAuthenticated.code
            self._count(self._failed_logins, (claimed, address, credential), draft)

    @contextmanager
    def counting(self, client: Client, operation: Operation[Any]) -> Iterator[None]:
        """Count an export, or a look at the broker as a whole, with its outcome."""
        if not (self.is_on and is_gathered(operation)):
            yield
            return
        draft = Draft(self.caller(client), operation.spec.name)
        try:
            yield
        except PenstockError as error:
            draft.outcome = error.code
            raise
        finally:
            self._count(self._exports, (client.principal.name, client.address, draft.what, draft.outcome), draft)

    def _count(self, lines: Lines, key: Key, draft: Draft, window_us: int = WINDOW_US) -> None:
        monotonic = self._clock.monotonic()
        due_at = lines.add(key, draft, window_us, self._clock.now(), monotonic)
        at = max(due_at, self._written_at + SECOND, monotonic)
        if not self._is_arming and (self._timer is None or at < self._timer_at):
            self._is_arming = True
            with suppress(RuntimeError):  # the loop is closed
                self._broker.loop.call_soon_threadsafe(self._arm)

    # writing

    def _arm(self) -> None:
        """Have the next frame written when something is due, and not sooner than a second after the last."""
        self._is_arming = False
        instants = [instant for lines in self._all if (instant := lines.next_at()) is not None]
        if not instants or self._is_writing:
            return
        monotonic = self._clock.monotonic()
        at = max(min(instants), self._written_at + SECOND, monotonic)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._broker.loop.call_later((at - monotonic) / SECOND, self._write)

    def _write(self) -> None:
        self._timer, self._written_at = None, self._clock.monotonic()
        self._is_writing = True
        self._broker.in_thread(self.flush, self._wrote)

    def _wrote(self, answer: Any) -> None:
        self._is_writing = False
        if isinstance(answer, PenstockError):
            logger.warning("the audit log lost records: %s", answer)
        self._arm()

    def flush(self, *, everything: bool = False) -> int:
        """Write what is due, as one frame that is not synced by itself; returns how many records."""
        if self._broker.shard.journal.disk_full and not everything:
            return 0
        monotonic = self._clock.monotonic()
        drafts = [draft for lines in self._all for draft in lines.take(monotonic, everything=everything)]
        if drafts:
            self._log.write(drafts, "os")
        return len(drafts)

    async def finish(self) -> None:
        """Write all that is counted: the broker stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            await asyncio.to_thread(self.flush, everything=True)
        except PenstockError as error:  # whatever is left to stop must stop all the same
            logger.warning("the audit log lost records: %s", error)
