"""Limits of failed tries: how often somebody may guess a password or a key.

Failures are counted like the level of a leaking bucket: each adds one, one leaks out every 10 seconds, and a bucket
that is full refuses. So whoever has failed as often as the budget allows has one try every 10 seconds, and who waits
has the whole budget again.

A try at a name counts in three buckets:

    (name, address)   5     guesses at one password
    address          20     one password tried with many names; others behind the same address share it
    name            100     guesses from many addresses

Nobody is locked out by strangers: a (name, address) that has signed in before waits for its own bucket only, since the
other two can be filled by others. A success empties the bucket of its (name, address); it gives the other two back no
more than the try itself, or an account of one's own would buy guesses at those of others.

A key or a JWT cannot be guessed, so it is checked first, and only those that are wrong count, in buckets of their own:
a worker with an old key keeps nobody behind the same address out.

Nothing here waits. A try counts from its beginning, so tries that run at the same time do not slip through together.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Final

from penstock.clock import Clock
from penstock.errors import RateLimited

PAIR_BUDGET: Final = 5
ADDRESS_BUDGET: Final = 20
NAME_BUDGET: Final = 100
LEAK_US: Final = 10_000_000  # in which one failure is forgotten
BUCKETS_MAX: Final = 10_000  # of each kind
KNOWN_MAX: Final = 10_000  # (name, address) that have signed in
NAME_LENGTH_MAX: Final = 128  # of what is kept of a name: longer ones do not exist


class FailedTries:
    """Failed tries of one broker, by address and by name. Used by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pairs = _Buckets(PAIR_BUDGET)
        self._addresses = _Buckets(ADDRESS_BUDGET)
        self._names = _Buckets(NAME_BUDGET)
        self._wrong_keys = _Buckets(ADDRESS_BUDGET)
        self._known: dict[tuple[str, str], None] = {}  # the least recent first

    def begin(self, address: str, name: str) -> None:
        """Count a try to sign in, before the password is looked at; raises `RateLimited` if it must wait."""
        now = self._clock.monotonic()
        pair = _pair(address, name)
        wait = self._pairs.wait(pair, now)
        if pair not in self._known:
            wait = max(wait, self._names.wait(pair[0], now), self._addresses.wait(pair[1], now))
        if wait:
            raise _refusal(wait)
        self._pairs.add(pair, now)
        self._names.add(pair[0], now)
        self._addresses.add(pair[1], now)

    def succeeded(self, address: str, name: str) -> None:
        """A try that this address began at this name was right."""
        now = self._clock.monotonic()
        pair = _pair(address, name)
        self._pairs.forget(pair)
        self._names.take_back(pair[0], now)
        self._addresses.take_back(pair[1], now)
        self._known.pop(pair, None)
        self._known[pair] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def wrong_key(self, address: str) -> None:
        """Count a key or token that is not valid; raises `RateLimited` for an address that had too many."""
        now = self._clock.monotonic()
        network = _network(address)
        wait = self._wrong_keys.wait(network, now)
        if wait:
            raise _refusal(wait)
        self._wrong_keys.add(network, now)

    def forget_name(self, name: str) -> None:
        """Forget who has signed in as this user: it was deleted, or its password was changed."""
        name = name[:NAME_LENGTH_MAX]
        self._known = {pair: None for pair in self._known if pair[0] != name}


class _Buckets:
    """Leaking buckets of one kind: a level, and when it was right."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._levels: dict[Hashable, tuple[float, int]] = {}

    def wait(self, key: Hashable, now: int) -> int:
        """µs until the bucket has room for one more."""
        over = self._level(key, now) - (self._budget - 1)
        return max(0, round(over * LEAK_US))

    def add(self, key: Hashable, now: int) -> None:
        level = self._level(key, now)
        if key not in self._levels and len(self._levels) >= BUCKETS_MAX:
            self._make_room(now)
        self._levels[key] = (min(level + 1, self._budget), now)

    def take_back(self, key: Hashable, now: int) -> None:
        level = self._level(key, now) - 1
        if level > 0:
            self._levels[key] = (level, now)
        else:
            self.forget(key)

    def forget(self, key: Hashable) -> None:
        self._levels.pop(key, None)

    def _level(self, key: Hashable, now: int) -> float:
        level, since = self._levels.get(key, (0.0, now))
        return max(0.0, level - (now - since) / LEAK_US)

    def _make_room(self, now: int) -> None:
        """Drop a tenth, the emptiest ones: whoever makes up names must not flush the bucket of a real one."""
        emptiest = sorted(self._levels, key=lambda key: self._level(key, now))
        for key in emptiest[: BUCKETS_MAX // 10]:
            del self._levels[key]


def _pair(address: str, name: str) -> tuple[str, str]:
    return name[:NAME_LENGTH_MAX], _network(address)


def _network(address: str) -> str:
    """What one person has: an IPv4 address, or the /64 of an IPv6 one. Texts that are neither stay as they are."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))


def _refusal(wait_us: int) -> RateLimited:
    seconds = wait_us / 1_000_000
    return RateLimited(
        "too many failed sign-ins", retry_after_seconds=seconds, hint=f"try again in {seconds:.0f} seconds"
    )
