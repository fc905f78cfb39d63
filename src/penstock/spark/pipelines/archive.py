"""The pipeline `archive`: queues as Parquet files by queue and day, which stay when retention has removed the messages.

    <out>/queue=<name>/date=<YYYY-MM-DD>/….parquet     all columns of messages, sorted by partition and offset
    <out>/_penstock/archive.json                       which files count, and which offsets they cover

A run copies what is new since the last one. It may die at any moment: the next one neither leaves a gap nor copies
anything twice (`archiving/storing.py` says why). `read_archive` gives what an archive holds as a DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from penstock.clock import SystemClock
from penstock.errors import InvalidField
from penstock.history import Moment, absolute_url, open_history
from penstock.spark.pipelines.archiving import joining, progress, proving
from penstock.spark.pipelines.archiving.copying import Copier, New, new_messages
from penstock.spark.pipelines.archiving.manifest import File
from penstock.spark.pipelines.archiving.reading import names_like, read_archive
from penstock.spark.pipelines.archiving.spread import at_once, over
from penstock.spark.pipelines.archiving.storing import Archive
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.units import plural

if TYPE_CHECKING:
    from penstock.history import Wanted

__all__ = ["PIPELINE", "ArchiveOptions", "read_archive", "run"]


class ArchiveOptions(Options, frozen=True, kw_only=True):
    """What can be asked of a run."""

    compact: Annotated[bool, msgspec.Meta(description="Join small files of a day into large ones.")] = False
    verify: Annotated[bool, msgspec.Meta(description="Prove that the archive and the log are the same.")] = False
    commit: Annotated[
        bool, msgspec.Meta(description="Note progress as the group 'archive', which retention may wait for.")
    ] = True


class _Done(msgspec.Struct):
    """What a run has done so far."""

    new: New
    files: list[File] = []
    joined: list[File] = []
    proved: int = 0
    seconds: float = 0.0
    notes: list[str] = []


def check(run: Run) -> None:
    """Refuse what would make gaps."""
    if run.since is not None or run.until is not None:
        hint = "an archive goes on from where it was, so it takes neither --since nor --until"
        raise InvalidField("since, until: an archive has no gaps", hint=hint)


def run(run: Run) -> Report:
    """Copy what is new; then join and prove, if that is asked for."""
    clock = SystemClock()
    # Tasks may run in other directories than this process.
    archive, url = Archive(run.out.absolute()), absolute_url(run.url)
    left = archive.open(clock.now())
    history = open_history(url)
    try:
        archive.claim(history.shard_id)
        moment = history.look()
        queues = names_like(moment.queues, run.queues, run.url)
        done = _Done(new_messages(moment, archive.manifest, queues))
        if left:
            done.notes.append(f"removed {plural(len(left), 'file')} that a run which did not end had left")
        begun = clock.monotonic()
        _copy(run, Copier(archive, url, history, over(run.spark), at_once(run.spark)), moment, done)
        done.seconds = (clock.monotonic() - begun) / 1e6
        if run.options.compact:
            _join(run, archive, done, clock.now())
        if run.options.verify:
            run.progress.step("comparing with the log")
            done.proved = proving.prove(run, moment, archive, queues)
    finally:
        history.close()
    if run.options.commit:
        run.progress.step("noting progress")
        done.notes += progress.commit(url, moment, archive.manifest, queues)
    return _report(run, archive, done)


def _copy(run: Run, copier: Copier, moment: Moment, done: _Done) -> None:
    copied = 0
    for share in copier.rounds(moment, done.new.wanted):
        run.progress.step("archiving", copied, done.new.messages)
        done.files += copier.copy(moment, share)
        copied += sum(each.end - each.first for each in share)


def _join(run: Run, archive: Archive, done: _Done, now: int) -> None:
    lots = joining.small_files(archive.manifest)
    if lots:
        run.progress.step("joining small files")
        done.joined = joining.join(archive, lots, over(run.spark), now)
        count = sum(map(len, lots))
        done.notes.append(
            f"joined {plural(count, 'file')} into {len(done.joined)}; "
            "the old ones are in _penstock/replaced for an hour"
        )


def _report(run: Run, archive: Archive, done: _Done) -> Report:
    rows = sum(file.rows for file in done.files)
    notes = [*(_lost(each) for each in done.new.lost), *done.notes]
    figures = {
        "messages_archived": rows,
        "messages_in_archive": sum(file.rows for file in archive.manifest.files),
        "files_in_archive": len(archive.manifest.files),
        "bytes_in_archive": sum(file.bytes for file in archive.manifest.files),
    }
    if rows:
        figures["messages_per_second"] = round(rows / max(done.seconds, 1e-6))
    summary = "nothing new to archive"
    if rows:
        summary = f"archived {plural(rows, 'new message')} in {plural(len(done.files), 'file')}"
    if done.proved:
        figures["messages_proved"] = done.proved
        summary += f"; {plural(done.proved, 'message')} compared: the archive is the log"
    return Report(
        summary=summary,
        figures=figures,
        tables=[_by_queue(archive)],
        files=[str(run.out / file.path) for file in done.joined or done.files],
        notes=notes,
    )


def _by_queue(archive: Archive) -> Table:
    rows = []
    for queue in sorted(archive.manifest.covered):
        files = [file for file in archive.manifest.files if file.queue == queue]
        dates = sorted({file.date for file in files}) or [""]
        size = sum(file.bytes for file in files)
        rows.append((queue, sum(file.rows for file in files), len(files), size, dates[0], dates[-1]))
    return Table("the archive", ("queue", "messages", "files", "bytes", "from", "to"), rows)


def _lost(each: Wanted) -> str:
    return (
        f"queue {each.queue!r}, partition {each.partition!r}: retention removed the offsets {each.first} to "
        f"{each.end - 1} before they were archived; retention_until_archived=True prevents that"
    )


EXPLANATION: Final = """\
Copies the messages of queues to Parquet files by queue and day: zstd, times in µs, sorted by partition and offset, all
columns of the table of messages. Each run copies what is new since the last one, whatever the last one died of.

It notes its progress as the group 'archive' of each queue. With the queue's option retention_until_archived, retention
removes nothing before that group has passed it.

--compact joins the small files that frequent runs make. --verify compares every message that the log still has with
the archive, and the archive's files with their checksums; a difference is an error that names the offsets.
"""

PIPELINE: Final = Pipeline(
    name="archive",
    summary="Queues as Parquet files by queue and day, for when retention has removed the messages.",
    explanation=EXPLANATION,
    options=ArchiveOptions,
    run=run,
    check=check,
)
