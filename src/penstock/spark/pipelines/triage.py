"""`dlq-triage`: why did these die? Dead letters grouped by error, with what the messages of each group share.

Dead letters come from the dead-letter queues, their later fate from the events of those queues, and what healthy
messages look like from a sample of what was acknowledged in the queues where they died. Nothing is settled, redriven or
pushed: the report holds the commands that would do it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Meta
from msgspec.structs import replace

from penstock.history import open_history
from penstock.model import DLQ_SUFFIX, Outcome
from penstock.model_letters import DEAD_ATTEMPTS, DEAD_CONSUMER, DEAD_ERROR, DEAD_GROUP, DEAD_ORIGIN, DEAD_REASON
from penstock.spark import functions as f
from penstock.spark import ranges
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.error_signatures import signature, signature_id, with_value
from penstock.spark.pipelines.frames import match, persisted, sampled
from penstock.spark.pipelines.state import read_state, write_state
from penstock.spark.pipelines.triage_facts import HEALTHY, INPUT, count_facts, in_words, most_telling, telling_facts
from penstock.units import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


FILE: Final = "dlq-triage.json"
LETTERS_PER_GROUP: Final = 5_000  # whose payloads are looked at
ID_COLUMNS: Final = ("queue", "partition", "offset")
EXCERPT_CHARS: Final = 400
_EVENTS: Final = ("queue", "group", "partition", "first_offset", "last_offset", "count", "outcome", "consumer")
_ORIGINS: Final = ("queue", "partition", "offset", "key", "payload", "headers", "priority", "producer")


class TriageOptions(Options, frozen=True, kw_only=True):
    """Options of `dlq-triage`."""

    all: Annotated[bool, Meta(description="Include letters that were redriven, acked or discarded.")] = False
    group: Annotated[str | None, Meta(description="Only letters that died in this consumer group.")] = None
    limit: Annotated[int, Meta(description="The number of groups to report, largest first.", ge=1)] = 50
    share: Annotated[
        float, Meta(description="The share of a group that must have a fact in common, 0 to 1.", gt=0, le=1)
    ] = 0.9
    healthy: Annotated[
        int, Meta(description="The number of acknowledged messages per queue to compare with.", ge=0)
    ] = 10_000
    again: Annotated[bool, Meta(description="Analyse again, even if nothing has died since the last run.")] = False


def letter_groups(letters: DataFrame) -> DataFrame:
    """One row per group of letters: how many, since when, how often tried, and the latest of them as a sample."""
    payload = f.substring(f.try_validate_utf8(f.col("payload").cast("string")), 1, EXCERPT_CHARS)
    sample = f.struct("id", "queue", "partition", "offset", "key", "error", payload.alias("payload"))
    return letters.groupBy("who", "queue", "group", "signature").agg(
        f.count("*").alias("letters"),
        f.min("died_at").alias("first_at"),
        f.max("died_at").alias("last_at"),
        f.min("attempts").alias("attempts_min"),
        f.max("attempts").alias("attempts_max"),
        f.sort_array(f.collect_set("reason")).alias("reasons"),
        f.slice(f.sort_array(f.collect_set("consumer")), 1, 10).alias("consumers"),
        f.approx_count_distinct("key").alias("keys"),
        f.max_by(sample, f.struct("died_at", "id")).alias("sample"),
    )


def healthy_messages(messages: DataFrame, acked: DataFrame, letters: DataFrame, count: int) -> DataFrame:
    """About `count` messages of each queue that `acked` is about and that are no dead letters, with their consumer."""
    shares = acked.groupBy("queue").agg((f.lit(float(count)) / f.sum("count")).alias("_share"))
    chosen = sampled(messages.join(f.broadcast(shares), "queue"), f.col("_share")).drop("_share")
    acknowledged = match(chosen, acked, "inner", ["consumer"]).dropDuplicates(list(ID_COLUMNS))
    return acknowledged.join(letters.select(*ID_COLUMNS), list(ID_COLUMNS), "left_anti")


def comparable(letters: DataFrame, origins: DataFrame, groups: Sequence[Any]) -> DataFrame:
    """Input of `count_facts`: a sample of large groups, with the columns that only the original message has."""
    shares = [(f.lit(group.who), f.lit(LETTERS_PER_GROUP / group.letters)) for group in groups]
    large = [pair for pair, group in zip(shares, groups, strict=True) if group.letters > LETTERS_PER_GROUP]
    chosen = letters
    if large:
        share = f.create_map(*(column for pair in large for column in pair))[f.col("who")]
        chosen = sampled(letters, f.coalesce(share, f.lit(1.0)))
    return chosen.join(origins.select(*ID_COLUMNS, "priority", "producer"), list(ID_COLUMNS), "left").select(*INPUT)


def shared_facts(letters: DataFrame, healthy: DataFrame, share_min: float) -> DataFrame:
    """What nearly all letters of a group (`who`) share and healthy messages do not; both with columns `INPUT`."""
    return telling_facts(count_facts(letters.unionByName(healthy)).localCheckpoint(), share_min)


def run(run: Run) -> Report:
    """Group the dead letters, compare each group with the healthy traffic, and suggest how to redrive it."""
    options: TriageOptions = run.options
    run.progress.step("reading dead letters")
    queues, known_queues = dead_letter_queues(run)
    if not queues:
        return report(Triage(mark="", letters=0, groups=[]), None)
    with persisted(_letters(run, options, queues)) as letters:
        mark = _mark(letters, options)
        known = read_state(run.out / FILE, Triage)
        if known is not None and known.mark == mark and not options.again:
            return report(known, str(run.out / FILE), is_old=True)
        groups = letter_groups(letters).orderBy("letters", ascending=False).limit(options.limit).collect()
        groups_found = list(_examined(run, options, letters, groups, known_queues)) if groups else []
        seen = {group.id for group in known.groups} if known else set()
        triage = Triage(
            mark=mark,
            letters=int(mark.split()[0]),
            groups=[replace(group, is_new=known is not None and group.id not in seen) for group in groups_found],
        )
    write_state(run.out / FILE, triage)
    return report(triage, str(run.out / FILE))


def _letters(run: Run, options: TriageOptions, queues: Sequence[str]) -> DataFrame:
    messages = run.messages(queues=queues, columns=COLUMNS)
    if not options.all:
        messages = open_only(messages, run.events(queues=queues, columns=_EVENTS))
    letters = dead_letters(messages)
    return letters if options.group is None else letters.where(letters["group"] == options.group)


def dead_letter_queues(run: Run) -> tuple[list[str], set[str]]:
    """The dead-letter queues that there are of the queues of a run; and all queues there are."""
    with closing(open_history(run.url)) as history:
        moment = history.look()
    named = (queue.name for queue in ranges.chosen(moment, run.queues or ("*",)))
    names = {name if name.endswith(DLQ_SUFFIX) else name + DLQ_SUFFIX for name in named}
    return sorted(names & set(moment.queues)), set(moment.queues)


def _mark(letters: DataFrame, options: TriageOptions) -> str:
    """A mark of the letters and the options: the same mark gives the same report."""
    row = letters.agg(f.count("*"), f.coalesce(f.bit_xor(f.xxhash64("id")), f.lit(0))).collect()[0]
    return f"{row[0]} {row[1]} {options.group} {options.limit} {options.share} {options.healthy} {options.all}"


def _examined(
    run: Run, options: TriageOptions, letters: DataFrame, groups: Sequence[Any], queues: set[str]
) -> Iterator[LetterGroup]:
    run.progress.step("comparing payloads")
    # A queue that was deleted has left its dead letters, and nothing to compare them with.
    facts = _facts(run, options, letters, groups, sorted({group.queue for group in groups} & queues))
    run.progress.step("finding filters")
    filters = {group.who: filter_of(group) for group in groups}
    taken = taken_by(letters, list(filters.values()))
    small = [group.who for group in groups if needs_ids(filters[group.who], taken, group.letters)]
    ids = ids_of(letters, small) if small else {}
    nothing = Taken()
    for group in groups:
        who = group.who
        redrive = command(filters[who], taken.get(who, nothing), ids.get(who, ()), run.url)
        others = 0 if who in ids else taken.get(who, nothing).others_in_time
        yield letter_group(group, most_telling(facts[who]), redrive, others)


def _facts(
    run: Run, options: TriageOptions, letters: DataFrame, groups: Sequence[Any], origins: Sequence[str]
) -> dict[str, list[Any]]:
    by_group: dict[str, list[Any]] = {group.who: [] for group in groups}
    if not origins:
        return by_group
    messages = run.messages(queues=origins, columns=_ORIGINS)
    acked = run.events(queues=origins, columns=_EVENTS).where("outcome = 'acked'")
    if options.group is not None:
        acked = acked.where(f.col("group") == options.group)
    with persisted(acked):
        healthy = healthy_messages(messages, acked, letters, options.healthy).withColumn("who", f.lit(HEALTHY))
        facts = shared_facts(comparable(letters, messages, groups), healthy.select(*INPUT), options.share)
        for row in facts.where(f.col("who").isin(list(by_group))).collect():
            by_group[row.who].append(row)
    return by_group


# dead letters as a table


COLUMNS: Final = ("queue", "partition", "offset", "key", "payload", "headers", "pushed_at")

# Deliveries that end like this leave the letter where it is.
_STILL_THERE: Final = (
    Outcome.RETRIED, Outcome.RELEASED, Outcome.SNOOZED, Outcome.TIMED_OUT, Outcome.INTERRUPTED,
)  # fmt: skip


def dead_letters(messages: DataFrame) -> DataFrame:
    """Letters from the messages of dead-letter queues.

    `id` is their own; `queue`, `partition` and `offset` are those of the message that died; `who` names the letters
    that died in the same queue and consumer group with the same signature.
    """
    header = f.col("headers").__getitem__
    origin = header(DEAD_ORIGIN)
    letters = messages.where(f.col("queue").endswith(DLQ_SUFFIX) & origin.isNotNull()).select(
        f.regexp_extract(origin, "^[^/]+", 0).alias("queue"),
        f.concat_ws("/", "queue", "partition", "offset").alias("id"),
        f.split_part(origin, f.lit("/"), f.lit(2)).alias("partition"),
        f.split_part(origin, f.lit("/"), f.lit(3)).try_cast("bigint").alias("offset"),
        f.coalesce(header(DEAD_GROUP), f.lit("")).alias("group"),
        f.coalesce(header(DEAD_REASON), f.lit("")).alias("reason"),
        f.coalesce(header(DEAD_ERROR), f.lit("")).alias("error"),
        header(DEAD_ATTEMPTS).try_cast("int").alias("attempts"),
        header(DEAD_CONSUMER).alias("consumer"),
        f.col("pushed_at").alias("died_at"),
        "key", "payload", "headers",
    )  # fmt: skip
    # Letters without an error, of waiting too long or of a lost lease, are distinguished by the reason.
    no_error = f.concat(f.lit("("), f.col("reason"), f.lit(", no error given)"))
    named = letters.withColumn(
        "signature", with_value(signature(f.col("error")), lambda text: f.when(text != "", text).otherwise(no_error))
    )
    return named.withColumn("who", signature_id(f.concat_ws("\n", "queue", "group", "signature")))


def open_only(messages: DataFrame, events: DataFrame) -> DataFrame:
    """Messages of dead-letter queues that are still open, by the events of those queues."""
    still_there = [outcome.name.lower() for outcome in _STILL_THERE]
    return match(messages, events.where(~f.col("outcome").isin(still_there)), "left_anti")


# The report: a file, tables, and for each group the command that redrives it and no other letters.
#
# `penstock dlq redrive` filters by group, reason, text in the error, time and id. The narrowest filter that is needed
# is chosen by counting what each would take.


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
        return Report(summary="no dead letters", figures={"letters": 0, "groups": 0}, files=files)
    summary = f"{plural(triage.letters, 'dead letter')} in {plural(len(groups), 'group')}"
    notes = ["nothing has changed since the last run: this is its report (--again analyses again)"] if is_old else []
    for group in groups:
        # Not in a table, which would break the command up on a narrow screen.
        notes.append(f"redrive {group.id}: {group.redrive}")
        if group.redrive_takes_others:
            notes.append(
                f"no filter selects {group.id} alone: the command also redrives {group.redrive_takes_others} others"
            )
    if rest := triage.letters - sum(group.letters for group in groups):
        notes.append(f"{rest:,} more letters are in smaller groups; use --limit to show more groups")
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
    return Table("What they have in common", ("id", "share", "fact", "of healthy", "of other dead"), rows)


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


PIPELINE: Final = Pipeline(
    name="dlq-triage",
    summary="Group dead letters by error, show what their payloads have in common, and how to redrive each group.",
    explanation=(
        "Reads the dead-letter queues of the given queues (all by default), their later state, and a sample "
        "of acknowledged messages of the queues where the letters died.\n\n"
        "Letters with the same error form a group. Numbers, ids, paths, times, addresses and quoted text in the error "
        "are ignored; the innermost frames of your own code are compared. For each group, the report shows what nearly "
        "all of its messages have in common and healthy messages do not: values, missing or new fields, types, key "
        "prefixes, headers, producers, consumers. It also shows a command that redrives only this group, and counts "
        f"the letters that the command would affect.\n\nWrites {FILE}. Letters that were redriven, acked or discarded "
        "are omitted, unless --all is given."
    ),
    options=TriageOptions,
    run=run,
)
