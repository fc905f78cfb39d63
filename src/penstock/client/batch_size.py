"""How many messages a consumer takes at a time, when it does not say so.

It begins with one and takes twice as many while a lease is worked off within a second: then the way to the broker
counts, not the work. A lease that takes longer brings it back to one, so that slow work is shared among consumers.
Where order, limits or a single attempt make every message count by itself, it is always one: the reply of a lease says
so.
"""

from __future__ import annotations

from typing import Final

from penstock import limits
from penstock.client.values import BaseLeased
from penstock.clock import Clock
from penstock.errors import InvalidField

BATCH_MAX: Final = 64
WORKED_OFF_US: Final = 1_000_000


class BatchSize:
    """Chooses the size of the next lease. `batch` is what the program asks for; None adapts."""

    def __init__(self, batch: int | None, clock: Clock) -> None:
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise InvalidField(f"batch: {batch!r} is outside 1 to {limits.lease_messages_max}")
        self._adapts = batch is None
        self._clock = clock
        self._since = 0
        self.size = 1 if batch is None else batch

    def begin(self) -> None:
        """A lease is about to be worked off."""
        if self._adapts:
            self._since = self._clock.monotonic()

    def end(self, leased: BaseLeased) -> None:  # type: ignore[type-arg]
        """It is."""
        if self._adapts:
            is_quick = self._clock.monotonic() - self._since <= WORKED_OFF_US
            self.size = min(self.size * 2, leased.batch_max or BATCH_MAX) if is_quick else 1
