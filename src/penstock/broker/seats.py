"""Connections of a namespace: how many there are, and how many there may be.

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
                hint="close some, or have its quota raised: penstock namespace create",
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
