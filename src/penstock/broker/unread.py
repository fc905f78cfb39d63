"""The memory that requests may take before they are whole: one budget for all connections, shared by address.

An address may hold what is left when every other one that holds something has the same share. So whoever begins many
large requests and does not finish them is refused, and others are not.
"""

from __future__ import annotations

from penstock import limits


class Unread:
    """The budget for bytes of incomplete requests; `take()` refuses an address that exceeds its share."""

    def __init__(self, bytes_max: int = limits.unread_bytes_max) -> None:
        self.bytes_max = bytes_max
        self.total = 0
        self._by_address: dict[str, int] = {}

    def take(self, address: str, count: int) -> bool:
        """Count bytes that have come. False: they are too many, and are not counted."""
        held = self._by_address.get(address, 0) + count
        if self.total + count > self.bytes_max:
            sharers = len(self._by_address) + (address not in self._by_address)
            if held > self.bytes_max // sharers:
                return False
        self._by_address[address] = held
        self.total += count
        return True

    def give_back(self, address: str, count: int) -> None:
        """Those bytes are read, or thrown away."""
        if count:
            self.total -= count
            held = self._by_address[address] - count
            if held:
                self._by_address[address] = held
            else:
                del self._by_address[address]
