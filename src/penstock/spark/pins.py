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

PIN_SECONDS: Final = 8 * 3600.0  # a working day in a notebook
RENEW_SECONDS: Final = limits.segment_pin_seconds / 4


class Pin:
    """One pin. It begins with every file; `narrow` reduces it to some."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self._files = LocalFiles(root)
        self._clock = clock
        self._name = f"table-{secrets.token_hex(8)}"
        self.names: tuple[str, ...] | None = None
        self.ends_at = clock.monotonic() + round(PIN_SECONDS * 1_000_000)
        self.renew()

    def narrow(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.renew()

    def renew(self) -> None:
        self._files.pin(self._name, self._clock.now(), self.names)

    def release(self) -> None:
        self._files.unpin(self._name)


class PinKeeper:
    """Renews pins until their time is over."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._pins: list[Pin] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def pin(self, root: Path) -> Pin:
        """Pin all files of a data directory, and renew the pin from now on."""
        pin = Pin(root, self._clock)
        with self._lock:
            self._pins.append(pin)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-pins", daemon=True)
                self._thread.start()
                atexit.register(self.release)
        return pin

    def narrow(self, pin: Pin, names: Sequence[str]) -> None:
        """Pin only these files. If another pin holds the same ones, that pin is prolonged and this one is released."""
        with self._lock:
            same = next((other for other in self._pins if other.root == pin.root and other.names == tuple(names)), None)
            if same is not None:
                same.ends_at = pin.ends_at
        if same is None and names:
            pin.narrow(names)
        else:
            self.unpin(pin)

    def unpin(self, pin: Pin) -> None:
        """Release a pin."""
        with self._lock:
            self._pins = [other for other in self._pins if other is not pin]
        pin.release()

    def tick(self) -> None:
        """Renew all pins; release those whose time is over."""
        now = self._clock.monotonic()
        with self._lock:
            over = [pin for pin in self._pins if pin.ends_at <= now]
            self._pins = [pin for pin in self._pins if pin.ends_at > now]
            renewed = list(self._pins)
        for pin in over:
            pin.release()
        for pin in renewed:
            pin.renew()

    def release(self) -> None:
        """Release everything, for good."""
        self._is_over.set()
        with self._lock:
            pins, self._pins = self._pins, []
        for pin in pins:
            pin.release()

    def _run(self) -> None:
        while not self._is_over.wait(RENEW_SECONDS):
            self.tick()


KEEPER: Final = PinKeeper()
