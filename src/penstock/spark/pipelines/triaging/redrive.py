"""The command that sends one group of dead letters back, and no others.

`penstock dlq redrive` filters by group, reason, text in the error, time and id. The narrowest filter that is needed is
chosen by counting what each would take.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IDS_MAX: Final = 20  # more than this on a command line helps nobody
_TEXT_CHARS_MIN: Final = 4
_VARYING: Final = re.compile(r"<[a-z]+>|…| at [^ ]+:[^ ]+(?: < [^ ]+:[^ ]+)*$")


_TIME: Final = pa.timestamp("us", "UTC")
_TABLE: Final = pa.schema(
    [(name, pa.string()) for name in ("who", "queue", "group", "reason", "text")] + [("since", _TIME), ("until", _TIME)]
)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """One group of letters, as `dlq redrive` could name it."""

    who: str
    queue: str
    group: str
    reason: str | None
    text: str | None  # that every error of the group has
    since: datetime
    until: datetime


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a filter takes: of its group, of others, and of others within its times."""

    own: int
    others: int
    others_in_time: int


def filter_of(group: Any) -> Filter:
    """The filter for a row of `letter_groups`."""
    return Filter(
        who=group.who,
        queue=group.queue,
        group=group.group,
        reason=group.reasons[0] if len(group.reasons) == 1 else None,
        text=steady_text(group.signature),
        since=in_utc(group.first_at),
        until=in_utc(group.last_at) + timedelta(microseconds=1),
    )


def in_utc(at: datetime) -> datetime:
    """A time that Spark gave, which is in the zone of this process and does not say so."""
    return at.astimezone(UTC)


def steady_text(signature: str) -> str | None:
    """The longest part of a signature that no placeholder interrupts."""
    if signature.startswith("("):
        return None
    longest = max((part.strip() for part in _VARYING.split(signature)), key=len)
    return longest if len(longest) >= _TEXT_CHARS_MIN else None


def taken_by(letters: DataFrame, filters: Sequence[Filter]) -> dict[str, Taken]:
    """What each filter would take of these letters, by `who`."""
    from pyspark.sql import functions as f

    # As an Arrow table: Spark would start Python for a list of rows.
    table = pa.Table.from_pylist([msgspec.structs.asdict(each) for each in filters], _TABLE)
    known = letters.sparkSession.createDataFrame(table.rename_columns([f"f_{name}" for name in _TABLE.names]))
    is_meant = (
        (f.col("queue") == f.col("f_queue"))
        & (f.col("group") == f.col("f_group"))
        & (f.col("f_reason").isNull() | (f.col("reason") == f.col("f_reason")))
        & (f.col("f_text").isNull() | f.contains("error", "f_text"))
    )
    is_own = f.col("who") == f.col("f_who")
    in_time = (f.col("died_at") >= f.col("f_since")) & (f.col("died_at") < f.col("f_until"))
    counted = letters.join(f.broadcast(known), is_meant).groupBy("f_who").agg(
        f.count_if(is_own).alias("own"),
        f.count_if(~is_own).alias("others"),
        f.count_if(~is_own & in_time).alias("others_in_time"),
    )  # fmt: skip
    return {
        row.f_who: Taken(own=row.own, others=row.others, others_in_time=row.others_in_time) for row in counted.collect()
    }


def ids_of(letters: DataFrame, whos: Sequence[str]) -> dict[str, list[str]]:
    """The ids of all letters of some small groups."""
    from pyspark.sql import functions as f

    chosen = letters.where(f.col("who").isin(list(whos))).groupBy("who").agg(f.sort_array(f.collect_list("id")))
    return dict(chosen.collect())


def needs_ids(wanted: Filter, taken: Mapping[str, Taken], count: int) -> bool:
    """Whether only naming every letter takes this group and no others."""
    found = taken.get(wanted.who, Taken(own=0, others=0, others_in_time=0))
    return count <= IDS_MAX and (found.own < count or found.others_in_time > 0)


def command(wanted: Filter, taken: Taken, ids: Sequence[str], url: str) -> str:
    """The command, ready to paste."""
    words = ["penstock", "dlq", "redrive", wanted.queue]
    if ids:
        words += [word for id in ids for word in ("--id", id)]
    else:
        words += ["--group", wanted.group]
        words += ["--reason", wanted.reason] if wanted.reason and wanted.text is None else []
        words += ["--error", wanted.text] if wanted.text else []
        if taken.others:
            words += ["--since", wanted.since.isoformat(), "--until", wanted.until.isoformat()]
    return shlex.join([*words, "--url", url])
