"""A budget that addresses share: of memory for requests that are not whole yet, or of handshakes under way.

An address may hold what is left when every other one that holds something has the same share. So whoever begins much
and finishes nothing is refused, and others are not.
"""

from __future__ import annotations


class AddressBudget:
    """Counts what each address holds; `take()` refuses one that exceeds its share when the budget is used up."""

    def __init__(self, total_max: int) -> None:
        self.total_max = total_max
        self.total = 0
        self._by_address: dict[str, int] = {}

    def take(self, address: str, count: int) -> bool:
        """Count what an address begins to hold. False: it is too much, and is not counted."""
        held = self._by_address.get(address, 0) + count
        if self.total + count > self.total_max:
            sharers = len(self._by_address) + (address not in self._by_address)
            if held > self.total_max // sharers:
                return False
        self._by_address[address] = held
        self.total += count
        return True

    def give_back(self, address: str, count: int) -> None:
        """The address holds that much less."""
        if count:
            self.total -= count
            held = self._by_address[address] - count
            if held:
                self._by_address[address] = held
            else:
                del self._by_address[address]
