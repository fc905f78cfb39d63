"""Reading: all of the sealed history, a count, a thousandth of it by time, and the unsealed tail of a live broker."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from bench.measure import Row, Scale, interleaved, per_second
from bench.server.process import broker
from bench.spark.setting import QUEUE, fill, sealed, segment_files, spark
from penstock.history import Limits, open_history
from penstock.spark import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS = 3
TAIL = 500_000  # fits into one journal file
COLUMNS = (
    "queue", "partition", "offset", "key", "payload", "headers", "priority", "pushed_at", "available_at", "expires_at",
    "dedup_key", "trace_id", "producer", "content_type", "max_attempts",
)  # fmt: skip


def through_source(url: object, **options: str) -> DataFrame:
    """What a user writes."""
    return spark().read.format("penstock").option("url", str(url)).options(**options).load(QUEUE)


def drained(frame: DataFrame) -> None:
    """Read every row and every column, and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def whole(scale: Scale) -> list[Row]:
    """Every column of every message, against Spark's own reader on the same files."""
    data = sealed(scale)
    count = through_source(data).count()
    native = spark().read.parquet(*segment_files(data)).select(*COLUMNS)
    ours, own, planned = interleaved(
        lambda: per_second(count, lambda: drained(through_source(data))),
        lambda: per_second(count, lambda: drained(native)),
        lambda: per_second(count, lambda: drained(table(spark(), str(data), QUEUE))),
        rounds=ROUNDS,
    )
    floor = 0.7 * own
    return [
        Row(f"full scan of {count:,} sealed messages", ours, "/s", own, "Spark's own Parquet reader", floor, "70 %"),
        Row("the same through penstock.spark.table", planned, "/s", own, "Spark's own Parquet reader"),
    ]


def counted(scale: Scale) -> list[Row]:
    """Spark tells a Python source nothing of the columns that it needs: they are an option."""
    data = sealed(scale)
    count = through_source(data).count()
    one, every, planned = interleaved(
        lambda: per_second(count, lambda: through_source(data, columns="offset").count()),
        lambda: per_second(count, lambda: through_source(data).count()),
        lambda: per_second(count, lambda: table(spark(), str(data), QUEUE).count()),
        rounds=ROUNDS,
    )
    return [
        Row("count, option columns=offset", one, "/s", floor=5_000_000),
        Row("count, all columns", every, "/s"),
        Row("count through penstock.spark.table", planned, "/s"),
    ]


def filtered(scale: Scale) -> list[Row]:
    """A thousandth of the history by time: what is read of the files, and how long it takes."""
    data = sealed(scale)
    history = open_history(data)
    moment = history.look()
    extents = moment.manifest.extents
    first, last = min(e.pushed_first_at for e in extents), max(e.pushed_last_at for e in extents)
    since, until = first + (last - first) // 2, first + (last - first) // 2 + (last - first) // 1000
    planned = history.plan(moment, moment.everything(QUEUE), Limits(since=since, until=until))
    size = {file.name: file for file in moment.manifest.files.values()}
    groups = {(each.file, run.row_group) for each in planned for run in each.runs}
    read = sum(end - start for name, group in groups for start, end in [size[name].row_group_bounds(group)])
    total = sum(file.bytes for file in size.values() if file.table == "messages")
    low, high = (datetime.fromtimestamp(each / 1e6, UTC).isoformat() for each in (since, until))
    condition = f"pushed_at >= timestamp'{low}' and pushed_at < timestamp'{high}'"
    chosen = through_source(data).where(condition)
    (rate,) = interleaved(lambda: 1 / per_second(1, chosen.count), rounds=ROUNDS)
    share = 100 * read / total
    return [
        Row(f"filter to {chosen.count():,} messages by time: share of the bytes", share, "%", floor=5, ceiling=True),
        Row("the same: time", rate * 1000, "ms"),
    ]


def tail(scale: Scale) -> list[Row]:
    """What is not sealed yet, from a broker at its url."""
    count = scale(TAIL)
    spark()  # before the broker is there, which takes a core for itself: Spark would be left with the other
    with broker() as served, penstock.connect(served.url) as ps:
        fill(ps.queue(QUEUE), count)
        local, wire = interleaved(
            lambda: per_second(count, lambda: drained(through_source(served.url))),
            lambda: per_second(count, lambda: drained(through_source(served.url, local="false"))),
            rounds=ROUNDS,
        )
        files = len(list(Path(served.said["data"]).rglob("messages/*.parquet")))
    what = f"unsealed tail of a live broker, {count:,} messages, {files} sealed files"
    return [Row(what, local, "/s", floor=1_000_000), Row("the same, all of it over the wire", wire, "/s")]
