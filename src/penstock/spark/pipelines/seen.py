"""Whether there is anything new for a pipeline that computes its range as a whole: what it saw the last time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.spark.pipelines.base import Report, Run
from penstock.spark.pipelines.state import read_state, write_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and what there was."""

    asked: str
    messages: int
    events: int
    last_us: int  # the latest push or settlement

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing at all."""
        return not self.messages and not self.events


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen, and what was made of it."""

    seen: Seen
    report: Report


def seen(run: Run, messages: DataFrame, events: DataFrame) -> Seen:
    """What there is now."""
    from pyspark.sql import functions as f

    asked = [run.url, sorted(run.queues), run.since, run.until, run.options]
    pushed = messages.agg(f.count("*"), f.unix_micros(f.max("pushed_at"))).first()
    settled = events.agg(f.sum("count"), f.unix_micros(f.max("settled_at"))).first()
    assert pushed is not None
    assert settled is not None
    last_us = max(pushed[1] or 0, settled[1] or 0)
    return Seen(asked=msgspec.json.encode(asked).decode(), messages=pushed[0], events=settled[0] or 0, last_us=last_us)


def as_before(path: Path, now: Seen) -> Report | None:
    """The report of the last run, when nothing has changed since."""
    kept = read_state(path, Kept)
    if kept is None or kept.seen != now or not all(Path(file).exists() for file in kept.report.files):
        return None
    return msgspec.structs.replace(kept.report, summary=f"Nothing new. {kept.report.summary}")


def remember(path: Path, now: Seen, report: Report) -> Report:
    """Keep what was made, for the next run."""
    write_state(path, Kept(seen=now, report=report))
    return report
