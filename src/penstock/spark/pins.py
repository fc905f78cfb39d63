"""Pins on files that Spark will read by itself, so that they are not removed before it has.

A DataFrame reads its files when its rows are first needed, which may be much later or never. So the files of a table
are pinned while the program runs, for some hours at most. One thread renews all pins; those of a program that died
expire after two minutes.
"""

from __future__ import annotations

import atexit
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock import limits
from penstock.clock import Clock, SystemClock
from penstock.history.files import LocalFiles

HOLD_SECONDS: Final = 8 * 3600.0  # a working day in a notebook
RENEW_SECONDS: Final = limits.segment_pin_seconds / 4


class Hold:
    """One pin. Begins with every file; `narrow` says which ones are meant."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self._files = LocalFiles(root)
        self._clock = clock
        self._name = f"table-{secrets.token_hex(8)}"
        self.names: tuple[str, ...] | None = None
        self.ends_at = clock.monotonic() + round(HOLD_SECONDS * 1_000_000)
        self.renew()

    def narrow(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.renew()

    def renew(self) -> None:
        self._files.pin(self._name, self._clock.now(), self.names)

    def release(self) -> None:
        self._files.unpin(self._name)


class Holder:
    """Renews holds until their time is over."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._holds: list[Hold] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, root: Path) -> Hold:
        """Pin all files below a data directory, and go on doing so."""
        found = Hold(root, self._clock)
        with self._lock:
            self._holds.append(found)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-holder", daemon=True)
                self._thread.start()
                atexit.register(self.release)
        return found

    def narrow(self, hold: Hold, names: Sequence[str]) -> None:
        """Hold these files and no others. Where they are held already, that hold lasts longer, and this one ends."""
        with self._lock:
            same = next((each for each in self._holds if each.root == hold.root and each.names == tuple(names)), None)
            if same is not None:
                same.ends_at = hold.ends_at
        if same is None and names:
            hold.narrow(names)
        else:
            self.let_go(hold)

    def let_go(self, hold: Hold) -> None:
        """What this one held may go."""
        with self._lock:
            self._holds = [each for each in self._holds if each is not hold]
        hold.release()

    def tick(self) -> None:
        """Renew what is held; let go of what was held for long enough."""
        now = self._clock.monotonic()
        with self._lock:
            over = [each for each in self._holds if each.ends_at <= now]
            self._holds = [each for each in self._holds if each.ends_at > now]
            renewed = list(self._holds)
        for each in over:
            each.release()
        for each in renewed:
            each.renew()

    def release(self) -> None:
        """Let go of everything, for good."""
        self._is_over.set()
        with self._lock:
            holds, self._holds = self._holds, []
        for each in holds:
            each.release()

    def _run(self) -> None:
        while not self._is_over.wait(RENEW_SECONDS):
            self.tick()


HOLDER: Final = Holder()
