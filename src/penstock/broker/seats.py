"""Connections: how many a namespace has and may have, and what an address may hold.

A connection belongs to the namespace of who has logged in on it; one over HTTP, of who asked last. Single calls over
gRPC are no connections, but their streams are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.access.grants import Principal
from penstock.errors import Unavailable


class Seats:
    """The connections of all namespaces. Used on the event loop; others may look."""

    def __init__(self, limit_of: Callable[[str], int | None]) -> None:
        self._limit_of = limit_of  # the quota of a namespace
        self._taken: Counter[str] = Counter()

    def taken(self, namespace: str) -> int:
        """How many connections a namespace has."""
        return self._taken[namespace]

    def take(self, namespace: str) -> None:
        """One more; raises `Unavailable` when there are as many as there may be."""
        limit = self._limit_of(namespace)
        count = self._taken[namespace]
        if limit is not None and count >= limit:
            raise Unavailable(
                f"namespace {namespace!r} has {count:,} of {limit:,} connections: quota 'connections'",
                hint="close some, or raise its quota with `penstock namespace create`",
            )
        self._taken[namespace] = count + 1

    def leave(self, namespace: str) -> None:
        """One less."""
        self._taken[namespace] -= 1
        if not self._taken[namespace]:
            del self._taken[namespace]


class Seat:
    """One connection, and the namespace that it is counted in."""

    __slots__ = ("_namespace", "_principal", "_seats")

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self._principal: Principal | None = None
        self._namespace = ""

    def take(self, principal: Principal) -> None:
        """It is known who is on the connection; raises `Unavailable` when their namespace has too many."""
        if principal is self._principal:
            return
        namespace = principal.namespace
        if namespace != self._namespace:
            if namespace:
                self._seats.take(namespace)  # refused, whoever was there before stays
            self.leave()
        self._principal, self._namespace = principal, namespace

    def leave(self) -> None:
        """The connection has ended."""
        if self._namespace:
            self._seats.leave(self._namespace)
        self._principal, self._namespace = None, ""


class AddressBudget:
    """A budget that addresses share: of memory for requests that are not whole yet, or of handshakes under way.

    An address may hold what is left when every other one that holds something has the same share. So whoever begins
    much and finishes nothing is refused, and others are not.
    """

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
