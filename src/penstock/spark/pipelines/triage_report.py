"""The report of `dlq-triage`: a file, tables, and for each group the command that redrives it and no other letters.

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

from penstock.spark import functions as f
from penstock.spark.pipelines.base import Report, Table
from penstock.spark.pipelines.triage_facts import in_words
from penstock.units import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


IDS_MAX: Final = 20  # more than this on a command line is of no help
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
    """How many letters a filter takes: of its group, of others, and of others within its times."""

    own: int = 0
    others: int = 0
    others_in_time: int = 0


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
    """How many of these letters each filter takes, by the id of its group (`who`)."""
    # As an Arrow table: Spark would start Python for a list of rows.
    table = pa.Table.from_pylist([msgspec.structs.asdict(item) for item in filters], _TABLE)
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
    return {who: Taken(own=own, others=others, others_in_time=late) for who, own, others, late in counted.collect()}


def ids_of(letters: DataFrame, whos: Sequence[str]) -> dict[str, list[str]]:
    """The ids of all letters of some small groups."""
    chosen = letters.where(f.col("who").isin(list(whos))).groupBy("who").agg(f.sort_array(f.collect_list("id")))
    return dict(chosen.collect())


def needs_ids(chosen: Filter, taken: Mapping[str, Taken], count: int) -> bool:
    """Whether only naming every letter takes this group and no others."""
    counts = taken.get(chosen.who, Taken())
    return count <= IDS_MAX and (counts.own < count or counts.others_in_time > 0)


def command(chosen: Filter, taken: Taken, ids: Sequence[str], url: str) -> str:
    """The command, ready to paste."""
    words = ["penstock", "dlq", "redrive", chosen.queue]
    if ids:
        words += [word for id in ids for word in ("--id", id)]
    else:
        words += ["--group", chosen.group]
        words += ["--reason", chosen.reason] if chosen.reason and chosen.text is None else []
        words += ["--error", chosen.text] if chosen.text else []
        if taken.others:
            words += ["--since", chosen.since.isoformat(), "--until", chosen.until.isoformat()]
    return shlex.join([*words, "--url", url])


ERROR_CHARS_SHOWN = 80


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the messages of a group have in common."""

    text: str
    path: str
    kind: str
    value: str
    share: float
    share_healthy: float | None
    share_others: float | None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One letter of a group: the latest."""

    id: str
    origin: str
    key: str | None
    error: str
    payload: str | None  # null when it is no text


class LetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of letters."""

    id: str
    queue: str
    group: str
    signature: str
    letters: int
    first_at: datetime
    last_at: datetime
    attempts_min: int | None
    attempts_max: int | None
    reasons: list[str]
    consumers: list[str]
    keys: int  # distinct ones, about
    shared: list[Shared]
    sample: Sample
    redrive: str
    redrive_takes_others: int
    is_new: bool = False


class Triage(msgspec.Struct, frozen=True, kw_only=True):
    """The file: all groups, and a mark of the letters that they were made from."""

    mark: str
    letters: int
    groups: list[LetterGroup]


def letter_group(group: Any, facts: Sequence[Any], command: str, others: int) -> LetterGroup:
    """A group from its row, its facts and its command."""
    fields, sample = group.asDict(), group.sample.asDict()
    del fields["sample"]
    origin = "/".join(str(sample.pop(name)) for name in ("queue", "partition", "offset"))
    return LetterGroup(
        id=fields.pop("who"),
        first_at=in_utc(fields.pop("first_at")),
        last_at=in_utc(fields.pop("last_at")),
        shared=[_shared(fact) for fact in facts],
        sample=Sample(origin=origin, **sample),
        redrive=command,
        redrive_takes_others=others,
        **fields,
    )


def _shared(fact: Any) -> Shared:
    fields = {name: fact[name] for name in Shared.__struct_fields__ if name != "text"}
    return Shared(text=in_words(fact.path, fact.kind, fact.value), **fields)


def report(triage: Triage, file: str | None, *, is_old: bool = False) -> Report:
    """For people."""
    groups, files = triage.groups, [file] if file else []
    if not groups:
        return Report(summary="there are no dead letters", figures={"letters": 0, "groups": 0}, files=files)
    summary = f"{plural(triage.letters, 'dead letter')} in {plural(len(groups), 'group')}"
    notes = ["nothing has changed since the last run: this is its report (--again looks again)"] if is_old else []
    for group in groups:
        # Not in a table, which would break the command up on a narrow screen.
        notes.append(f"redrive {group.id}: {group.redrive}")
        if group.redrive_takes_others:
            notes.append(f"no filter takes {group.id} alone: the command takes {group.redrive_takes_others} others too")
    if rest := triage.letters - sum(group.letters for group in groups):
        notes.append(f"{rest:,} more letters are in smaller groups: --limit shows more of them")
    return Report(
        summary=summary,
        figures={"letters": triage.letters, "groups": len(groups), "new_groups": sum(item.is_new for item in groups)},
        tables=[_groups_table(groups), _shared_table(groups), _samples_table(groups)],
        files=files,
        notes=notes,
    )


def _groups_table(groups: Sequence[LetterGroup]) -> Table:
    rows = [
        (
            group.id + (" new" if group.is_new else ""),
            _cut(group.signature),
            group.queue,
            group.group,
            _attempts(group),
            _moment(group.first_at),
            _moment(group.last_at),
            group.letters,
        )
        for group in groups
    ]
    return Table("Groups", ("id", "error", "queue", "group", "attempts", "first", "last", "letters"), rows)


def _shared_table(groups: Sequence[LetterGroup]) -> Table:
    rows = [
        (group.id, _percent(fact.share), fact.text, _percent(fact.share_healthy), _percent(fact.share_others))
        for group in groups
        for fact in group.shared
    ]
    return Table("What they share", ("id", "share", "fact", "of healthy", "of other dead"), rows)


def _samples_table(groups: Sequence[LetterGroup]) -> Table:
    rows = [
        (group.id, group.sample.id, group.sample.origin, _cut(group.sample.payload or "(bytes)")) for group in groups
    ]
    return Table("Samples", ("id", "dead letter", "was", "payload"), rows)


def _attempts(group: LetterGroup) -> str:
    least, most = group.attempts_min, group.attempts_max
    return "" if most is None else str(most) if least == most else f"{least} to {most}"


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return f"{share:.0%}" if share in (0, 1) or 0.005 <= share < 0.995 else f"{share:.1%}"


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_CHARS_SHOWN else text[: ERROR_CHARS_SHOWN - 1] + "…"
