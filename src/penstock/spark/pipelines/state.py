"""What a run of a pipeline leaves for the next one: JSON files that are replaced as a whole, and a lock.

A file is written to a temporary name, synced, and renamed: readers find the old state or the new one. The lock is one
of the operating system, so a run that was killed holds none. `runs.json` records the last runs for `pipeline status`;
what a pipeline needs to continue is in files of its own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock.errors import DirectoryInUse, InvalidField
from penstock.spark import functions as f
from penstock.spark.pipelines.base import Report, Run
from penstock.storage.disk import RealDisk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


T = TypeVar("T")

LOCK: Final = ".lock"


def read_state(path: Path, kind: type[T]) -> T | None:
    """The state in a file, as a value of this type; None when nothing has been written yet."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        hint = "move it away to start over, or use another directory with --out"
        raise InvalidField(f"{path} has no state that this pipeline can continue from: {error}", hint=hint) from None


def write_state(path: Path, value: Any) -> None:
    """Replace the state in a file; after a crash it is the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(value, enc_hook=plain), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def plain(value: Any) -> Any:
    """Values that JSON lacks: NumPy's numbers as numbers, everything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    RealDisk(path).sync_directory("")


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Only one run at a time may work in a directory."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or use another directory with --out"
            raise DirectoryInUse(f"another run is in progress in {out}", hint=hint) from None
        yield


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


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a run, and the size of what it found."""

    asked: str
    messages: int
    events: int
    last_us: int  # the latest push or settlement

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing at all."""
        return not self.messages and not self.events


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has seen, and its report."""

    seen: Seen
    report: Report


def seen(run: Run, messages: DataFrame, events: DataFrame) -> Seen:
    """The request and the data of this run."""
    request = [run.url, sorted(run.queues), run.since, run.until, run.options]
    pushed = messages.agg(f.count("*"), f.unix_micros(f.max("pushed_at"))).first()
    settled = events.agg(f.sum("count"), f.unix_micros(f.max("settled_at"))).first()
    assert pushed is not None
    assert settled is not None
    last_us = max(pushed[1] or 0, settled[1] or 0)
    return Seen(
        asked=msgspec.json.encode(request).decode(), messages=pushed[0], events=settled[0] or 0, last_us=last_us
    )


def unchanged_report(path: Path, now: Seen) -> Report | None:
    """The report of the last run, when nothing has changed since."""
    kept = read_state(path, Kept)
    if kept is None or kept.seen != now or not all(Path(file).exists() for file in kept.report.files):
        return None
    return msgspec.structs.replace(kept.report, summary=f"Nothing new. {kept.report.summary}")


def store_report(path: Path, now: Seen, report: Report) -> Report:
    """Keep what was made, for the next run."""
    write_state(path, Kept(seen=now, report=report))
    return report
