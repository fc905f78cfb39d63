"""What is recorded, and for how long."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.model import Outcome
from penstock.model_metrics import BROKER_COUNTERS, BROKER_GAUGES, COUNTERS, GAUGES


class Tier(NamedTuple):
    """Slices of one length. A file holds those of `file_seconds`, and goes when all are older than `keep_seconds`."""

    name: str
    seconds: int
    keep_seconds: int
    file_seconds: int


HOUR: Final = 3_600
DAY: Final = 24 * HOUR
# From fine to coarse. Each is kept longer than a slice of the next one is long, so that a broker that was stopped can
# make up for what it did not roll up. The sum is what `tests/rollups/test_size.py` holds to 50 MB.
TIERS: Final = (
    Tier("second", 1, 5 * 60, 5 * 60),
    Tier("minute", 60, DAY, HOUR),
    Tier("hour", HOUR, 14 * DAY, DAY),
    Tier("day", DAY, 366 * DAY, 16 * DAY),
)

COLUMNS: Final = (*COUNTERS, *GAUGES)
BROKER_COLUMNS: Final = (*BROKER_COUNTERS, *BROKER_GAUGES)

# How deliveries and messages end, by column.
ENDINGS: Final = {
    "acked": (Outcome.ACKED,),
    "retried": (Outcome.RETRIED, Outcome.TIMED_OUT, Outcome.INTERRUPTED),
    "released": (Outcome.RELEASED, Outcome.SNOOZED),
    "died": (Outcome.DEAD, Outcome.REJECTED),
    "dropped": (
        *(Outcome.EXPIRED, Outcome.EVICTED, Outcome.PURGED, Outcome.CANCELLED),
        *(Outcome.OVERFLOWED, Outcome.SKIPPED, Outcome.DISCARDED, Outcome.LOST),
    ),
}

# Rows that are no queue; ids of queues are positive.
BROKER: Final = -1
OTHERS: Final = -2  # queues beyond `limits.metrics_series_max`, together
LATENCY_ROWS: Final = {"push": -11, "lease": -12, "settle": -13, "commit": -14}  # the broker's own latencies
