"""Which broker to try next: those of the list in turn, and where a spare node points to. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from penstock.errors import InvalidField, Moved, Unavailable
from penstock.remote.settings import Address, addresses


class Route:
    """`current` is the address that answered last, or is being tried."""

    def __init__(self, listed: Sequence[Address]) -> None:
        self._listed = list(listed)
        self._next: deque[Address] = deque()
        self.current = listed[0]

    def round(self) -> Iterator[Address]:
        """Every address once, the current one first. It is the current one while it is tried."""
        start = self._listed.index(self.current) if self.current in self._listed else 0
        first, tried = self.current, set[Address]()
        self._next = deque([first, *self._listed[start:], *self._listed[:start]])
        while self._next:
            address = self._next.popleft()
            if address not in tried:
                tried.add(address)
                self.current = address
                yield address
        self.current = first if first in self._listed else self._listed[0]

    def moved(self, error: Moved) -> Unavailable:
        """A spare has answered: try the owner next. Returns what to report when nobody else is of use.

        Only by the same scheme: a client that speaks TLS is never led away from it.
        """
        try:
            owner = addresses(error.address)[0] if error.address else None
        except InvalidField:
            owner = None
        if owner is not None and owner.scheme == self.current.scheme:
            self._next.appendleft(owner)
        return Unavailable(f"{self.current}: {error.message}")
