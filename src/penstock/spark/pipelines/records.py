"""What was run in a directory: the last runs, in `runs.json`, for `pipeline status`.

It is an account for people. What a pipeline needs to go on is in files of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import InvalidField
from penstock.spark.pipelines.base import Report
from penstock.spark.pipelines.state import read_state, write_state

FILE: Final = "runs.json"
COUNT_MAX: Final = 20


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what was asked, and what came of it."""

    pipeline: str
    url: str
    queues: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    options: Mapping[str, Any] = {}
    started_at: datetime
    seconds: float
    report: Report | None = None
    error: str | None = None  # why it did not end


def records(out: Path) -> list[Record]:
    """The last runs in a directory, the newest last."""
    return read_state(out / FILE, list[Record]) or []


def keep(out: Path, record: Record) -> None:
    """Add a run to the account. An account that cannot be read is no reason to fail: a new one is begun."""
    earlier: list[Record] = []
    with suppress(InvalidField):
        earlier = records(out)
    write_state(out / FILE, [*earlier, record][-COUNT_MAX:])
