"""A cache of values read from files, bounded by bytes; the least recently used goes first.

Threads that need the same value at once wait for one of them to make it. A value larger than the whole budget is made,
returned and not kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteCache(Generic[Key, Value]):
    """`get` returns a value from memory, or makes it and keeps it."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.misses = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._making: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Key, make: Callable[[], tuple[Value, int]]) -> Value:
        """The value of `key`; `make` returns it with its size in bytes and is called without any other key's lock."""
        with self._lock:
            if key in self._values:
                return self._hit(key)
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._values:
                    return self._hit(key)
            try:
                value, size = make()
            finally:
                with self._lock:
                    self._making.pop(key, None)
            self._keep(key, value, size)
            return value

    def peek(self, key: Key) -> Value | None:
        """The value of `key` if it is in memory; it does not count as a use."""
        with self._lock:
            entry = self._values.get(key)
        return None if entry is None else entry[0]

    def drop(self, is_gone: Callable[[Key], bool]) -> None:
        """Drop every key for which `is_gone` is true."""
        with self._lock:
            for key in [key for key in self._values if is_gone(key)]:
                self.bytes -= self._values.pop(key)[1]

    def _hit(self, key: Key) -> Value:
        self._values.move_to_end(key)
        return self._values[key][0]

    def _keep(self, key: Key, value: Value, size: int) -> None:
        with self._lock:
            self.misses += 1
            if size > self.bytes_max or key in self._values:
                return
            self._values[key] = (value, size)
            self.bytes += size
            while self.bytes > self.bytes_max:
                self.bytes -= self._values.popitem(last=False)[1][1]
