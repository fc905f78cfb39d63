"""The pipeline `replay`: messages of the past, pushed to a queue again.

Nothing is pushed without `--go`: a run only says what it would push. Every message is pushed once, even when a run
dies, and a header names the message it came from.

A replay is known by its id, which is derived from the options unless it is given. Its plan is kept in its directory: a
replay that did not end continues, and one that did is not repeated. The options are fixed when it begins, above all the
time up to which messages count.

All at once, a replay is one batch of the sink, known by the replay's id. With a rate, the messages are first written in
order to files of the replay; then portions of them are committed one after the other, numbered, as batches of one sink.
A replay that continues asks the queue which portion was the last.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import limits
from penstock import operations as ops
from penstock.clock import Clock, SystemClock
from penstock.errors import GroupNotFound, InvalidField, QueueNotFound, StorageError
from penstock.history import Moment, absolute_url, open_history
from penstock.model import check_name, to_datetime
from penstock.refusals import suggestion
from penstock.requests import SinkCommit
from penstock.spark import functions as f
from penstock.spark.failures import query_error
from penstock.spark.pipelines.archive_store import Manifest, archive_of, names_like, read_archive
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.frames import match
from penstock.spark.pipelines.state import read_state, write_state
from penstock.spark.staging import Target, batches_of
from penstock.units import plural

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


ORIGIN: Final = "penstock-replayed-from"  # header: the id of the message that was replayed
ORDER: Final = ("pushed_at", "queue", "partition", "offset")  # the order in which messages are replayed

_PARTITIONS: Final = "queue string, partition string, {} bigint"

Places = Mapping[tuple[str, str], int]  # (queue, partition): an offset


def after(live: DataFrame, ends: Places) -> DataFrame:
    """The messages of the log that an archive does not cover; `ends` is where it ends."""
    if not ends:
        return live
    rows = [(queue, partition, end) for (queue, partition), end in ends.items()]
    covered = live.sparkSession.createDataFrame(rows, _PARTITIONS.format("covered_end"))
    joined = live.join(f.broadcast(covered), ["queue", "partition"], "left")
    kept = joined.where(f.col("covered_end").isNull() | (f.col("offset") >= f.col("covered_end")))
    return kept.select(*live.columns)


def matching(messages: DataFrame, where: str | None, keys: Sequence[str]) -> DataFrame:
    """The messages that a condition in SQL holds for, and that have one of some keys."""
    from pyspark.errors import PySparkException

    if keys:
        messages = messages.where(f.col("key").isin(*keys))
    if where is None:
        return messages
    try:
        return messages.where(where)
    except PySparkException as error:
        hint = "columns: " + ", ".join(messages.columns) + "; a payload is bytes: cast(payload as string)"
        raise InvalidField(f"where: {where!r} is not understood: {query_error(str(error))}", hint=hint) from None


def unacked(messages: DataFrame, events: DataFrame, group: str, starts: Places) -> DataFrame:
    """The messages that a group has not acknowledged.

    `starts` is where the log starts: of what is older there are no events, and it was settled by every group, or else
    retention would have kept it. So it is left out.
    """
    acked = events.where((f.col("group") == group) & (f.col("outcome") == "acked"))
    if starts:
        rows = [(queue, partition, start) for (queue, partition), start in starts.items()]
        begun = messages.sparkSession.createDataFrame(rows, _PARTITIONS.format("start_offset"))
        joined = messages.join(f.broadcast(begun), ["queue", "partition"], "left")
        kept = joined.where(f.col("offset") >= f.coalesce("start_offset", f.lit(0)))
        messages = kept.select(*messages.columns)
    return match(messages, acked, "left_anti")


def replayed(messages: DataFrame, *, keep_partition: bool = False) -> DataFrame:
    """The messages as they are pushed: a header tells where each came from; when and whether to deliver is left out."""
    headers = f.map_concat(_other_headers(), f.create_map(f.lit(ORIGIN), id_of()))
    columns = ["payload", "key", "priority", "content_type", "trace_id", "max_attempts"]
    if keep_partition:
        columns.append("partition")
    return messages.select(*columns, headers.alias("headers"))


def id_of() -> Column:
    """The id of a message."""
    return f.concat_ws("/", "queue", "partition", f.col("offset").cast("string"))


def _other_headers() -> Column:
    """The headers without our own, which a message that is replayed again has already."""
    none = f.create_map().cast("map<string,string>")
    return f.map_filter(f.coalesce("headers", none), lambda name, _: name != ORIGIN)


MESSAGES: Final = "messages"
PORTION_MAX: Final = 10_000  # messages
PORTION_BYTES: Final = 16 * limits.MIB
READ_ROWS: Final = 1_000

OnProgress = Callable[[int], None]  # how many messages are pushed by now


def push_at_once(messages: DataFrame, url: str, to: str, id: str) -> None:
    """One batch with everything."""
    writing = messages.write.format("penstock").option("url", url).option("jobId", sink_of(id))
    writing.mode("append").save(to)


def prepare(selected: DataFrame, folder: Path, *, keep_partition: bool) -> None:
    """Put the messages, in order, into files."""
    ordered = replayed(selected.orderBy(*ORDER), keep_partition=keep_partition)
    ordered.write.mode("overwrite").parquet(str((folder / MESSAGES).absolute()))


def push_in_portions(
    folder: Path, target: Target, id: str, rows_max: int, pacer: Pacer, on_progress: OnProgress = lambda count: None
) -> int:
    """Push what was prepared, at the rate of the pacer. Returns how many messages there are."""
    sink = sink_of(id)
    target.prepare()
    last = _last(target, sink)
    count = 0
    for number, portion in enumerate(portions(folder / MESSAGES, rows_max), start=1):
        count += portion.num_rows
        if number <= last:
            continue
        pacer.wait()
        columns = tuple(portion.column_names)
        staged, _ = target.stage(sink, 0, batches_of(portion.to_batches(), columns))
        target.commit(SinkCommit(target.queue, sink, number, tuple(staged)))
        pacer.sent(portion.num_rows)
        on_progress(count)
    return count


def prepared_count(folder: Path) -> int:
    """How many messages were prepared."""
    return sum(pq.read_metadata(path).num_rows for path in (folder / MESSAGES).glob("part-*.parquet"))


def forget(folder: Path) -> None:
    """Remove the files of a replay that has ended."""
    shutil.rmtree(folder / MESSAGES, ignore_errors=True)


def sink_of(id: str) -> str:
    """The name by which the queue knows a replay."""
    return f"replay:{id}"


def portion_rows(per_second: float) -> int:
    """About a second's worth of messages."""
    return max(1, min(PORTION_MAX, int(per_second)))


def portions(folder: Path, rows_max: int, bytes_max: int = PORTION_BYTES) -> Iterator[pa.Table]:
    """What was prepared, in order: the same portions every time it is read with the same limits."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _batches(folder):
        while batch.num_rows:
            part = batch.slice(0, rows_max - rows)
            batch = batch.slice(part.num_rows)
            gathered.append(part)
            rows += part.num_rows
            size += part.nbytes
            if rows == rows_max or size >= bytes_max:
                yield pa.Table.from_batches(gathered)
                gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _batches(folder: Path) -> Iterator[pa.RecordBatch]:
    # Spark numbers its files in the order of the rows.
    for path in sorted(folder.glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(READ_ROWS)


def _last(target: Target, sink: str) -> int:
    with target.session() as session:
        state = session.execute(ops.GetSinkState(target.queue, sink))
    return int(state.batch)


class Pacer:
    """Waits so that no more than `per_second` messages a second are sent."""

    def __init__(self, per_second: float, clock: Clock, pause: Callable[[float], Any] | None = None) -> None:
        self._per_second = per_second
        self._clock = clock
        self._pause = pause or threading.Event().wait
        self._next_at: float | None = None  # monotonic µs

    def wait(self) -> None:
        """Wait until the next messages may be sent."""
        if self._next_at is not None and (early := self._next_at - self._clock.monotonic()) > 0:
            self._pause(early / 1e6)

    def sent(self, count: int) -> None:
        """Account for `count` messages that were just sent."""
        now = self._clock.monotonic()
        # What was late is not made up for: the rate is a limit at every moment.
        self._next_at = max(self._next_at or now, now) + count / self._per_second * 1e6


SAMPLE: Final = 5
PAYLOAD_SHOWN: Final = 60


class ReplayOptions(Options, frozen=True, kw_only=True):
    """Options of `replay`."""

    to: Annotated[str, msgspec.Meta(description="The queue to push to.")]
    where: Annotated[str | None, msgspec.Meta(description="Only messages that match this SQL condition.")] = None
    key: Annotated[tuple[str, ...], msgspec.Meta(description="Only messages with this key.")] = ()
    archive: Annotated[
        str | None, msgspec.Meta(description="An archive with the messages that retention has removed.")
    ] = None
    skip_acked_by: Annotated[
        str | None, msgspec.Meta(description="Skip messages that this group has acknowledged.")
    ] = None
    per_second: Annotated[
        float | None, msgspec.Meta(description="The maximum number of messages to push per second.")
    ] = None
    keep_partition: Annotated[
        bool, msgspec.Meta(description="Push to the partition with the same name, not to that of the key.")
    ] = False
    id: Annotated[
        str | None, msgspec.Meta(description="The id of the replay, to continue it or to run it once more.")
    ] = None
    go: Annotated[bool, msgspec.Meta(description="Push the messages. Without it nothing is pushed.")] = False


def run(run: Run) -> Report:
    """Report what would be pushed; with `go`, push it."""
    plan = _plan(run)
    figures: dict[str, Any] = {"messages": 0, "replay_id": plan.id}
    if plan.is_done:
        pushed = plural(plan.messages or 0, "message")
        summary = f"replay {plan.id} is already complete: it pushed {pushed} to {plan.to!r}"
        return Report(summary=summary, figures=figures, notes=["use another --id to push them again"])
    if plan.is_prepared:
        figures["messages"] = _push_slowly(run, plan)
        return Report(
            summary=f"continued, and pushed {plural(figures['messages'], 'message')} to {plan.to!r}", figures=figures
        )
    run.progress.step("selecting")
    selected, notes = selection(run, plan)
    overview = _overview(selected)
    figures["messages"] = count = sum(row[2] for row in overview.rows)
    if not count:
        return Report(summary="no messages to replay", figures=figures, notes=notes)
    if not run.options.go:
        summary = f"would push {plural(count, 'message')} to {plan.to!r}; add --go to do it"
        return Report(summary=summary, figures=figures, tables=[overview, _sample(selected)], notes=notes)
    _push(run, plan, selected, count)
    return Report(
        summary=f"pushed {plural(count, 'message')} to {plan.to!r}", figures=figures, tables=[overview], notes=notes
    )


def selection(run: Run, plan: Plan) -> tuple[DataFrame, list[str]]:
    """The messages to replay, from the log and the archive; and what to know about them."""
    from penstock.spark.tables import table

    moment, shard = _look(plan.url)
    manifest = archive_of(Path(plan.archive)) if plan.archive is not None else Manifest()
    # The offsets of other data, such as that which this replaces, are the same numbers for other messages.
    is_other = manifest.shard not in ("", shard)
    if is_other and plan.skip_acked_by is not None:
        hint = "omit --skip-acked-by: acknowledgements are known only for an archive of the same data"
        raise InvalidField(f"archive: {plan.archive} is an archive of different data than {plan.url}", hint=hint)
    known = {*moment.queues, *manifest.covered}
    queues = names_like(known, plan.queues, f"{plan.url}, with the archive," if plan.archive else plan.url)
    if not queues:
        hint = suggestion(plan.queues[0], tuple(sorted(known)))
        raise QueueNotFound(f"no queue matches {' or '.join(plan.queues)}", hint=hint)
    live = [name for name in queues if name in moment.queues]
    parts = []
    if live:
        log = table(run.spark, plan.url, live, since=plan.since, until=plan.until)
        parts.append(after(log, {} if is_other else _ends(moment, manifest, live)))
    archived = [name for name in queues if name in manifest.covered]
    if plan.archive is not None and archived:
        parts.append(read_archive(run.spark, plan.archive, archived, plan.since, plan.until))
    messages = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    messages = matching(messages, plan.where, plan.keys)
    if plan.skip_acked_by is None:
        return messages, []
    _check_group(moment, live, plan.skip_acked_by)
    events = table(run.spark, plan.url, live, "events", plan.since)
    starts = _starts(moment, live) if archived else {}
    notes = [f"messages only in the archive count as acknowledged by {plan.skip_acked_by!r}"] if archived else []
    return unacked(messages, events, plan.skip_acked_by, starts), notes


def _plan(run: Run) -> Plan:
    """The plan from the options, or as it was fixed when the replay began."""
    options: ReplayOptions = run.options
    plan = Plan(
        id=options.id or "",
        url=absolute_url(run.url),
        to=options.to,
        queues=run.queues,
        since=run.since,
        until=run.until,
        where=options.where,
        keys=options.key,
        archive=None if options.archive is None else str(Path(options.archive).absolute()),
        skip_acked_by=options.skip_acked_by,
        keep_partition=options.keep_partition,
    )
    plan = msgspec.structs.replace(plan, id=plan.id or id_for(plan))
    # A replay into a queue that it reads from would never end.
    plan = msgspec.structs.replace(plan, until=plan.until or to_datetime(SystemClock().now()))
    return resumed(run.out, plan, is_named=options.id is not None) if options.go else plan


def _push(run: Run, plan: Plan, selected: DataFrame, count: int) -> None:
    keep(run.out, plan)
    if run.options.per_second is not None:
        run.progress.step("sorting messages")
        folder = folder_of(run.out, plan.id)
        prepare(selected, folder, keep_partition=plan.keep_partition)
        if not prepared_count(folder):
            hint = "--out must be a directory that all hosts of the cluster share"
            raise StorageError(f"the messages sorted by Spark tasks are not in {folder}", hint=hint)
        plan = msgspec.structs.replace(plan, portion=portion_rows(run.options.per_second))
        keep(run.out, plan)
        _push_slowly(run, plan)
        return
    run.progress.step("pushing")
    messages = replayed(selected, keep_partition=plan.keep_partition)
    push_at_once(messages, plan.url, plan.to, plan.id)
    keep(run.out, msgspec.structs.replace(plan, messages=count))


def _push_slowly(run: Run, plan: Plan) -> int:
    assert plan.portion is not None
    folder = folder_of(run.out, plan.id)
    total = prepared_count(folder)
    pacer = Pacer(run.options.per_second or math.inf, SystemClock())
    count = push_in_portions(
        folder,
        Target(plan.url, plan.to),
        plan.id,
        plan.portion,
        pacer,
        on_progress=lambda done: run.progress.step("pushing", done, total),
    )
    keep(run.out, msgspec.structs.replace(plan, messages=count))
    forget(folder)
    return count


def _overview(selected: DataFrame) -> Table:
    """How many messages there are, and from when to when, in each partition."""
    rows = (
        selected.groupBy("queue", "partition")
        .agg(
            f.count("*").alias("messages"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            _shown(f.min("pushed_at")).alias("from"),
            _shown(f.max("pushed_at")).alias("to"),
        )
        .orderBy("queue", "partition")
        .collect()
    )
    columns = ("queue", "partition", "messages", "first", "last", "from", "to")
    return Table("messages to replay", columns, [tuple(row) for row in rows])


def _sample(selected: DataFrame) -> Table:
    """The first few messages."""
    payload = f.substring(f.make_valid_utf8(f.col("payload").cast("string")), 1, PAYLOAD_SHOWN)
    first = selected.orderBy(*ORDER).limit(SAMPLE)
    rows = first.select(id_of(), _shown(f.col("pushed_at")), "key", payload).collect()
    return Table("the first messages", ("message", "pushed at", "key", "payload"), [tuple(row) for row in rows])


def _shown(time: Column) -> Column:
    return f.date_format(time, "yyyy-MM-dd HH:mm:ss")


def _look(url: str) -> tuple[Moment, str]:
    """The current moment, and the id of the shard."""
    with closing(open_history(url)) as history:
        return history.look(), history.identity


def _ends(moment: Moment, manifest: Manifest, queues: Sequence[str]) -> Places:
    """Where the archive ends in each partition of queues that are the same in both."""
    return {
        (name, partition): end
        for name in queues
        for partition in moment.queue(name).partitions
        if (end := manifest.end_of(name, moment.queue(name).incarnation, partition))
    }


def _starts(moment: Moment, queues: Sequence[str]) -> Places:
    return {
        (name, partition.name): partition.start
        for name in queues
        for partition in moment.queue(name).partitions.values()
    }


def _check_group(moment: Moment, queues: Sequence[str], group: str) -> None:
    known = {known_group for name in queues for known_group in moment.queue(name).groups}
    if group not in known:
        hint = suggestion(group, tuple(sorted(known)))
        raise GroupNotFound(
            f"skip-acked-by: no group {group!r} reads {', '.join(queues) or 'what is only in the archive'}", hint=hint
        )


# the plan, kept in the directory of the replay


FOLDER: Final = "replays"
FILE: Final = "replay.json"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A replay."""

    id: str
    url: str
    to: str
    queues: tuple[str, ...]
    since: datetime | None = None
    until: datetime | None = None
    where: str | None = None
    keys: tuple[str, ...] = ()
    archive: str | None = None
    skip_acked_by: str | None = None
    keep_partition: bool = False
    portion: int | None = None  # messages pushed together, once they are all in files, in order
    messages: int | None = None  # that were pushed; None until it has ended

    @property
    def is_prepared(self) -> bool:
        return self.portion is not None

    @property
    def is_done(self) -> bool:
        return self.messages is not None


_WHAT: Final = ("url", "to", "queues", "where", "keys", "archive", "skip_acked_by", "keep_partition")
_WHEN: Final = ("since", "until")


def id_for(plan: Plan) -> str:
    """An id derived from the options: the same options give the same id."""
    options = msgspec.json.encode([getattr(plan, name) for name in (*_WHAT, *_WHEN)])
    return hashlib.blake2b(options, digest_size=6).hexdigest()


def folder_of(out: Path, id: str) -> Path:
    """The directory of a replay."""
    return out / FOLDER / id


def resumed(out: Path, plan: Plan, *, is_named: bool) -> Plan:
    """The stored plan of this replay if it has begun, else this plan. Refuses what would be pushed twice."""
    known = read_state(folder_of(out, plan.id) / FILE, Plan)
    if known is not None:
        _check_same(known, plan)
        return known
    if not is_named:
        _check_none_open(out, plan)
    return plan


def keep(out: Path, plan: Plan) -> None:
    """Store a plan, with how far the replay is."""
    write_state(folder_of(out, plan.id) / FILE, plan)


def _check_same(known: Plan, plan: Plan) -> None:
    # Times are those of the beginning: "an hour ago" is another time when it is said again.
    for name in _WHAT:
        if getattr(known, name) != getattr(plan, name):
            raise InvalidField(
                f"{name}: replay {known.id!r} began with {getattr(known, name)!r}, not {getattr(plan, name)!r}",
                hint="use the same options as then, or another --id",
            )


def _check_none_open(out: Path, plan: Plan) -> None:
    for path in sorted((out / FOLDER).glob(f"*/{FILE}")):
        other = read_state(path, Plan)
        if other is None or other.is_done or any(getattr(other, name) != getattr(plan, name) for name in _WHAT):
            continue
        hint = f"continue it with --id {other.id}, or choose another --id for a new replay"
        raise InvalidField(f"id: the replay {other.id!r} of the same messages is not complete", hint=hint)


EXPLANATION: Final = """\
Selects past messages and pushes copies of them to a queue: messages of --queue that were pushed between --since and
--until and match --where and --key, except those that the group --skip-acked-by has acknowledged. With --archive,
messages that retention has removed from the log are read from the archive. Without --go, a run only shows what it would
push.

A copy has the payload, key, headers, priority, content type, trace and maximum number of attempts of the original. The
header penstock-replayed-from names the original. Delay, time to live and deduplication key are not copied.

Each message is pushed exactly once. A replay has an id: if you run it again, it continues where it stopped, or reports
that it is complete. With --per-second, the messages are sorted first, oldest first, and then pushed at that rate.
"""


def check(run: Run) -> None:
    """Refuse a replay without queues, with an invalid target or rate, or from an archive that does not exist."""
    options: ReplayOptions = run.options
    if not run.queues:
        raise InvalidField("queue: name the queue whose messages to replay", hint="--queue orders")
    if options.per_second is not None and options.per_second <= 0:
        raise InvalidField(f"--per-second: {options.per_second:g} is not more than 0")
    check_name(options.to)
    if options.id is not None:
        check_name(options.id, "replay")
    if options.archive is not None:
        archive_of(Path(options.archive))


PIPELINE: Final = Pipeline(
    name="replay",
    summary="Push past messages to a queue again, selected by time, condition and key. A dry run by default.",
    explanation=EXPLANATION,
    options=ReplayOptions,
    run=run,
    check=check,
)
