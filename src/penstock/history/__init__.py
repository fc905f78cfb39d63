"""The contents of a data directory, read from outside without changing it: by Spark, by SQL, by tools."""

from penstock.history.history import History, absolute_url, is_directory, open_history
from penstock.history.moment import Moment, PartitionView, QueueView
from penstock.history.plan import lost
from penstock.history.slices import BYTES_TARGET, NO_LIMITS, Limits, OffsetRange, Slice, pack

__all__ = [
    "BYTES_TARGET",
    "NO_LIMITS",
    "History",
    "Limits",
    "Moment",
    "OffsetRange",
    "PartitionView",
    "QueueView",
    "Slice",
    "absolute_url",
    "is_directory",
    "lost",
    "open_history",
    "pack",
]
