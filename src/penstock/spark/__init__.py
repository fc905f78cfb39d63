"""Penstock and Spark: every queue is a table, live and past, and pipelines between queues are Spark jobs.

Importing this loads neither PySpark nor Java: what needs them says so when it is used, and how to install them.
docs/spark.md shows how it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from penstock.refusals import likeness
from penstock.spark.sessions import require_pyspark

if TYPE_CHECKING:
    from penstock.spark.sessions import register, session
    from penstock.spark.source import PenstockSource
    from penstock.spark.tables import table
    from penstock.spark.writer import each_batch, stream_to

__all__ = ["PenstockSource", "each_batch", "register", "session", "stream_to", "table"]

# No module of this package may be named like one of these: importing it would replace the name.
_HOMES: Final = {
    "PenstockSource": "penstock.spark.source",
    "each_batch": "penstock.spark.writer",
    "register": "penstock.spark.sessions",
    "session": "penstock.spark.sessions",
    "stream_to": "penstock.spark.writer",
    "table": "penstock.spark.tables",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        meant = likeness(name, __all__)
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}" + (f"; {meant}" if meant else ""))
    require_pyspark()
    return getattr(importlib.import_module(_HOMES[name]), name)
