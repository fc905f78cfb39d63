"""What a replay is, kept in its directory: so that one that did not end goes on, and one that did is not done again.

A replay is known by its id, which follows from what is asked for unless it is given. What was asked for is fixed when
it begins: the time up to which messages count, above all.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import InvalidField
from penstock.spark.pipelines.state import read_state, write_state

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
    """An id that is the same whenever the same is asked for."""
    asked = msgspec.json.encode([getattr(plan, name) for name in (*_WHAT, *_WHEN)])
    return hashlib.blake2b(asked, digest_size=6).hexdigest()


def folder_of(out: Path, id: str) -> Path:
    """Where a replay keeps its files."""
    return out / FOLDER / id


def begun(out: Path, wanted: Plan, *, is_named: bool) -> Plan:
    """The replay to go on with: the one that began as this, or this one. Refuses what would be done twice."""
    found = read_state(folder_of(out, wanted.id) / FILE, Plan)
    if found is not None:
        _check_same(found, wanted)
        return found
    if not is_named:
        _check_none_open(out, wanted)
    return wanted


def keep(out: Path, plan: Plan) -> None:
    """Write down how far a replay is."""
    write_state(folder_of(out, plan.id) / FILE, plan)


def _check_same(found: Plan, wanted: Plan) -> None:
    # Times are those of the beginning: "an hour ago" is another time when it is said again.
    for name in _WHAT:
        if getattr(found, name) != getattr(wanted, name):
            raise InvalidField(
                f"{name}: replay {found.id!r} began with {getattr(found, name)!r}, not {getattr(wanted, name)!r}",
                hint="ask for the same as then, or give another --id",
            )


def _check_none_open(out: Path, wanted: Plan) -> None:
    for path in sorted((out / FOLDER).glob(f"*/{FILE}")):
        other = read_state(path, Plan)
        if other is None or other.is_done or any(getattr(other, name) != getattr(wanted, name) for name in _WHAT):
            continue
        hint = f"go on with it: --id {other.id}; or give an --id of your own for a new one"
        raise InvalidField(f"id: the replay {other.id!r} of the same messages has not ended", hint=hint)
