"""What a data directory holds, read from outside without touching it: by Spark, by SQL, by whoever wants history."""

from penstock.history.history import History
from penstock.history.moments import Moment, PartitionView, QueueView
from penstock.history.opening import absolute_url, is_directory, open_history
from penstock.history.planning import lost
from penstock.history.slices import BYTES_TARGET, NO_LIMITS, Limits, Slice, Wanted, pack

__all__ = [
    "BYTES_TARGET",
    "NO_LIMITS",
    "History",
    "Limits",
    "Moment",
    "PartitionView",
    "QueueView",
    "Slice",
    "Wanted",
    "absolute_url",
    "is_directory",
    "lost",
    "open_history",
    "pack",
]
