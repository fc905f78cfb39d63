"""What `dlq-triage` found, as a file and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.spark.pipelines.base import Report, Table
from penstock.spark.pipelines.triaging.facts import in_words
from penstock.spark.pipelines.triaging.redrive import in_utc
from penstock.units import plural

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


class Found(msgspec.Struct, frozen=True, kw_only=True):
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
    keys: int  # about so many different ones
    shared: list[Shared]
    sample: Sample
    redrive: str
    redrive_takes_others: int
    is_new: bool = False


class Triage(msgspec.Struct, frozen=True, kw_only=True):
    """The file: all groups, and a mark of the letters that they were made from."""

    mark: str
    letters: int
    groups: list[Found]


def found(group: Any, facts: Sequence[Any], command: str, others: int) -> Found:
    """A group from its row, its facts and its command."""
    sample = group.sample
    return Found(
        id=group.who,
        queue=group.queue,
        group=group.group,
        signature=group.signature,
        letters=group.letters,
        first_at=in_utc(group.first_at),
        last_at=in_utc(group.last_at),
        attempts_min=group.attempts_min,
        attempts_max=group.attempts_max,
        reasons=list(group.reasons),
        consumers=list(group.consumers),
        keys=group["keys"],
        shared=[_shared(fact) for fact in facts],
        sample=Sample(
            id=sample.id,
            origin=f"{sample.queue}/{sample.partition}/{sample.offset}",
            key=sample.key,
            error=sample.error,
            payload=sample.payload,
        ),
        redrive=command,
        redrive_takes_others=others,
    )


def _shared(fact: Any) -> Shared:
    return Shared(
        text=in_words(fact.path, fact.kind, fact.value),
        path=fact.path,
        kind=fact.kind,
        value=fact.value,
        share=fact.share,
        share_healthy=fact.share_healthy,
        share_others=fact.share_others,
    )


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
        figures={"letters": triage.letters, "groups": len(groups), "new_groups": sum(each.is_new for each in groups)},
        tables=[_groups_table(groups), _shared_table(groups), _samples_table(groups)],
        files=files,
        notes=notes,
    )


def _groups_table(groups: Sequence[Found]) -> Table:
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


def _shared_table(groups: Sequence[Found]) -> Table:
    rows = [
        (group.id, _percent(fact.share), fact.text, _percent(fact.share_healthy), _percent(fact.share_others))
        for group in groups
        for fact in group.shared
    ]
    return Table("What they share", ("id", "share", "fact", "of healthy", "of other dead"), rows)


def _samples_table(groups: Sequence[Found]) -> Table:
    rows = [(each.id, each.sample.id, each.sample.origin, _cut(each.sample.payload or "(bytes)")) for each in groups]
    return Table("Samples", ("id", "dead letter", "was", "payload"), rows)


def _attempts(group: Found) -> str:
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
